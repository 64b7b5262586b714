"""checkpoint_codec.json, the part that needs the Runner: what an operator's abort leaves, and a definition we cannot read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack

from tests.contract.test_checkpoint_codec import CASES, FIXTURE, named
from tests.contract.test_checkpoint_config_runs import Counting
from tests.runs import Died, Host, asks, receipt
from vv_agent import ReconciliationDecision
from vv_agent.checkpoint.identity import tool_operation_id
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Commit, Park, ParkReason
from vv_agent.runtime.inbox import reconcile_signal
from vv_agent.tools.function import FunctionTool

ABORTS = [case for case in FIXTURE["status_cases"] if case.get("decision") == "abort"]


def tool() -> FunctionTool:
    return FunctionTool(name="write_record", handler=lambda *_: "ok")


@named(ABORTS)
def test_an_operators_abort_keeps_what_is_unknown(case: dict[str, Any], tmp_path: Path) -> None:
    with CASES.run(f"status_cases/{case['name']}/runner"):
        host = Host(MemoryStore(), tmp_path, [tool()])
        operation = tool_operation_id(2, 1)
        host.seed(receipt("first"), then=Commit())
        doubt = {operation: {"state": "ambiguous", "attempt": 1}}
        waits = Park(ParkReason.RECONCILIATION)
        host.seed(receipt(asks(), 2), journal=doubt, then=waits, status="reconciliation_required")
        decision = ReconciliationDecision.abort("operator_abort", "aborted after review").to_wire()
        host.store.post(host.key or "", reconcile_signal("decision", operation, decision))
        outcome, expected = host.run(), case["expected"]
        result = outcome.ok
        seen = {
            "status": result.status,
            "completion_reason": result.completion_reason,
            "terminal_error_code": result.error_code,
            "ambiguous_journal_preserved": host.journal() == doubt,
            "resume_observation_preserved": result.resume_observation is not None,
        }
        assert {name: seen[name] for name in expected} == expected
        assert (outcome.model_calls, host.run().ok.error_code) == (0, result.error_code)


@named(FIXTURE["run_definition_schema_cases"])
def test_a_definition_of_another_schema_stops_a_resume_before_anything(case: dict[str, Any], tmp_path: Path) -> None:
    with CASES.run(f"run_definition_schema_cases/{case['name']}/runner"):
        store = Counting()
        host = Host(store, tmp_path, [tool()])
        assert isinstance(host.run(die_at=("store.claim", "before", 1)).error, Died)
        (run,) = store.created
        store.delete(run.key)
        store.create(
            [replace(run, definition="b" * 64, definition_body=changed(run.definition_body, case["mutation"]))]
        )
        before = host.head()
        outcome = host.run(["never"])
        assert outcome.code == case["expected_error_code"]
        seen = {
            "capability_resolution_count": 0,  # the refusal comes from reading the definition, before any reference
            "claim_count": host.head().revision - before.revision,
            "model_calls": outcome.model_calls,
            "tool_calls": sum(event.type == "tool_call_started" for event in outcome.events),
        }
        assert {name: seen[name] for name in case["expected"]} == case["expected"]


def changed(body: bytes, mutation: dict[str, Any]) -> bytes:
    """A stored definition whose schema is missing or another one."""
    wire = msgpack.unpackb(body)
    if "remove" in mutation:
        del wire["schema_version"]
    else:
        wire["schema_version"] = mutation["replace"]["run_definition_schema"]
    data: bytes = msgpack.packb(wire)
    return data
