"""A run in the background whose tool needs a yes, an agent that works on the side, and a trace of it all."""

import json
import tempfile
from pathlib import Path

from support import by_agent, fail, runner, show

from vv_agent import Agent, ApprovalDecision, JsonlTraceExporter, NoToolPolicy, RunConfig, function_tool
from vv_agent.testing import call


@function_tool(needs_approval=True)
def pay(cents: int) -> str:
    """Pay an invoice."""
    return f"paid {cents}"


archivist = Agent(name="archivist", instructions="File the invoice.", no_tool_policy=NoToolPolicy.FINISH)
clerk = Agent(
    name="clerk",
    instructions="Have the archivist file the invoice in the background, pay it, then answer.",
    tools=[archivist.as_background_task(), pay],
    no_tool_policy=NoToolPolicy.FINISH,
)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.jsonl")
        config = RunConfig(tracing={"sink": JsonlTraceExporter(trace), "workflow_name": "invoices"})
        handle = runner(
            *by_agent(
                {
                    "Have": [
                        call("archivist_background_task", {"task_description": "File invoice 7."}),
                        call("pay", {"cents": 500}),
                        "Invoice 7 is paid.",
                    ],
                    "File": ["Filed."],
                }
            )
        ).start(clerk, "Pay invoice 7 (5.00).", run_config=config)
        for event in handle.events():
            if event.type == "approval_requested":
                print(f"{event.tool_name} asks: {event.metadata['arguments']}")
                handle.approve(event.request_id, ApprovalDecision.allow())
        result = handle.result(timeout=120)
        lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
        names = [line["span"]["name"] for line in lines if line["event"] == "span_end"]
        print(f"spans: {names}")
        if "tool" not in names:
            fail("no tool is in the trace")
        show(result)


if __name__ == "__main__":
    main()
