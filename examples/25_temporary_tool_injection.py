"""A hidden tool that a hook shows to the model in one call only."""

from support import fail, runner, show

from vv_agent import Agent, BeforeLlmPatch, NoToolPolicy, RuntimeHook, ToolExposure, function_tool
from vv_agent.testing import call

OFFERED: list[str] = []


@function_tool(idempotency="supported", exposure=ToolExposure.HIDDEN)
def unlock(door: str) -> str:
    """Unlock a door."""
    return f"{door} is open"


class FirstCycleOnly(RuntimeHook):
    def before_llm(self, event):
        if event.cycle_index == 1:
            return BeforeLlmPatch(tool_schemas=[*event.tool_schemas, unlock.to_openai_schema()])
        OFFERED.extend(schema["function"]["name"] for schema in event.tool_schemas)
        return None


agent = Agent(
    name="porter",
    instructions="Unlock the door you are asked about.",
    tools=[unlock],
    no_tool_policy=NoToolPolicy.FINISH,
    hooks=[FirstCycleOnly()],
)


def main() -> None:
    result = runner(call("unlock", {"door": "the gate"}), "The gate is open.").run_sync(agent, "Open the gate.")
    print([one.content for one in result.cycles[0].tool_results])
    if "unlock" in OFFERED:
        fail("the tool was offered again")
    show(result)


if __name__ == "__main__":
    main()
