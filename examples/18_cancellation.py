"""Cancel a run that is under way: it ends as failed with the reason `cancelled`, and its messages stay valid."""

from support import fail, runner, show

from vv_agent import Agent, ToolContext, function_tool
from vv_agent.testing import call


@function_tool(idempotency="supported")
def dig(context: ToolContext) -> str:
    """Dig; takes a minute, and stops at once when the run is cancelled."""
    return "stopped" if context.cancellation.wait(60) else "a hole"


agent = Agent(name="digger", instructions="Dig with the tool dig.", tools=[dig])


def main() -> None:
    handle = runner(call("dig"), "Done.").start(agent, "Dig a hole.")
    for event in handle.events():
        if event.type == "tool_call_started":
            print(f"cancel accepted: {handle.cancel('enough of it')}")
    result = handle.result(timeout=30)
    print(f"reason {result.completion_reason}; handle {handle.state().status}")
    if result.completion_reason != "cancelled":
        fail("the run was not cancelled")
    show(result, "failed")


if __name__ == "__main__":
    main()
