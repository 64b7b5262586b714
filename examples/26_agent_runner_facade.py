"""Agent and Runner, in both colours: `run_sync` where nothing else goes on, `await run` in an event loop."""

import asyncio

from support import runner, show

from vv_agent import Agent, NoToolPolicy, function_tool
from vv_agent.testing import call


@function_tool(idempotency="supported")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


agent = Agent(name="calculator", instructions="Use the tools.", tools=[add], no_tool_policy=NoToolPolicy.FINISH)


def main() -> None:
    run = runner(call("add", {"a": 12, "b": 30}), "The sum is 42.")
    show(run.run_sync(agent, "What is 12 + 30?"))
    show(asyncio.run(run.run(agent, "And again: what is 12 + 30?")))


if __name__ == "__main__":
    main()
