"""Read the events of a run as they happen, text as it is generated."""

import asyncio
import sys

from support import fail, runner

from vv_agent import Agent, NoToolPolicy, function_tool
from vv_agent.testing import calls


@function_tool(idempotency="supported")
async def temperature(city: str) -> int:
    """The temperature in a city."""
    return {"Ulm": 7, "Bonn": 9}.get(city, 8)


agent = Agent(name="weather", instructions="Tell the weather.", tools=[temperature], no_tool_policy=NoToolPolicy.FINISH)


async def main() -> None:
    run = runner(
        calls(("temperature", {"city": "Ulm"}), ("temperature", {"city": "Bonn"})),
        "Seven degrees in Ulm, nine in Bonn.",
    )
    last = None
    async for event in run.stream(agent, "How is it in Ulm and Bonn?"):
        match event.type:
            case "assistant_delta":
                print(event.delta, end="", flush=True)
            case "tool_call_completed":
                print(f"[{event.tool_name} {event.status}]", file=sys.stderr)
        last = event
    print()
    if last is None or last.type != "run_completed":
        fail(f"the last event is {last}")


if __name__ == "__main__":
    asyncio.run(main())
