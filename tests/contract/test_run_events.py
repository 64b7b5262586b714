"""contract: run_events.jsonl, run_events_invalid.json, budget_events.jsonl, resume_events.jsonl and the other event lines"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.fixtures import load
from vv_agent.events import parse_event

INVALID = load("run_events_invalid.json")
FILES = (
    "run_events.jsonl",
    "budget_events.jsonl",
    "resume_events.jsonl",
    "runner_events.jsonl",
    "configured_sub_agent_events.jsonl",
)
LINES = [
    pytest.param(line, id=f"{name}:{number}")
    for name in FILES
    for number, line in enumerate(load(name), 1)
    if line.strip()
]


@pytest.mark.parametrize("line", LINES)
def test_an_event_survives_a_round_trip(line: str) -> None:
    wire = json.loads(line)
    event = parse_event(line)
    assert event.to_wire() == wire
    assert json.dumps(event.to_wire()["created_at"]) == json.dumps(wire["created_at"])
    assert parse_event(event.to_wire()) == event


@pytest.mark.parametrize("case", INVALID["reject"], ids=lambda case: case.get("id") or case["name"])
def test_a_wrong_event_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_event(case["input"])


def test_the_values_of_the_rules_are_those_of_the_types() -> None:
    rules = INVALID["rules"]
    completed = {
        "version": "v1", "type": "run_completed", "event_id": "e", "run_id": "r", "trace_id": "t", "created_at": 1,
        "status": "completed", "final_output": None,
    }  # fmt: skip
    for reason in [*rules["completion_fields"]["completion_reason"]["values"], None]:
        assert parse_event(completed | {"completion_reason": reason}).to_wire()["completion_reason"] == reason
    delta = {**completed, "type": "assistant_delta", "cycle_index": 1, "delta": ""}
    del delta["status"], delta["final_output"]
    largest = rules["budget_fields"]["wire_integer_maximum"]
    assert parse_event(delta | {"content_chars": largest}).to_wire()["content_chars"] == largest
