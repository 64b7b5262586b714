"""Claims of this process: kept whatever happens to their renewal, and over once they were given back."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Claim
from vv_agent.errors import ClaimLost
from vv_agent.runtime.lease import LeaseKeeper, steady_clock
from vv_agent.runtime.recipe import CycleRecipe
from vv_agent.settings import Settings
from vv_agent.workers.station import Station


class Stumbling(MemoryStore):
    """Its first renewal fails in a way that no store should."""

    def __init__(self) -> None:
        super().__init__()
        self.renewals = 0
        self.again = threading.Event()

    def renew(self, *args: Any, **more: Any) -> Any:
        self.renewals += 1
        if self.renewals == 1:
            raise OSError(24, "Too many open files")
        self.again.set()
        return super().renew(*args, **more)


def test_claims_are_renewed_on_after_an_unexpected_error() -> None:
    store = Stumbling()
    keeper = LeaseKeeper(store, 60)
    try:
        keeper.hold(Claim("k", 1, "t", 1, 1), steady_clock())
        assert store.again.wait(10)
    finally:
        keeper.close()


def test_a_keeper_that_could_not_start_its_thread_starts_one_for_the_next_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keeper = LeaseKeeper(MemoryStore(), 30_000)
    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", _no_thread)
        with pytest.raises(RuntimeError):
            keeper.hold(Claim("k", 1, "t", 1, 1), steady_clock())
    try:
        keeper.hold(Claim("k", 1, "u", 1, 1), steady_clock())
        assert any(thread.name == "vv-leases" for thread in threading.enumerate())
    finally:
        keeper.close()


def test_whoever_still_works_under_a_claim_that_was_given_back_may_act_no_more() -> None:
    keeper = LeaseKeeper(MemoryStore(), 30_000)
    try:
        old = keeper.hold(Claim("k", 1, "t", 1, 1), steady_clock())
        other = keeper.hold(Claim("other", 1, "t", 1, 1), steady_clock())
        old.check()
        keeper.release(old)
        with pytest.raises(ClaimLost):
            old.check()
        new = keeper.hold(Claim("k", 1, "u", 1, 1), steady_clock())
        keeper.release(old)
        new.check()
        other.check()
        assert keeper.poke("k")
    finally:
        keeper.close()


def test_a_slot_is_free_again_when_no_thread_could_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    station = Station(store, Settings(queue="q"), queues=("q",), slots=1)
    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", _no_thread)
        with pytest.raises(RuntimeError):
            station.start(CycleRecipe(key="k", cycle=1, definition="0" * 64, store=store.id, queue="q"))
    assert station.free == 1


def test_a_worker_goes_on_after_an_unexpected_error() -> None:
    station = Station(MemoryStore(), Settings(queue="q"), queues=("q",), slots=1)
    station.stopping.set()  # so that it does not pause

    def work() -> None:
        raise OSError(24, "Too many open files")

    assert not station.patiently(work)


def _no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
