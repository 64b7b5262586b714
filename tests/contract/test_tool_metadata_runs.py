"""tool_metadata.json, the part that needs a run: the events of a tool call, and that a declaration decides nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.contract.test_tool_policy import METADATA, METADATA_CASES
from tests.runs import Host, asks
from vv_agent import CapabilityRef, RunDefinition, ToolMetadata, ToolOutput, ToolPolicy
from vv_agent.app_server.items import Projection
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.events import make_event
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


def test_what_clients_of_the_app_server_see_of_a_declaration() -> None:
    wanted = METADATA["app_server_projection"]
    with METADATA_CASES.run("app_server_projection"):
        assert wanted["tool_call_planned"] == "no_notification"
        assert wanted["planned_is_never_presented_as_execution_started"] is True
        declared = ToolMetadata(side_effect="read", capability_tags=["files"])
        call = {"tool_call_id": "c", "tool_name": "inspect", "tool_metadata": declared}
        projection = Projection("thread", "turn")
        assert projection.show(event("tool_call_planned", **call, arguments={})) is None
        started = projection.show(event("tool_call_started", **call, arguments={"path": "x"}))
        ended = projection.show(event(
            "tool_call_completed", **call, status="error", directive="continue", error_code="odd",
            execution_started=True, duration_ms=3,
        ))  # fmt: skip
        assert started is not None
        assert ended is not None
        assert [method for method, _ in started.notes] == ["item/started", "item/toolCall/delta"]
        assert [method for method, _ in ended.notes] == ["item/completed"]
        facts = {"directive": "continue", "errorCode": "odd", "executionStarted": True, "durationMs": 3}
        assert {name: ended.item.payload[name] for name in facts} == facts
        assert started.item.payload["toolMetadata"] == ended.item.payload["toolMetadata"]
        assert started.item.payload["toolMetadata"]["sideEffect"] == "read"
        bare = projection.show(event("tool_call_started", tool_call_id="d", tool_name="inspect", arguments={}))
        assert bare is not None
        assert "toolMetadata" not in bare.item.payload


def event(kind: str, **fields: Any) -> Any:
    return make_event(kind, event_id="e", run_id="r", trace_id="t", created_at=1.0, agent_name="a", **fields)


def test_a_definition_holds_the_declarations(tmp_path: Path) -> None:
    wanted = METADATA["checkpoint"]
    with METADATA_CASES.run("checkpoint"):
        assert wanted["policy_fields_are_frozen"] is True
        assert wanted["generic_metadata_is_not_promoted"] is True
        assert wanted["resume_must_match_original_declaration"] is True

        def tool(declared: ToolMetadata | None) -> FunctionTool:
            return FunctionTool(
                name="inspect", handler=lambda *_: ToolOutput.text("ok"), metadata={"idempotency": "supported"},
                tool_metadata=declared,
            )  # fmt: skip

        refs = {"tool:0": CapabilityRef(id="tests:inspect", version="1")}
        repeatable = ToolMetadata(idempotency="supported")
        host = Host(MemoryStore(), tmp_path, [tool(repeatable)], checkpoint={"capability_refs": refs})
        host.run([asks("inspect", call_id="c"), "done"], die_at=("store.save.commit", "before", 1))
        definition = RunDefinition.decode(host.store.definition(host.store.find()[0].definition))
        mine = [one for one in definition.tools if one.tool_schema.function.name == "inspect"]
        assert wanted["run_definition_tool_field"] == "tool_metadata"
        assert mine[0].tool_metadata is not None
        assert mine[0].tool_metadata.idempotency == "supported"
        with pytest.raises(ValidationError):
            mine[0].tool_metadata.idempotency = "unknown"  # type: ignore[misc]
        other = Host(host.store, tmp_path, [tool(None)], checkpoint={"capability_refs": refs})
        assert other.run(["done"]).code == "checkpoint_definition_mismatch"
        bare = Host(MemoryStore(), tmp_path, [tool(None)], checkpoint={"capability_refs": refs})
        bare.run(["done"])
        definition = RunDefinition.decode(bare.store.definition(bare.store.find()[0].definition))
        (mine_,) = [one for one in definition.tools if one.tool_schema.function.name == "inspect"]
        assert mine_.tool_metadata is wanted["missing_value"]
