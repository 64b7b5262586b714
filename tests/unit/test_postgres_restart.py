"""A PostgreSQL server that was restarted: its idle connections are gone, and callers need not know."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import servers
from tests.contract.test_store import new
from vv_agent.checkpoint.sql import SqlStore
from vv_agent.errors import StoreError

NAME = f"vv-restart-{uuid.uuid4().hex[:12]}"


class Meeting:
    """A clock that, while `parties` are set, is read by that many transactions at the same moment."""

    parties: threading.Barrier | None = None

    def __call__(self) -> int:
        if self.parties is not None:
            self.parties.wait(10)
        return 1_800_000_000_000


@pytest.fixture
def meeting() -> Meeting:
    return Meeting()


@pytest.fixture
def store(meeting: Meeting) -> Iterator[SqlStore]:
    if servers.postgres_url() is None:
        pytest.skip(servers.MISSING["postgres"])
    with servers.postgres_schema() as url:
        opened = SqlStore(f"{url}&application_name={NAME}", clock=meeting)
        yield opened
        opened.close()


def fill(store: SqlStore, meeting: Meeting, connections: int = 6) -> None:
    """Leave that many idle connections behind."""
    meeting.parties = threading.Barrier(connections)
    with ThreadPoolExecutor(connections) as threads:
        for done in [threads.submit(store.now) for _ in range(connections)]:
            done.result()
    meeting.parties = None


def disconnect() -> int:
    """End the store's connections, as a restart does; how many there were."""
    import psycopg

    url = servers.postgres_url()
    assert url is not None
    with psycopg.connect(url, autocommit=True) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s", [NAME]
        )
        return len(ended.fetchall())


def test_nobody_notices_that_idle_connections_were_lost(store: SqlStore, meeting: Meeting) -> None:
    store.create([new()])
    fill(store, meeting)
    assert disconnect() >= 6
    assert store.load("k") is not None
    fill(store, meeting)
    assert disconnect() >= 6
    (head,) = store.create([new("second")])
    assert head.key == "second"
    assert disconnect() <= 2, "the lost ones are not kept"


def test_a_connection_lost_in_the_middle_of_a_first_transaction_is_an_error_and_the_next_call_works(
    store: SqlStore, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create([new()])
    fill(store, meeting)
    disconnect()
    store.load("k")
    reads: list[int] = []

    def lost_each_time(self: Meeting) -> int:
        reads.append(disconnect())
        return 0

    monkeypatch.setattr(Meeting, "__call__", lost_each_time)
    with pytest.raises(StoreError) as caught:
        store.create([new("third")])
    assert caught.value.code == "store_unavailable"
    assert len(reads) == 2, "once on the idle connection, once on a new one"
    monkeypatch.undo()
    assert store.load("third") is None
    assert store.create([new("third")])
