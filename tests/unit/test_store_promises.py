"""What a store promises beyond the answers of its verbs: what survives power loss, and which clock it goes by."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.test_store import LEASE, claimed, new
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import NewRun, Signal
from vv_agent.checkpoint.store import T, Transaction, open_store
from vv_agent.errors import StoreError


class NotedStore(MemoryStore):
    """Notes which transactions were to survive power loss."""

    def __init__(self) -> None:
        super().__init__()
        self.durable: list[bool] = []

    def _atomically(self, work: Callable[[Transaction], T], *, write: bool = True, durable: bool = False) -> T:
        if write:
            self.durable.append(durable)
        return super()._atomically(work, write=write, durable=durable)


def test_a_new_run_and_a_posted_signal_survive_power_loss() -> None:
    store = NotedStore()
    store.create([new()])
    store.post("k", Signal("s1", "cancel", b""))
    store.post("k", Signal("s2", "steer", b"left"))
    claimed(store)
    assert store.durable == [True, True, True, False], "a claim is made again"


@pytest.mark.parametrize("step", [40, -40])
def test_a_step_of_the_wall_clock_ends_no_lease_of_a_run_in_memory(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.time_ns() // 1_000_000
    store = MemoryStore()
    store.create([new()])
    claim = claimed(store).claim
    assert before <= claim.lease_until - LEASE <= before + 5_000, "times read as wall time"
    wall = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: wall() + step * 1_000_000_000)
    assert store.renew([claim], lease=LEASE).lost == frozenset()
    assert abs(store.now() - before) < 5_000


def test_a_store_whose_file_is_gone_says_so(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/here/runs.db")
    run = NewRun("k", "run_1", "1" * 64, b"d", b"body")
    store.create([run])
    shutil.move(tmp_path / "here", tmp_path / "away")
    with pytest.raises(StoreError, match="was deleted or replaced while it was open"):
        store.delete("k")
    shutil.move(tmp_path / "away", tmp_path / "here")
    assert store.delete("k")
    store.close()


def test_a_closed_store_says_so_and_opens_nothing_again(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    store.now()
    store.close()
    with pytest.raises(StoreError, match="store_closed"):
        store.now()
