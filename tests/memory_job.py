"""A run whose fourth cycle begins with a summary, in a process of its own."""

from __future__ import annotations

import json
import sys
from typing import Any

from vv_agent import Agent, NoToolPolicy, RunConfig, Runner, function_tool
from vv_agent.llm.base import ModelRequest
from vv_agent.testing import ScriptedProvider, call
from vv_agent.tools.registry import ToolRegistry

TASK = "Count the sheep of the valley."
SUMMARY = json.dumps({"summary_version": "2.0", "key_facts": ["the gate code is 4711"]})


@function_tool(idempotency="supported")
def look(n: int) -> str:
    """Look something up."""
    return f"result {n}: " + "sheep " * 150


def last(request: ModelRequest) -> str:
    """Says whether the prompt is the task and the summary."""
    _, memory = request.messages
    return "done" if TASK in memory.content and "4711" in memory.content else "forgotten"


PROVIDER = ScriptedProvider([*(call("look", {"n": n}) for n in (1, 2, 3)), last], aside=SUMMARY)
AGENT = Agent(name="shepherd", instructions="Count.", tools=[look], no_tool_policy=NoToolPolicy.FINISH)


def inline() -> None:
    key, workspace = sys.argv[1:]
    metadata: dict[str, Any] = {"compact_threshold": 700, "microcompact_trigger_ratio": 1}
    config = RunConfig(checkpoint_key=key, metadata=metadata, tool_registry_factory=ToolRegistry)
    result = Runner(model_provider=PROVIDER, workspace=workspace).run_sync(AGENT, TASK, run_config=config)
    risks = [e.operation_id for e in result.events if e.type == "model_retry_duplicate_risk"]
    said = [m.tool_call_id for m in result.new_items if m.role == "tool"]
    print(json.dumps({"output": result.final_output, "said": said, "risks": risks}), flush=True)
