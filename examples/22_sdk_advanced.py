"""Many options of a run at once, on threads: initial messages, shared state, context, event file, metadata."""

import tempfile
from pathlib import Path

from support import fail, runner, show

from vv_agent import (
    Agent,
    ExecutionMode,
    JsonlRunEventStore,
    Message,
    ModelSettings,
    NoToolPolicy,
    RunConfig,
    ToolContext,
    function_tool,
)
from vv_agent.testing import call


@function_tool(idempotency="supported")
def count(context: ToolContext) -> str:
    """Count one up."""
    context.shared_state["n"] = context.shared_state.get("n", 0) + context.context["step"]
    return f"n is {context.shared_state['n']}"


agent = Agent(name="counter", instructions="Count once.", tools=[count], no_tool_policy=NoToolPolicy.FINISH)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder, "events.jsonl")
        config = RunConfig(
            execution_mode=ExecutionMode.THREADED,
            max_cycles=4,
            model_settings=ModelSettings(max_tokens=300, timeout_seconds=60),
            initial_messages=[Message("user", "Be brief."), Message("assistant", "Yes.")],
            shared_state={"n": 40},
            context={"step": 2},
            metadata={"ticket": "4711"},
            event_store=JsonlRunEventStore(events),
            before_cycle_messages=lambda cycle, messages, state: [],
        )
        result = runner(call("count"), "Counted.").start(agent, "Count.", run_config=config).result(timeout=120)
        print(f"n is {result.raw_result.shared_state['n']}, ticket {result.metadata['ticket']}")
        print(f"{len(events.read_text(encoding='utf-8').splitlines())} events in the file")
        if result.raw_result.shared_state["n"] != 42:
            fail("the tool did not count")
        show(result)


if __name__ == "__main__":
    main()
