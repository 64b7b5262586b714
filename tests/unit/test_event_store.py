from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from vv_agent.errors import EventStoreError
from vv_agent.event_store import (
    IdempotentRunEventStore,
    JsonlRunEventStore,
    MemoryRunEventStore,
    RunEventStore,
    event_digest,
)
from vv_agent.events import RunEvent, make_event


def event(number: int, run_id: str = "run", **fields: Any) -> RunEvent:
    return make_event("cycle_started", event_id=f"e{number}", run_id=run_id, trace_id="t", created_at=number, **fields)


@pytest.fixture(params=["memory", "jsonl"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MemoryRunEventStore() if request.param == "memory" else JsonlRunEventStore(tmp_path / "a" / "b.jsonl")


def test_a_run_replays_its_own_events_and_those_of_its_children(store: RunEventStore) -> None:
    events = [event(1), event(2, "child", parent_run_id="run"), event(3, "other"), event(4, metadata={"a": "é\u2028"})]
    for item in events:
        store.append(item)
    assert list(store.replay("run")) == [events[0], events[1], events[3]]
    assert list(store.replay("run", include_children=False)) == [events[0], events[3]]
    assert list(store.replay("child")) == [events[1]]


def test_nothing_is_replayed_before_the_first_append(store: RunEventStore) -> None:
    assert list(store.replay("run")) == []


def test_what_is_not_json_is_refused(store: RunEventStore) -> None:
    for value in (object(), float("nan"), "\ud800"):
        with pytest.raises(EventStoreError) as caught:
            store.append(event(1, metadata={"x": value}))
        assert caught.value.code == "event_store_serialization_error"
    assert list(store.replay("run")) == []


def test_a_path_that_cannot_be_written_is_an_io_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "file" / "events.jsonl"):
        (tmp_path / "file").touch()
        with pytest.raises(EventStoreError) as caught:
            JsonlRunEventStore(path).append(event(1))
        assert caught.value.code == "event_store_io_error"


def test_a_torn_last_line_spoils_no_later_event(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"version":"v1","ty')
    store = JsonlRunEventStore(path)
    store.append(event(1))
    assert path.read_bytes().count(b"\n") == 2
    with pytest.raises(EventStoreError) as caught:
        list(store.replay("run"))
    assert caught.value.line_number == 1
    assert pickle.loads(pickle.dumps(caught.value)).line_number == 1


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    def write(thread: int) -> None:
        store = JsonlRunEventStore(path)
        for number in range(50):
            store.append(event(thread * 50 + number, metadata={"text": "x" * 5000}))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({item.event_id for item in JsonlRunEventStore(path).replay("run")}) == 200


def test_a_repeat_gives_the_first_cursor_and_keeps_one_event() -> None:
    store = MemoryRunEventStore()
    store.append(event(1))
    first = store.append_once("e2", event_digest(event(2)), event(2))
    again = store.append_once("e2", event_digest(event(2)), event(2))
    assert (first.inserted, again.inserted, first.cursor, again.cursor) == (
        True,
        False,
        {"sequence": 2},
        {"sequence": 2},
    )
    assert len(list(store.replay("run"))) == 2


def test_a_digest_or_id_of_another_event_is_refused() -> None:
    store = MemoryRunEventStore()
    for event_id, digest in (("e1", event_digest(event(2))), ("e2", event_digest(event(1)))):
        with pytest.raises(EventStoreError) as caught:
            store.append_once(event_id, digest, event(1))
        assert caught.value.code == "event_payload_digest_mismatch"
    assert list(store.replay("run")) == []


def test_a_file_takes_an_event_once_whoever_appends_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    one, two = JsonlRunEventStore(path), JsonlRunEventStore(path)
    assert isinstance(one, IdempotentRunEventStore)
    first = one.append_once("e1", event_digest(event(1)), event(1))
    assert (first.inserted, first.cursor) == (True, {"sequence": 1})
    with path.open("ab") as file:  # somebody was killed in the middle of a line
        file.write(b'{"version":"v1","ty')
    for store in (two, one):
        result = store.append_once("e2", event_digest(event(2)), event(2))
        assert (result.inserted, result.cursor) == (store is two, {"sequence": 3})
    assert two.append_once("e1", event_digest(event(1)), event(1)).inserted is False
    other = event(1, agent_name="other")
    with pytest.raises(EventStoreError) as caught:
        one.append_once("e1", event_digest(other), other)
    assert caught.value.code == "event_identity_conflict"
    path.unlink()  # the file was moved away: a new one begins
    assert one.append_once("e1", event_digest(event(1)), event(1)).cursor == {"sequence": 1}
