"""tool_metadata.json, the part that needs a run: the events of a tool call, and that a declaration decides nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_tool_policy import METADATA, METADATA_CASES
from tests.runs import Host, asks
from vv_agent import ToolMetadata, ToolOutput, ToolPolicy
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.tools.function import FunctionTool

TELEMETRY = METADATA["telemetry_contract"]
ENVELOPE = {"version", "event_id", "run_id", "trace_id", "created_at", "agent_name", "cycle_index"}


def call_events(folder: Path, declared: dict[str, Any] | None, policy: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of one call of a tool with this declaration, without their envelope."""
    tool = FunctionTool(
        name="inspect", handler=lambda *_: ToolOutput.text("ok"),
        parameters={"type": "object", "properties": {"path": {"type": "string"}}},
        tool_metadata=None if declared is None else ToolMetadata.from_wire(declared),
    )  # fmt: skip
    host = Host(MemoryStore(), folder, [tool], checkpoint=None, agent={"tool_policy": ToolPolicy(**policy)})
    step = asks("inspect", call_id="call_metadata", arguments={"path": "README.md"})
    outcome = host.run([step, "done"])
    assert outcome.ok.final_output == "done", "no declaration finishes a run"
    wires = [event.to_wire() for event in outcome.events if event.type in TELEMETRY["event_types"]]
    return [{name: value for name, value in wire.items() if name not in ENVELOPE} for wire in wires]


@pytest.mark.parametrize("case", METADATA["producer_cases"], ids=lambda case: case["name"])
def test_the_events_of_a_call(case: dict[str, Any], tmp_path: Path) -> None:
    with METADATA_CASES.run(f"producer_cases/{case['name']}"):
        events = call_events(tmp_path, case["tool_metadata"], case.get("policy", {}))
        types = case.get("expected_event_types") or [event["type"] for event in case["expected_events"]]
        assert [event["type"] for event in events] == types
        for event in events:
            fields = set(TELEMETRY[f"{event['type'].removeprefix('tool_call_')}_fields"])
            optional = set() if case["tool_metadata"] else {"tool_metadata"}
            assert event.keys() == ({"type"} | fields) - optional
            assert ("tool_metadata" in event) is case.get("typed_metadata_field_present", True)
        for ours, expected in zip(events, case.get("expected_events", ()), strict=False):
            timed = {"duration_ms"} if expected.get("duration_ms") is not None else set()
            assert {k: v for k, v in ours.items() if k not in timed} == {
                k: v for k, v in expected.items() if k not in timed
            }
            assert all(isinstance(ours[name], int) and ours[name] >= 0 for name in timed)
        completed = case.get("expected_completed", {})
        assert {name: events[-1][name] for name in completed} == completed
        if "neutral_defaults" in case:
            assert ToolMetadata().to_wire() == case["neutral_defaults"]


def test_a_declaration_is_no_order(tmp_path: Path) -> None:
    wanted = METADATA["task_independence"]
    with METADATA_CASES.run("task_independence"):
        assert wanted["terminal_declaration_automatically_finishes"] is False
        terminal = {**ToolMetadata().to_wire(), "terminal": True, "capability_tags": ["any.label"]}
        assert call_events(tmp_path, terminal, {})[-1]["directive"] == "continue"
        assert not set(wanted["forbidden_core_fields"]) & set(ToolMetadata().to_wire())
