"""The rules of the journal and its decisions that no contract case covers."""

from __future__ import annotations

from typing import Any

import pytest

from vv_agent.checkpoint.config import AmbiguousModelPolicy, AmbiguousToolPolicy
from vv_agent.checkpoint.identity import event_id, idempotency_key, model_operation_id, tool_operation_id
from vv_agent.checkpoint.journal import OperationState, decode_entry, transition
from vv_agent.checkpoint.reconciliation import (
    RISK_TOOL,
    ReconciliationDecision,
    ReconciliationProvider,
    Recovery,
    RecoveryAction,
    observe,
    recover,
)
from vv_agent.checkpoint.request import check_request, operation_request, request_digest
from vv_agent.errors import CheckpointError

MODEL = {
    "kind": "model",
    "operation_id": "op",
    "cycle_index": 1,
    "attempt": 1,
    "state": "ambiguous",
    "request_digest": "a" * 64,
    "idempotency_key": None,
    "response": None,
    "error": None,
}
TOOL = {name: value for name, value in MODEL.items() if name != "response"} | {
    "kind": "tool",
    "tool_call_id": "call_1",
    "tool_name": "pay",
    "arguments": {"n": 1},
    "idempotency_key": "idem",
    "idempotency_support": "supported",
    "result": None,
}
ERROR = {"code": "c", "message": "m", "retryable": True}


def without(wire: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in wire.items() if key != name}


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (MODEL | {"operation_id": " "}, "operation_id_invalid"),
        (MODEL | {"operation_id": " ", "cycle_index": 0, "tool_name": "x"}, "operation_id_invalid"),
        (MODEL | {"cycle_index": 2**53}, "operation_cycle_invalid"),
        (MODEL | {"cycle_index": True}, "operation_cycle_invalid"),
        (MODEL | {"attempt": 1.0}, "operation_attempt_invalid"),
        (MODEL | {"request_digest": "a" * 64 + "\n"}, "operation_request_digest_invalid"),
        (TOOL | {"response": None}, "operation_kind_fields_invalid"),
        (MODEL | {"tool_name": "x", "state": "succeeded"}, "operation_kind_fields_invalid"),
        (without(TOOL, "arguments"), "tool_idempotency_key_required"),
        (TOOL | {"arguments": "{}"}, "tool_idempotency_key_required"),
        (TOOL | {"idempotency_support": "maybe"}, "tool_idempotency_key_required"),
        (TOOL | {"tool_name": ""}, "tool_idempotency_key_required"),
        (TOOL | {"state": "succeeded"}, "operation_receipt_required"),
        (TOOL | {"state": "succeeded", "result": {}, "error": ERROR}, "operation_receipt_required"),
        (TOOL | {"state": "failed"}, "operation_error_required"),
        (TOOL | {"state": "failed", "error": ERROR, "result": {}}, "operation_error_required"),
        (MODEL | {"response": {}}, "operation_receipt_unexpected"),
        (MODEL | {"state": "started", "error": ERROR}, "operation_receipt_unexpected"),
        (MODEL | {"state": "lost"}, "operation_journal_invalid"),
        (MODEL | {"kind": "email"}, "operation_journal_invalid"),
        (without(MODEL, "kind"), "operation_journal_invalid"),
        (MODEL | {"vendor": 1}, "operation_journal_invalid"),
        (MODEL | {"error": ERROR | {"code": ""}}, "operation_journal_invalid"),
        ([], "operation_journal_invalid"),
        (None, "operation_journal_invalid"),
    ],
)
def test_a_wrong_entry_has_the_first_code_that_fits(wire: Any, code: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        decode_entry(wire)
    assert caught.value.code == code


def test_a_receipt_stays_the_json_it_was() -> None:
    result = {"error_code": None, "n": 1, "f": 1.0, "deep": [{"x": None}]}
    entry = decode_entry(TOOL | {"state": "succeeded", "result": result})
    assert repr(entry.to_wire()["result"]) == repr(result)


def test_a_retry_is_the_next_attempt_also_when_the_state_is_given_as_text() -> None:
    planned = transition(decode_entry(TOOL), "planned")  # type: ignore[arg-type]
    assert (planned.state, planned.attempt) == (OperationState.PLANNED, 2)


def test_a_step_with_the_wrong_outcome_is_refused() -> None:
    started = decode_entry(TOOL | {"state": "started"})
    with pytest.raises(CheckpointError) as caught:
        transition(started, OperationState.SUCCEEDED)
    assert caught.value.code == "operation_receipt_required"


def decide(wire: dict[str, Any], decision: Any = None, **policies: Any) -> Recovery:
    model = policies.get("model", AmbiguousModelPolicy.RETRY_WITH_DUPLICATE_RISK)
    tool = policies.get("tool", AmbiguousToolPolicy.RETRY_IDEMPOTENT_ONLY)
    return recover(decode_entry(wire), model_policy=model, tool_policy=tool, decision=decision)


@pytest.mark.parametrize("state", ["started", "ambiguous"])
def test_the_default_policies_repeat_a_model_call_and_a_tool_call_that_declares_its_key(state: str) -> None:
    model, tool = decide(MODEL | {"state": state}), decide(TOOL | {"state": state})
    assert (model.action, model.entry.attempt, model.events) == (
        RecoveryAction.CALL,
        2,
        ("operation_ambiguous", "model_retry_duplicate_risk"),
    )
    assert (tool.action, tool.entry.to_wire()["idempotency_key"]) == (RecoveryAction.CALL, "idem")


@pytest.mark.parametrize("support", ["unsupported", "unknown"])
def test_an_unsafe_tool_parks_under_every_policy(support: str) -> None:
    for policy in AmbiguousToolPolicy:
        found = decide(TOOL | {"idempotency_support": support}, tool=policy)
        assert (found.action, found.entry.state, found.risk) == (RecoveryAction.PARK, "ambiguous", RISK_TOOL)
        assert found.observation is not None
        assert found.observation.to_wire() == {
            "operation_id": "op",
            "operation_kind": "tool",
            "cycle_index": 1,
            "state": "ambiguous",
            "risk": "unknown_tool_side_effect",
            "idempotency_support": support,
        }


def test_a_planned_call_is_made_and_a_failed_one_is_replayed() -> None:
    assert decide(TOOL | {"state": "planned"}).action is RecoveryAction.CALL
    failed = decide(TOOL | {"state": "failed", "error": ERROR}, ReconciliationDecision.retry())
    assert (failed.action, failed.events) == (RecoveryAction.REPLAY, ("operation_replayed",))


def test_a_decision_beats_the_policy() -> None:
    assert decide(TOOL, ReconciliationDecision.defer()).action is RecoveryAction.PARK
    resolved = decide(TOOL, ReconciliationDecision.record_failure("c", "m"))
    assert (resolved.entry.state, resolved.events[-1]) == ("failed", "reconciliation_resolved")


@pytest.mark.parametrize(
    "wire",
    [
        {"kind": "replay_success"},
        {"kind": "replay_success", "response": {}, "result": {}},
        {"kind": "retry", "error": ERROR},
        {"kind": "abort"},
        {"kind": "record_failure", "error": ERROR | {"message": " "}},
        {"kind": "guess"},
        {},
        "retry",
    ],
)
def test_a_decision_with_the_wrong_payload_is_refused(wire: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        ReconciliationDecision.parse(wire)
    assert caught.value.code == "checkpoint_reconciliation_decision_invalid"


@pytest.mark.parametrize(
    ("wire", "decision"),
    [
        (TOOL, ReconciliationDecision.replay_response({"content": "x"})),
        (MODEL, ReconciliationDecision.replay_result({"content": "x"})),
        (MODEL, "retry"),
        (MODEL, ReconciliationDecision()),
    ],
)
def test_a_decision_for_the_other_kind_or_no_decision_is_refused(wire: dict[str, Any], decision: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        decide(wire, decision)
    assert caught.value.code == "checkpoint_reconciliation_decision_invalid"


def test_a_provider_is_anything_that_reconciles() -> None:
    class Provider:
        def reconcile(self, observation: Any) -> ReconciliationDecision:
            assert observation.idempotency_support is None
            return ReconciliationDecision.retry()

    provider = Provider()
    assert isinstance(provider, ReconciliationProvider)
    assert decide(MODEL, provider.reconcile(observe(decode_entry(MODEL)))).entry.attempt == 2


def test_an_entry_belongs_to_one_request_and_one_declaration() -> None:
    body = {"tool_call_id": "call_1", "tool_name": "pay", "arguments": {"n": 1}, "idempotency_key": "idem"}
    request = operation_request("tool", body)  # type: ignore[arg-type]
    entry = decode_entry(TOOL | {"request_digest": request_digest(request)})
    check_request(entry, request, "supported")
    for other, support in ((request, "unknown"), (operation_request("tool", body | {"arguments": {}}), None)):  # type: ignore[arg-type]
        with pytest.raises(CheckpointError) as caught:
            check_request(entry, other, support)
        assert caught.value.code == "checkpoint_journal_integrity_mismatch"


def test_identifiers_are_pinned_because_workers_of_two_versions_must_agree() -> None:
    assert tool_operation_id(2, 1) == "op_tool_cycle_2_call_1"
    assert model_operation_id(2, "main") == "op_model_cycle_2_0d6e4079e36703eb"
    assert idempotency_key("k", 2, 1) == "idem_50e3dd155e6e10a57c2b751d96aa5620"
    assert event_id("run_1", 2, 1, "llm_started", 0) == "evt_c682e609fdada95b8062643d97043c51"
    assert idempotency_key("k", 21, 1) != idempotency_key("k", 2, 11)
