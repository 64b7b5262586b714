"""Hooks before and after model and tool: watch a run, and take a secret out of a result before it is stored."""

from support import fail, runner, show

from vv_agent import Agent, NoToolPolicy, RuntimeHook, function_tool
from vv_agent.testing import call

SEEN: list[str] = []


@function_tool(idempotency="supported")
def customer(number: int) -> str:
    """Look a customer up."""
    return f"customer {number}: Ada, card 4111-1111"


class Watch(RuntimeHook):
    def before_llm(self, event):
        SEEN.append(f"before model, cycle {event.cycle_index}")

    def after_llm(self, event):
        SEEN.append(f"after model: {len(event.response.tool_calls)} calls")

    def before_tool_call(self, event):
        SEEN.append(f"before {event.call.name}")

    def after_tool_call(self, event):
        SEEN.append(f"after {event.call.name}")
        return event.result.model_copy(update={"content": event.result.content.replace("4111-1111", "****")})


agent = Agent(
    name="clerk",
    instructions="Look customers up, then answer.",
    tools=[customer],
    no_tool_policy=NoToolPolicy.FINISH,
    hooks=[Watch()],
)


def main() -> None:
    result = runner(call("customer", {"number": 7}), "Number 7 is Ada.").run_sync(agent, "Who is customer 7?")
    print(*SEEN, sep="\n")
    if "4111" in str([message.content for message in result.messages]):
        fail("the card number was stored")
    show(result)


if __name__ == "__main__":
    main()
