"""A tool of your own with a typed declaration, and a policy that denies what the declaration says it does."""

from support import fail, runner, show

from vv_agent import Agent, NoToolPolicy, RunConfig, ToolMetadata, ToolPolicy, ToolSideEffect, function_tool
from vv_agent.testing import call


@function_tool(
    tool_metadata=ToolMetadata(
        side_effect=ToolSideEffect.NETWORK, capability_tags=("web",), cost_dimensions=("requests",)
    )
)
def fetch(url: str) -> str:
    """Fetch a page."""
    return f"<the page {url}>"


agent = Agent(
    name="reader",
    instructions="Fetch the page and say what you got, or that you may not.",
    tools=[fetch],
    no_tool_policy=NoToolPolicy.FINISH,
)


def main() -> None:
    page = call("fetch", {"url": "https://example.org"})
    show(runner(page, "I got the page.").run_sync(agent, "Read https://example.org"))

    offline = RunConfig(tool_policy=ToolPolicy().deny_side_effect("network"))
    denied = runner(page, "I may not use the network.").run_sync(agent, "Read https://example.org", run_config=offline)
    ran = [event for event in denied.events if event.type == "tool_call_completed" and event.execution_started]
    if ran:
        fail("the policy let the tool run")
    show(denied)


if __name__ == "__main__":
    main()
