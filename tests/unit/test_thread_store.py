"""Threads, turns and items in memory, SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests import servers
from vv_agent import Message
from vv_agent.app_server import MemoryThreadStore, SqlThreadStore, open_thread_store
from vv_agent.app_server.protocol import AppItem, AppThread, AppTurn
from vv_agent.app_server.sql import ItemConflict, TurnRecord
from vv_agent.errors import StoreError


class Place:
    """Where a store is opened, and opened again."""

    def __init__(self, url: str | None) -> None:
        self.url = url
        self.opened: list[SqlThreadStore] = []

    def open(self) -> SqlThreadStore:
        self.opened.append(open_thread_store(self.url))
        return self.opened[-1]

    def close(self) -> None:
        for store in self.opened:
            store.close()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        if request.param == "sqlite":
            url = str(tmp_path / "threads.db")
        elif servers.postgres_url() is None:
            pytest.skip(servers.MISSING["postgres"])
        else:
            url = stack.enter_context(servers.postgres_schema())
        made = Place(url)
        stack.callback(made.close)
        yield made


def item(name: str, thread: AppThread, text: str = "x") -> AppItem:
    return AppItem(
        item_id=name, thread_id=thread.thread_id, turn_id="turn_1", type="agentMessage", status="completed",
        payload={"text": text}, created_at=1.5, updated_at=1.5,
    )  # fmt: skip


def turn(store: SqlThreadStore, thread: AppThread, status: str = "running") -> AppTurn:
    return AppTurn.from_wire({
        "turnId": store.new_turn_id(), "threadId": thread.thread_id, "runId": None, "status": status, "startedAt": 1,
        "completedAt": None, "input": [{"type": "text", "text": "é\ud800".encode("utf-16", "surrogatepass").hex()}],
    })  # fmt: skip


def test_everything_is_there_when_it_is_opened_again(place: Place) -> None:
    store = place.open()
    thread = store.new_thread("default", None, {"a": [1, None]}, 1.25)
    record = TurnRecord(turn(store, thread), "key/1", {"m": "é"})
    store.put_turn(record)
    kept = store.add_item(item("item_1", thread))
    store.put_thread(thread.model_copy(update={"status": "running"}))
    store.session(thread.thread_id).add_items([Message("user", "hello")])
    store.close()
    store = place.open()
    assert store.thread(thread.thread_id) == thread  # idle again
    assert store.turns_of("running") == [record]
    assert kept is not None
    assert store.page(thread.thread_id, 0, 10) == ([record.turn], [kept], 2, None)
    assert [message.content for message in store.session(thread.thread_id).get_items()] == ["hello"]
    assert store.new_thread("b", "/tmp", {}, 2).thread_id == "thread_2"
    assert store.new_turn_id() == "turn_2"


def test_one_server_has_it_at_a_time(place: Place) -> None:
    store = place.open()
    with pytest.raises(StoreError) as refusal:
        place.open()
    assert refusal.value.code == "store_in_use"
    store.close()
    assert place.open().threads(None, 0, 10) == []


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_an_item_is_kept_once_and_never_replaced(kind: str, tmp_path: Path) -> None:
    store = MemoryThreadStore() if kind == "memory" else SqlThreadStore(f"sqlite:///{tmp_path}/t.db")
    thread = store.new_thread("default", None, {}, 1)
    assert store.add_item(item("item_1", thread)) == item("item_1", thread).model_copy(update={"seq": 1})
    assert store.add_item(item("item_1", thread)) is None
    with pytest.raises(ItemConflict):
        store.add_item(item("item_1", thread, "other"))
    assert store.page(thread.thread_id, 0, 10).last_seq == 1
    assert store.seq_of(thread.thread_id, "item_1") == 1
    assert store.seq_of(thread.thread_id, "item_2") == 0
    store.close()


def test_a_page_ends_where_it_is_large_enough() -> None:
    store = MemoryThreadStore()
    thread = store.new_thread("default", None, {}, 1)
    for number in range(7):
        store.add_item(item(f"item_{number}", thread, "x" * 1_000_000))
    store.put_turn(TurnRecord(turn(store, thread, "completed")))
    first = store.page(thread.thread_id, 0, 100)
    assert (len(first.items), first.turns, first.last_seq, first.next_after) == (5, [], 8, 5)
    second = store.page(thread.thread_id, 5, 100)
    assert (len(second.items), len(second.turns), second.next_after) == (2, 1, None)
    store.close()


def test_a_page_counts_its_turns() -> None:
    store = MemoryThreadStore()
    thread = store.new_thread("default", None, {}, 1)
    turns = [turn(store, thread, "completed") for _ in range(7)]
    for one in turns:
        store.put_turn(TurnRecord(one.model_copy(update={"input": [{"text": "x" * 1_000_000}]})))
    kept = store.add_item(item("item_1", thread))
    first = store.page(thread.thread_id, 0, 100)
    assert ([one.turn_id for one in first.turns], first.items) == ([one.turn_id for one in turns[:5]], [])
    assert (first.last_seq, first.next_after) == (8, 5)
    second = store.page(thread.thread_id, 5, 100)
    assert (len(second.turns), second.items, second.next_after) == (2, [kept], None)
    few = store.page(thread.thread_id, 0, 2)
    assert (len(few.turns), few.next_after) == (2, 2)
    store.close()


@pytest.mark.parametrize("other", [False, True], ids=["alone", "another server"])
def test_a_lock_that_went_with_its_connection_is_taken_again_or_missed(other: bool) -> None:
    if servers.postgres_url() is None:
        pytest.skip(servers.MISSING["postgres"])
    with servers.postgres_schema() as url, closing(Place(url)) as place:
        store = place.open()
        thread = store.new_thread("default", None, {}, 1)
        pid = store._held.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        with store._transaction() as tx:
            tx.exec_driver_sql(f"SELECT pg_terminate_backend({pid}, 10000)")
        if other:
            assert place.open().thread(thread.thread_id) is not None
        for _ in range(2):
            if other:
                with pytest.raises(StoreError) as lost:
                    store.put_thread(thread)
                assert lost.value.code == "store_in_use"
            else:
                store.put_thread(thread)
                with pytest.raises(StoreError) as busy:
                    place.open()
                assert busy.value.code == "store_in_use"
        if other:
            place.opened[1].close()
            store.put_thread(thread)
