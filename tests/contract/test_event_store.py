"""contract: event_store_replay.jsonl, and of checkpoint_store.json the append_once cases and event digests"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.contract.test_checkpoint_store import CASES as STORE_CASES
from vv_agent._json import canonical
from vv_agent.errors import EventStoreError
from vv_agent.event_store import JsonlRunEventStore, MemoryRunEventStore, event_digest
from vv_agent.events import parse_event

REPLAY = load("event_store_replay.jsonl")
STORE = load("checkpoint_store.json")
REPLAY_CASES = Cases("event_store_replay.jsonl")


def _first_bad_line() -> int:
    for number, line in enumerate(REPLAY, 1):
        try:
            parse_event(line)
        except ValueError:
            return number
    raise AssertionError("the fixture has no broken line")


def test_replay_yields_the_good_events_then_names_the_broken_line(tmp_path: Path) -> None:
    with REPLAY_CASES.run("replay"):
        replay(tmp_path)


def replay(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join(REPLAY) + "\n", encoding="utf-8")
    bad = _first_bad_line()
    good = [parse_event(line) for line in REPLAY[: bad - 1]]
    run_id = good[0].run_id
    events = JsonlRunEventStore(path).replay(run_id)
    for event in good:
        if run_id in (event.run_id, event.parent_run_id):
            assert next(events) == event
    with pytest.raises(EventStoreError, match=f"event store corrupt line {bad}") as caught:
        next(events)
    assert (caught.value.code, caught.value.line_number) == ("event_store_corrupt_line", bad)


@pytest.mark.parametrize("case", STORE["event_payload_digest"]["golden_cases"], ids=lambda case: case["name"])
def test_the_digest_covers_the_complete_event(case: dict[str, Any]) -> None:
    with STORE_CASES.run(f"event_payload_digest/{case['name']}"):
        event = parse_event(case["event"])
        text = canonical(event.to_wire())
        assert text == base64.b64decode(case["canonical_json_base64"])
        assert len(text) == case["canonical_json_utf8_bytes"]
        assert event_digest(event) == case["sha256"]


APPEND_ONCE = [case for case in STORE["outbox_cases"] if case["name"].startswith("append_once")]


@pytest.mark.parametrize("case", APPEND_ONCE, ids=lambda case: case["name"])
def test_append_once(case: dict[str, Any]) -> None:
    with STORE_CASES.run(f"outbox_cases/{case['name']}"):
        store = MemoryRunEventStore()
        event, call, expected = parse_event(case["call"]["event"]), case["call"], case["expected"]
        if case["existing"] is not None:
            assert event_digest(event) == case["existing"]["payload_digest"]
            first = store.append_once(event.event_id, case["existing"]["payload_digest"], event)
            assert first.cursor == case["existing"]["cursor"]
        if "error" in expected:
            with pytest.raises(EventStoreError) as caught:
                store.append_once(call["event_id"], call["payload_digest"], event)
            assert caught.value.code == expected["error"]
        else:
            result = store.append_once(call["event_id"], call["payload_digest"], event)
            assert {"inserted": result.inserted, "cursor": result.cursor} == expected
        assert len(list(store.replay(event.run_id))) == 1
