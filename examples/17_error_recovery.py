"""A run that failed is a result, so a wrapper may try again; a tool that failed is told to the model.

A model call itself is tried again by its settings (`ModelSettings(retry=...)`); this is about what is left then.
"""

import time

from support import runner, show

from vv_agent import Agent, LlmError, NoToolPolicy, Runner, RunResult, ToolError, function_tool
from vv_agent.testing import call

CALLS: list[str] = []


@function_tool(idempotency="supported")
def rate(currency: str) -> float:
    """The rate of a currency in euros."""
    if not CALLS:
        CALLS.append(currency)
        raise ToolError("the bank does not answer; ask once more", "bank_unavailable")
    return 0.92


agent = Agent(
    name="bank", instructions="Ask for the rate; if it fails, ask once more.", tools=[rate],
    no_tool_policy=NoToolPolicy.FINISH,
)  # fmt: skip


def with_retry(run: Runner, text: str, attempts: int = 3, pause: float = 0.05) -> RunResult:
    """Run again while the run fails for a reason that may pass."""
    for attempt in range(1, attempts + 1):
        result = run.run_sync(agent, text)
        if result.error_code not in ("model_server_error", "model_timeout", "model_connection"):
            return result
        print(f"attempt {attempt} failed: {result.error_code}")
        time.sleep(pause * attempt)
    return result


BEGUN: list[int] = []


def unsteady(request):
    """A model that is down in the first attempt."""
    if not BEGUN:
        BEGUN.append(request.turn)
        raise LlmError("server_error", "the provider is down", definite=True)
    return call("rate", {"currency": "USD"})


def main() -> None:
    result = with_retry(runner(unsteady, call("rate", {"currency": "USD"}), "A dollar is 0.92 euros."), "A dollar?")
    print([one.error_code or one.content for cycle in result.cycles for one in cycle.tool_results])
    show(result)


if __name__ == "__main__":
    main()
