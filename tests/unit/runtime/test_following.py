"""Following runs: one that cannot be read disturbs no other, and what does not change is not read."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Change, Claimed, Commit, NewRun, Seen, Snapshot
from vv_agent.errors import CheckpointError, StoreError
from vv_agent.runtime.body import Body
from vv_agent.runtime.eventlog import Emitted, Origin, event_entries
from vv_agent.runtime.feed import EventFeed
from vv_agent.runtime.tail import Tailer

ORIGIN = Origin("", "a", 0, 1, 0)
STARTED = Emitted(ORIGIN, "agent_started", 0, 1.0, {}, {})
CREATED = {"cycle_index": 0, "checkpoint_key": "k", "resume_attempt": 1}


class CountingStore(MemoryStore):
    """Counts the records that are read, and those with their blobs."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.with_blobs = 0
        self.waits = 0
        self.waited = threading.Condition()

    def load(self, key: str, seen: Seen | None = None) -> Snapshot | None:
        snapshot = super().load(key, seen)
        self.loads.put(key)
        self.with_blobs += snapshot is not None and snapshot.blobs is not None
        return snapshot

    def wait(self, version: int, timeout: float) -> int:
        with self.waited:
            self.waits += 1
            self.waited.notify_all()
        return super().wait(version, timeout)

    def rounds(self, more: int) -> None:
        """Wait until the follower slept that many times more."""
        with self.waited:
            end = self.waits + more
            assert self.waited.wait_for(lambda: self.waits >= end, 10)


class Follower:
    """What one reader got."""

    def __init__(self, tailer: Tailer, key: str) -> None:
        self.feed = EventFeed()
        self.ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        tailer.follow(key, _body(key), self.feed, self.ended.put)

    def types(self) -> list[str]:
        return [event.type for event in self.feed.events]


def _body(key: str) -> Body:
    return Body(f"trace_{key}", f"run_{key}", "a", checkpointed=True, live=False)


def create(store: MemoryStore, key: str, events: Sequence[Emitted], run_id: str | None = None) -> None:
    events = [event._replace(origin=Origin(f"run_{key}", "a", 0, 1, 0)) for event in events]
    store.create([
        NewRun(
            key=key, run_id=run_id or f"run_{key}", definition="d", definition_body=b"d", body=_body(key).pack(),
            queue="q", events=(*event_entries(events),), blobs={"state": b"x"},
        )
    ])  # fmt: skip


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


def test_a_run_that_cannot_be_read_is_reported_and_others_are_followed_on(store: CountingStore) -> None:
    create(store, "good", [STARTED])
    create(store, "bad", [Emitted(ORIGIN, "agent_started", 0, 1.0, {"nonsense": 1}, {})])
    tailer = Tailer(store)
    good, bad = Follower(tailer, "good"), Follower(tailer, "bad")
    error = bad.ended.get(timeout=10)
    assert isinstance(error, StoreError)
    assert error.code == "store_corrupt"
    assert "'bad'" in error.message
    store.delete("good")
    end = good.ended.get(timeout=10)
    assert isinstance(end, CheckpointError)
    assert end.code == "checkpoint_not_found"
    assert good.types() == ["agent_started"]


def test_an_event_of_a_newer_type_is_left_out(store: CountingStore) -> None:
    create(
        store,
        "k",
        [
            STARTED,
            Emitted(ORIGIN, "hologram", 1, 1.0, {}, {}),
            Emitted(ORIGIN, "checkpoint_created", 2, 1.0, CREATED, {}),
        ],
    )
    follower = Follower(Tailer(store), "k")
    store.rounds(5)
    store.delete("k")
    assert follower.ended.get(timeout=10).code == "checkpoint_not_found"
    assert follower.types() == ["agent_started", "checkpoint_created"]


def test_an_event_of_a_newer_type_is_no_gap(store: CountingStore) -> None:
    create(store, "k", [STARTED])
    follower = Follower(Tailer(store), "k")
    store.rounds(5)
    answer = store.claim("k", 1, "a" * 32, owner="h/1/1", lease=30_000)
    assert isinstance(answer, Claimed)
    origin = Origin("run_k", "a", 1, 1, 1)
    events = [Emitted(origin, "cycle_started", 0, 1.0, {}, {}), Emitted(origin, "hologram", 1, 1.0, {}, {})]
    later = [Emitted(origin, "llm_started", 2, 1.0, {"model": "m"}, {})]
    store.save(answer.claim, Change(1, Commit(), events=(*event_entries([*events, *later]),)))
    store.rounds(6)
    store.delete("k")
    assert follower.ended.get(timeout=10).code == "checkpoint_not_found"
    assert follower.types() == ["agent_started", "cycle_started", "llm_started"]


def test_another_run_under_the_same_key_is_not_followed(store: CountingStore) -> None:
    create(store, "k", [STARTED])
    follower = Follower(Tailer(store), "k")
    store.rounds(3)
    store._records.clear()
    create(store, "k", [STARTED, Emitted(ORIGIN, "checkpoint_created", 1, 1.0, CREATED, {})], run_id="run_other")
    assert follower.ended.get(timeout=10).code == "checkpoint_not_found"
    assert follower.types() == ["agent_started"]


def test_a_reader_that_fails_when_it_is_told_disturbs_no_other(store: CountingStore) -> None:
    def fail(end: object) -> None:
        raise RuntimeError("no")

    create(store, "bad", [STARTED])
    create(store, "good", [STARTED])
    tailer = Tailer(store)
    tailer.follow("bad", _body("bad"), EventFeed(), fail)
    good = Follower(tailer, "good")
    store.delete("bad")
    store.rounds(3)
    store.delete("good")
    assert good.ended.get(timeout=10).code == "checkpoint_not_found"


def test_a_follower_whose_thread_died_is_started_again(store: CountingStore) -> None:
    create(store, "k", [STARTED])
    tailer = Tailer(store)
    dead = threading.Thread(target=lambda: None)
    dead.start()
    dead.join()
    tailer._thread = dead
    follower = Follower(tailer, "k")
    store.delete("k")
    assert follower.ended.get(timeout=10).code == "checkpoint_not_found"


def test_runs_that_do_not_change_are_hardly_read(store: CountingStore) -> None:
    keys = [f"k{n}" for n in range(20)]
    for key in keys:
        create(store, key, [STARTED])
    tailer = Tailer(store)
    followers = [Follower(tailer, key) for key in keys]
    store.rounds(4)
    assert [follower.types() for follower in followers] == [["agent_started"]] * 20
    before = store.loads.qsize()
    store.rounds(15)  # half a second
    assert store.loads.qsize() - before <= 40
    assert store.with_blobs <= 20
    for follower in followers:
        store.delete(follower.feed.events[0].run_id.removeprefix("run_"))
        assert follower.ended.get(timeout=10).code == "checkpoint_not_found"
