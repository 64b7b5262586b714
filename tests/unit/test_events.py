from __future__ import annotations

from typing import Any

import pytest

from vv_agent.budget import BudgetUsageSnapshot
from vv_agent.events import EVENT_CLASSES, TERMINAL_TYPES, ToolCallPlannedEvent, make_event, parse_event
from vv_agent.results import AgentStatus, ToolDirective
from vv_agent.tool_metadata import ToolMetadata

ENVELOPE: dict[str, Any] = {"event_id": "e", "run_id": "r", "trace_id": "t", "created_at": 1}

OPERATION = {"cycle_index": 2, "checkpoint_key": "k", "operation_id": "o", "operation_kind": "tool"}
OBSERVATION = {
    "operation_id": "o", "operation_kind": "tool", "cycle_index": 2, "state": "ambiguous", "risk": "r",
    "idempotency_support": "unknown",
}  # fmt: skip
USAGE = BudgetUsageSnapshot.fresh().to_wire()
EXHAUSTION = {
    "dimension": "total_tokens", "tool_name": None, "reason": "limit_reached", "limit": 1, "observed": 1,
    "attempted_increment": None, "overshoot": 0, "unit": "tokens", "currency": None,
    "enforcement_boundary": "cycle_start", "unavailable_reason": None,
}  # fmt: skip
TOOL = {"tool_call_id": "c", "tool_name": "search"}
STREAM = {"cycle_index": 1}
HANDOFF = {"source_agent": "a", "target_agent": "b", "tool_call_id": "c"}

MINIMAL: dict[str, dict[str, Any]] = {
    "run_started": {"input": ""},
    "agent_started": {},
    "cycle_started": {},
    "session_persisted": {},
    "llm_started": {"model": "m"},
    "run_state_changed": {"state": "running"},
    "diagnostic": {"level": "info", "code": "x", "details": {}},
    "assistant_delta": {**STREAM, "delta": ""},
    "reasoning_delta": {**STREAM, "delta": ""},
    "model_tool_call_started": {**STREAM, **TOOL},
    "model_tool_call_progress": {**STREAM, **TOOL},
    "tool_call_planned": {**TOOL, "arguments": {}},
    "tool_call_started": {**TOOL, "arguments": {}},
    "tool_call_completed": {
        **TOOL, "status": "error", "directive": "continue", "error_code": None, "execution_started": False,
        "duration_ms": None,
    },
    "approval_requested": {**TOOL, "request_id": "q", "message": ""},
    "approval_resolved": {**TOOL, "request_id": "q", "action": "deny"},
    "memory_compact_started": {
        "message_count": 3, "trigger": "full_threshold", "configured_threshold": 9, "effective_threshold": 9,
        "microcompact_threshold": 6, "model_context_window": 20, "model_max_output_tokens": None,
        "reserved_output_tokens": 4, "reserved_output_source": "framework_fallback", "autocompact_buffer_tokens": 2,
    },
    "memory_compact_completed": {"before_count": 3, "after_count": 2, "mode": "micro", "changed": True},
    "sub_run_started": {"parent_tool_call_id": "c", "status": "running"},
    "sub_run_completed": {"parent_tool_call_id": "c", "status": "completed"},
    "handoff_started": {**HANDOFF, "status": "started"},
    "handoff_completed": {**HANDOFF, "status": "failed"},
    "budget_snapshot": {"enforcement_boundary": "run_start", "budget_usage": USAGE},
    "budget_exhausted": {
        "enforcement_boundary": "cycle_start", "budget_usage": USAGE, "budget_exhaustion": EXHAUSTION,
    },
    "checkpoint_created": {"cycle_index": 0, "checkpoint_key": "k", "resume_attempt": 1},
    "checkpoint_resumed": {"cycle_index": 0, "checkpoint_key": "k", "resume_attempt": 2},
    "operation_replayed": {**OPERATION, "receipt_state": "failed"},
    "operation_ambiguous": {**OPERATION, "risk": "r", "idempotency_support": "supported"},
    "reconciliation_required": {**OPERATION, "interruption_reason": "x", "resume_observation": OBSERVATION},
    "model_retry_duplicate_risk": {**OPERATION, "operation_kind": "model", "risk": "r"},
    "reconciliation_resolved": {**OPERATION, "decision": "retry"},
    "run_completed": {"status": "completed", "final_output": None},
    "run_failed": {"error": ""},
    "run_cancelled": {"reason": ""},
}  # fmt: skip


def wire(event_type: str, **changes: Any) -> dict[str, Any]:
    return {"version": "v1", "type": event_type, **ENVELOPE, **MINIMAL[event_type], **changes}


def test_every_type_of_the_table_has_its_class() -> None:
    assert set(EVENT_CLASSES) == set(MINIMAL)
    assert set(EVENT_CLASSES) > TERMINAL_TYPES


@pytest.mark.parametrize("event_type", MINIMAL)
def test_the_smallest_event_of_a_type_survives_a_round_trip_and_can_be_made(event_type: str) -> None:
    given = wire(event_type)
    assert parse_event(given).to_wire() == given
    assert make_event(event_type, **ENVELOPE, **MINIMAL[event_type]).to_wire() == given


@pytest.mark.parametrize(
    ("event_type", "field"),
    [(name, field) for name, fields in MINIMAL.items() for field in fields if (name, field) != ("run_completed", "final_output")],
)  # fmt: skip
def test_each_required_field_is_required(event_type: str, field: str) -> None:
    given = wire(event_type)
    del given[field]
    with pytest.raises(ValueError, match=field):
        parse_event(given)


@pytest.mark.parametrize("name", ["version", "type", "event_id", "run_id", "trace_id", "created_at"])
def test_the_envelope_is_required(name: str) -> None:
    given = wire("agent_started")
    del given[name]
    with pytest.raises(ValueError, match=name):
        parse_event(given)


@pytest.mark.parametrize(
    ("event_type", "changes"),
    [
        ("agent_started", {"run_id": " "}),
        ("agent_started", {"created_at": -1}),
        ("agent_started", {"created_at": True}),
        ("agent_started", {"created_at": "1"}),
        ("agent_started", {"created_at": float("inf")}),
        ("agent_started", {"cycle_index": 1.0}),
        ("agent_started", {"preview": "x"}),
        ("agent_started", {"metadata": None}),
        ("assistant_delta", {"cycle_index": 0}),
        ("assistant_delta", {"estimated_tokens": True}),
        ("tool_call_planned", {"tool_metadata": None}),
        ("tool_call_planned", {"tool_metadata": {"capability_tags": [""]}}),
        ("tool_call_planned", {"tool_name": "  "}),
        ("memory_compact_completed", {"mode": "full"}),
        ("sub_run_started", {"status": "completed"}),
        ("sub_run_completed", {"token_usage": []}),
        ("handoff_started", {"status": "running"}),
        ("budget_exhausted", {"enforcement_boundary": "run_start"}),
        ("budget_snapshot", {"budget_usage": {**USAGE, "future": 1}}),
        ("budget_snapshot", {"budget_usage": {**USAGE, "cycles": True}}),
        ("operation_ambiguous", {"idempotency_support": None}),
        ("operation_ambiguous", {"operation_kind": "model"}),
        ("reconciliation_required", {"operation_id": "other"}),
        ("reconciliation_required", {"cycle_index": 3}),
        ("model_retry_duplicate_risk", {"operation_kind": "tool"}),
        ("reconciliation_resolved", {"decision": "maybe"}),
        ("run_completed", {"status": "cancelled"}),
        ("run_cancelled", {"completion_tool_name": "x"}),
    ],
)  # fmt: skip
def test_a_broken_field_rule_is_refused(event_type: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_event(wire(event_type, **changes))


@pytest.mark.parametrize("source", ["", "[]", "{", '{"version":"v1","version":"v1"}', b"\xff", [], None, 1])
def test_what_is_no_object_is_refused(source: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_event(source)


@pytest.mark.parametrize("name", [None, [], 1, "future_event"])
def test_an_unknown_type_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="type"):
        parse_event({"version": "v1", "type": name, **ENVELOPE})


def test_none_means_absent_when_the_framework_makes_an_event() -> None:
    event = make_event("run_started", **ENVELOPE, input="hi", session_id=None, metadata={}, agent_name="a")
    assert event.to_wire() == {"version": "v1", "type": "run_started", **ENVELOPE, "input": "hi", "agent_name": "a"}


def test_a_completed_run_always_writes_its_output() -> None:
    event = make_event("run_completed", **ENVELOPE, status=AgentStatus.COMPLETED, completion_tool_name=None)
    assert event.to_wire() == wire("run_completed")


def test_an_explicit_null_that_was_read_is_written_again() -> None:
    given = wire("run_failed", completion_tool_name=None, cycle_index=None)
    assert parse_event(given).to_wire() == given


def test_values_of_the_framework_are_plain_on_the_wire() -> None:
    event = make_event(
        "tool_call_completed",
        **ENVELOPE,
        **{**MINIMAL["tool_call_completed"], "directive": ToolDirective.FINISH},
        tool_metadata=ToolMetadata(capability_tags=("b", "a")),
    )
    shown = event.to_wire()
    assert type(shown["directive"]) is str
    assert shown["tool_metadata"]["capability_tags"] == ["a", "b"]


def test_an_event_can_be_made_by_its_class_and_does_not_change() -> None:
    event = ToolCallPlannedEvent(**ENVELOPE, **MINIMAL["tool_call_planned"])
    assert event.to_wire() == wire("tool_call_planned")
    with pytest.raises(ValueError, match="frozen"):
        event.run_id = "other"  # type: ignore[misc]
