"""A SQLite store remembers the rows it wrote last; whatever others do to them meanwhile, it acts on the stored ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from vv_agent.checkpoint.record import Change, Claimed, Commit, Filter, NewRun, Progress, Signal, State
from vv_agent.checkpoint.sql import SqlStore
from vv_agent.errors import ClaimLost


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[SqlStore, SqlStore]]:
    """Two stores on one file, as two processes have them."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    one, other = SqlStore(url), SqlStore(url)
    yield one, other
    one.close()
    other.close()


def new(run_id: str = "run_1") -> NewRun:
    return NewRun("k", run_id, "d" * 64, b"{}", b"body")


def claimed(store: SqlStore, cycle: int = 1, token: str = "a" * 32, lease: int = 30_000) -> Claimed:
    answer = store.claim("k", cycle, token, owner="host/1/1", lease=lease)
    assert isinstance(answer, Claimed)
    return answer


def test_a_signal_of_another_process_is_seen_by_the_next_save(stores: tuple[SqlStore, SqlStore]) -> None:
    mine, other = stores
    mine.create([new()])
    claim = claimed(mine).claim
    other.post("k", Signal("s1", "cancel"))
    saved = mine.save(claim, Change(1, Progress()))
    assert [signal.id for signal in saved.signals] == ["s1"]


def test_a_claim_that_another_process_took_over_is_lost_here(stores: tuple[SqlStore, SqlStore]) -> None:
    mine, other = stores
    mine.create([new()])
    stale = claimed(mine, lease=0).claim
    claimed(other, token="b" * 32)
    with pytest.raises(ClaimLost):
        mine.save(stale, Change(1, Commit()))


def test_a_key_that_was_deleted_and_made_again_is_another_run(stores: tuple[SqlStore, SqlStore]) -> None:
    mine, other = stores
    mine.create([new()])
    assert other.delete("k")
    assert mine.load("k") is None
    other.create([new("run_2")])
    snapshot = mine.load("k")
    assert snapshot is not None
    assert snapshot.head.run_id == "run_2"


def test_a_refused_save_leaves_nothing_behind(stores: tuple[SqlStore, SqlStore]) -> None:
    mine, other = stores
    mine.create([new()])
    claim = claimed(mine).claim

    def refused() -> None:
        with mine._transaction(write=True) as tx:
            head = tx.head("k")
            assert head is not None
            tx.update(head._replace(status="nonsense"))
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        refused()
    saved = mine.save(claim, Change(1, Progress(), log=(b"x",)))
    snapshot = other.load("k")
    assert snapshot is not None
    assert (snapshot.head.status, snapshot.head.revision) == ("running", saved.head.revision)


def test_the_look_for_dead_neighbours_walks_unfinished_runs_only(stores: tuple[SqlStore, SqlStore]) -> None:
    mine, _ = stores
    mine.create([new()])
    claimed(mine)
    plans: list[str] = []
    connection = mine._connections.take()
    mine._connections.give(connection)
    connection.driver.set_trace_callback(plans.append)
    assert [head.key for head in mine.find(Filter(states=frozenset({State.CLAIMED}), host="host"))] == ["k"]
    connection.driver.set_trace_callback(None)
    (query,) = [text for text in plans if text.startswith("SELECT vv_run.id")]
    plan = connection.driver.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
    assert any("vv_run_due" in step[3] for step in plan)
