"""operation_journal.json: identity, transitions, entries and the decisions of a recovery, all as pure functions.

What needs a run is in test_operation_journal_runs.py.
"""

from __future__ import annotations

import base64
from itertools import product
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from vv_agent._json import canonical
from vv_agent.checkpoint.config import AmbiguousModelPolicy, AmbiguousToolPolicy
from vv_agent.checkpoint.journal import (
    ModelEntry,
    OperationError,
    OperationKind,
    OperationState,
    ToolEntry,
    decode_entry,
    transition,
)
from vv_agent.checkpoint.reconciliation import (
    ABORT_CODE,
    INTERRUPTION_REASON,
    RISK_MODEL,
    ReconciliationDecision,
    Recovery,
    RecoveryAction,
    observe,
    recover,
)
from vv_agent.checkpoint.request import check_request, checked_request, operation_request, request_digest
from vv_agent.errors import CheckpointError

FIXTURE = load("operation_journal.json")
GOLDEN = {case["name"]: case for case in FIXTURE["request_digest"]["golden_cases"]}
ENTRIES = {case["name"]: case["entry"] for case in FIXTURE["valid_entries"]}
ENTRIES["model_started"] = ENTRIES["model_planned"] | {"state": "started"}
RECEIPT = {"any": "json"}
ERROR = OperationError(code="refused", message="no", retryable=False)

CASES = Cases("operation_journal.json")


def named(section: Any) -> Any:
    return pytest.mark.parametrize("case", section, ids=lambda case: case["name"])


@named(FIXTURE["request_digest"]["golden_cases"])
def test_a_golden_request_has_the_golden_digest(case: dict[str, Any]) -> None:
    with CASES.run(f"request_digest/{case['name']}"):
        expected = base64.b64decode(case["canonical_json_base64"])
        wire = case["request"]
        assert operation_request(OperationKind(wire["kind"]), wire["request"]) == wire
        assert canonical(wire) == expected
        assert len(expected) == case["canonical_json_utf8_bytes"]
        assert request_digest(wire) == case["sha256"]


@pytest.mark.parametrize(("old", "new"), list(product(FIXTURE["enums"]["states"], repeat=2)))
def test_every_transition_is_allowed_or_refused_as_the_table_says(old: str, new: str) -> None:
    with CASES.run(f"transition/{old}->{new}"):
        entry = in_state(OperationState(old))
        receipt = RECEIPT if new == "succeeded" else None
        error = ERROR if new == "failed" else None
        if [old, new] in FIXTURE["transition_rules"]["allowed"]:
            after = transition(entry, OperationState(new), receipt=receipt, error=error)
            assert (after.state, after.receipt, after.error) == (new, receipt, error)
            assert after.attempt == entry.attempt + (new == "planned")
            same = ("operation_id", "request_digest", "idempotency_key", "cycle_index")
            assert [getattr(after, name) for name in same] == [getattr(entry, name) for name in same]
        else:
            with pytest.raises(CheckpointError) as caught:
                transition(entry, OperationState(new), receipt=receipt, error=error)
            assert caught.value.code == "operation_transition_invalid"


def in_state(state: OperationState) -> ModelEntry | ToolEntry:
    wire = ENTRIES["tool_planned"] | {"state": state}
    if state is OperationState.SUCCEEDED:
        wire["result"] = RECEIPT
    if state is OperationState.FAILED:
        wire["error"] = ERROR.model_dump()
    return decode_entry(wire)


@named(FIXTURE["valid_entries"])
def test_a_valid_entry_survives_and_belongs_to_its_request(case: dict[str, Any]) -> None:
    with CASES.run(f"valid_entries/{case['name']}"):
        entry = decode_entry(case["entry"])
        assert entry.to_wire() == case["entry"]
        request = GOLDEN[case["request_golden_case"]]["request"]
        check_request(entry, request)
        changed = request | {"request": request["request"] | {"idempotency_key": "another"}}
        with pytest.raises(CheckpointError) as caught:
            check_request(entry, changed)
        assert caught.value.code == FIXTURE["transition_rules"]["request_digest_mismatch"].split("_before_")[0]


@named(FIXTURE["invalid_entries"])
def test_an_invalid_entry_is_refused_with_its_code(case: dict[str, Any]) -> None:
    with CASES.run(f"invalid_entries/{case['name']}"):
        with pytest.raises(CheckpointError) as caught:
            decode_entry(case["entry"])
        assert caught.value.code == case["error_code"]


@named(FIXTURE["recovery_cases"])
def test_a_recovery_is_decided_by_policy(case: dict[str, Any]) -> None:
    with CASES.run(f"recovery_cases/{case['name']}"):
        before = decode_entry(ENTRIES[case["entry"]])
        if "observed_runtime_outcome" in case and before.state is OperationState.PLANNED:
            before = transition(before, OperationState.STARTED)
        if "reconstructed_request_digest" in case:
            assert before.request_digest != case["reconstructed_request_digest"]
            return
        after = decided(before, case["policy"])
        seen: dict[str, Any] = {
            "decision": str(after.action),
            "model_calls": int(after.action is RecoveryAction.CALL),
            "tool_calls": int(after.action is RecoveryAction.CALL),
            "event": after.events[-1],
            "persisted_state": after.entry.state,
            "status": "reconciliation_required" if after.action is RecoveryAction.PARK else "running",
            "interruption_reason": INTERRUPTION_REASON,
            "duplicate_cost_risk": after.risk == RISK_MODEL,
            "same_operation_id": after.entry.operation_id == before.operation_id,
            "same_request_digest": after.entry.request_digest == before.request_digest,
            "attempt": after.entry.attempt,
        }
        assert {name: seen[name] for name in case["expected"]} == case["expected"]


def decided(entry: ModelEntry | ToolEntry, policy: str) -> Recovery:
    """The decision under a policy of the fixture, which names it without saying whose it is; the other one is strict."""
    return recover(
        entry,
        model_policy=AmbiguousModelPolicy(policy) if policy in list(AmbiguousModelPolicy) else STRICT_MODEL,
        tool_policy=AmbiguousToolPolicy(policy) if policy in list(AmbiguousToolPolicy) else STRICT_TOOL,
    )


STRICT_MODEL = AmbiguousModelPolicy.REQUIRE_RECONCILIATION
STRICT_TOOL = AmbiguousToolPolicy.REQUIRE_RECONCILIATION


@named(FIXTURE["reconciliation_cases"])
def test_a_decision_is_carried_out(case: dict[str, Any]) -> None:
    with CASES.run(f"reconciliation_cases/{case['name']}"):
        kind = case.get("operation_kind", "tool")
        before = decode_entry(ENTRIES["tool_planned" if kind == "tool" else "model_planned"] | {"state": "ambiguous"})
        decision = ReconciliationDecision.parse(case["decision"])
        assert decision.to_wire() == {key: value for key, value in case["decision"].items() if value is not None}
        after = recover(before, model_policy=STRICT_MODEL, tool_policy=STRICT_TOOL, decision=decision)
        expected = case["expected"]
        assert after.entry.state == expected["state"]
        assert after.entry.receipt == case["decision"].get("response", case["decision"].get("result"))
        if expected.get("attempt") == "previous_plus_one":
            assert after.action is RecoveryAction.CALL
            assert after.entry.to_wire() == before.to_wire() | {"state": "planned", "attempt": before.attempt + 1}
        if expected["state"] == "failed":
            assert after.entry.to_wire()["error"] == case["decision"]["error"]
        if "terminal_error_code" in expected:
            assert after.action is RecoveryAction.ABORT
            assert expected["terminal_error_code"] == ABORT_CODE
            assert after.observation == observe(before)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"schema_version": "vv-agent.operation-request.v2"}, "operation_request_schema_unsupported"),
        ({"kind": "email"}, "operation_request_invalid"),
        ({"kind": "tool"}, "operation_request_invalid"),
        ({"attempt": 1}, "operation_request_invalid"),
        ({"request": None}, "operation_request_invalid"),
    ],
)
def test_a_wrong_request_is_refused(change: dict[str, Any], code: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        checked_request(GOLDEN["model_basic"]["request"] | change)
    assert caught.value.code == code


@pytest.mark.parametrize("value", [2**53, float("nan"), "\ud800"])
def test_a_request_that_is_no_i_json_is_refused(value: Any) -> None:
    request = GOLDEN["tool_write_record"]["request"]["request"] | {"arguments": {"n": value}}
    with pytest.raises(CheckpointError) as caught:
        operation_request(OperationKind.TOOL, request)
    assert caught.value.code == "operation_request_not_i_json"
