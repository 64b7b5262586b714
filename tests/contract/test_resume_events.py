"""resume_events.jsonl: the events our runtime makes in each situation have exactly the fields of the contract's lines.

That the lines themselves survive a round trip is in test_run_events.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.runs import MODEL, TOOL, Host, asks, receipt
from vv_agent import ReconciliationDecision, ToolContext, ToolOutput, function_tool
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.results import ResumeObservation

LINES = [json.loads(line) for line in load("resume_events.jsonl") if line.strip()]
CASES = Cases("resume_events.jsonl")
OPTIONAL = {"agent_name"}
"""Envelope fields that may be there and are not in the fixture's lines (spec/13, section 5)."""


class Decides:
    """A reconciliation provider that always says the same."""

    def __init__(self, decision: ReconciliationDecision) -> None:
        self._decision = decision
        self.asked: list[ResumeObservation] = []

    def reconcile(self, observation: ResumeObservation) -> ReconciliationDecision:
        self.asked.append(observation)
        return self._decision


@function_tool
def write_record(context: ToolContext, record_id: str = "", value: str = "") -> ToolOutput:
    """Write a record."""
    return ToolOutput.text("ok")


STARTED = {"state": "started", "attempt": 1}
RESULT = {"tool_call_id": "call_1", "content": "ok", "status_code": "SUCCESS", "directive": "continue"}


@pytest.fixture(scope="module")
def produced(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The events of every situation the lines are about."""
    folder = tmp_path_factory.mktemp("events")

    def host(**options: Any) -> Host:
        return Host(MemoryStore(), folder, [write_record], **options)

    events = host().run(["done"]).events
    replaying = host()
    replaying.seed(receipt(asks()), ["t", 1, 0, RESULT])
    events += replaying.run(["done"]).events
    for deciding in (None, ReconciliationDecision.replay_result(RESULT), ReconciliationDecision.retry()):
        waiting = host(config={"reconciliation_provider": Decides(deciding)} if deciding else {})
        waiting.seed(receipt(asks()), journal={TOOL: STARTED})
        events += waiting.run(["done"]).events
    repeating = host(checkpoint={"ambiguous_model_policy": "retry_with_duplicate_risk"})
    repeating.seed(journal={MODEL: STARTED | {"digest": None}})
    events += repeating.run(["done"]).events
    return [event.to_wire() for event in events]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["event_id"])
def test_an_event_has_the_fields_of_the_contract(line: dict[str, Any], produced: list[dict[str, Any]]) -> None:
    with CASES.run(line["event_id"]):
        same = (
            "type",
            "operation_kind",
            "receipt_state",
            "risk",
            "interruption_reason",
            "decision",
            "idempotency_support",
        )
        wanted = {name: line[name] for name in same if name in line}
        alike = [event for event in produced if {name: event.get(name) for name in wanted} == wanted]
        assert alike, f"no situation makes a {wanted}"
        for event in alike:
            assert event.keys() - OPTIONAL == line.keys()
            if "resume_observation" in line:
                ours, theirs = event["resume_observation"], line["resume_observation"]
                assert ours.keys() == theirs.keys()
                free = {"operation_id", "cycle_index"}
                assert {k: v for k, v in ours.items() if k not in free} == {
                    k: v for k, v in theirs.items() if k not in free
                }


def test_no_two_events_of_a_run_have_the_same_id(produced: list[dict[str, Any]]) -> None:
    ids = [event["event_id"] for event in produced]
    assert len(ids) == len(set(ids))
