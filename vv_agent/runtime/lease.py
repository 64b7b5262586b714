"""Leases: one thread per process renews all its claims, and whoever holds one knows when it is over.

A worker trusts its own clock (CLOCK_BOOTTIME where it exists, which counts sleep): a claim is lost at the start of the
last successful renewal plus the lease minus a margin, whatever the store thinks. `Hold.check` is called right before
every effect.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from vv_agent.checkpoint.record import Claim, Presence
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.errors import ClaimLost, StoreError

log = logging.getLogger("vv_agent.lease")

News: TypeAlias = Literal["done", "signal", "lost", "stop"]
SHOWN_EVERY = 3.0
"""Seconds between two signs of life of a worker, which counts as present for ten."""
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def steady_clock() -> float:
    """Seconds that also pass while the machine sleeps."""
    return time.clock_gettime(_BOOTTIME) if _BOOTTIME is not None else time.monotonic()


def renewal_interval(lease: int) -> float:
    """Seconds between renewals of a lease in ms: a third of it, at least 1 us, at most 30 s, strictly below it
    (spec/12)."""
    return max(1e-6, min(30.0, lease / 3000))


class Hold:
    """A claim while this process works under it. `news` wakes the thread that waits for a call of the cycle."""

    def __init__(self, claim: Claim, lease: int, taken: float) -> None:
        self.claim = claim
        self.lease = lease
        self.news: queue.SimpleQueue[tuple[News, Any]] = queue.SimpleQueue()
        self.signalled = False
        self.stopped: float | None = None
        """When (steady clock) this process was told to stop."""
        self._lost = False
        self.deadline = 0.0
        self.renewed(taken)

    def renewed(self, at: float) -> None:
        """A renewal that began `at` succeeded."""
        self.deadline = at + self.lease / 1000 * 0.9

    @property
    def ends(self) -> float:
        """When (steady clock) the lease is over in the store, if nothing renews it."""
        return self.deadline + self.lease / 1000 * 0.1

    @property
    def lost(self) -> bool:
        return self._lost or steady_clock() >= self.deadline

    def check(self) -> None:
        """Raise `ClaimLost` once this process may not act under the claim any more."""
        if self.lost:
            raise ClaimLost(f"the claim on run {self.claim.key!r} is over; this process starts no further effect")

    def end(self) -> None:
        """The claim was given back: whoever still works under it (an abandoned tool) may act no more."""
        self._lost = True

    def lose(self) -> None:
        self._lost = True
        self.news.put(("lost", None))

    def signal(self) -> None:
        if not self.signalled:
            self.signalled = True
            self.news.put(("signal", None))

    def stop(self) -> None:
        if self.stopped is None:
            self.stopped = steady_clock()
            self.news.put(("stop", None))


class LeaseKeeper:
    """Renews every hold of this process, a third of a lease apart, in one call to the store.

    `presence` is asked each time for what the process shows of itself (None: it is no worker).
    """

    def __init__(
        self, store: CheckpointStore, lease: int, presence: Callable[[], Presence | None] = lambda: None
    ) -> None:
        self.lease = lease
        self._store = store
        self._presence = presence
        self._holds: dict[str, Hold] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._shown = False
        self._closed = False

    def hold(self, claim: Claim, taken: float) -> Hold:
        """Keep a claim that was asked for at `taken` (steady clock)."""
        hold = Hold(claim, self.lease, taken)
        with self._changed:
            self._start()  # the thread looks once it has the lock
            self._holds[claim.key] = hold
        return hold

    def release(self, hold: Hold) -> None:
        """Keep a claim no longer; it is over, or was given back."""
        hold.end()
        with self._changed:
            if self._holds.get(hold.claim.key) is hold:
                del self._holds[hold.claim.key]

    def holds(self, key: str) -> bool:
        """Whether this process works under a claim on the run."""
        with self._changed:
            return key in self._holds

    def show(self) -> None:
        """Show the process now and from then on, also while it holds nothing."""
        with self._changed:
            self._shown = True
            self._start()
        self.renew()

    def poke(self, key: str) -> bool:
        """A signal was posted to a run by this very process: do not wait for the renewal that would tell. False when
        the process does not hold the run."""
        with self._changed:
            hold = self._holds.get(key)
        if hold is not None:
            hold.signal()
        return hold is not None

    def stop_all(self) -> None:
        """Tell every cycle that the process stops."""
        with self._changed:
            holds = list(self._holds.values())
        for hold in holds:
            hold.stop()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)

    def renew(self, *, presence_only: bool = False) -> None:
        """Renew everything once, or only show the process."""
        with self._changed:
            holds = {} if presence_only else dict(self._holds)
        began = steady_clock()
        answer = self._store.renew([h.claim for h in holds.values()], lease=self.lease, presence=self._presence())
        for key, hold in holds.items():
            if key in answer.lost:
                with self._changed:
                    current = self._holds.get(key) is hold
                if current:  # else it was released while the store answered
                    hold.lose()
                continue
            hold.renewed(began)
            if key in answer.signalled:
                hold.signal()

    def _start(self) -> None:
        if self._closed or (self._thread is not None and self._thread.is_alive()):
            return
        thread = threading.Thread(target=self._run, name="vv-leases", daemon=True)
        thread.start()
        self._thread = thread

    def _run(self) -> None:
        due = steady_clock() + renewal_interval(self.lease)
        while True:
            tick = min(SHOWN_EVERY, max(0.0, due - steady_clock())) if self._shown else max(0.0, due - steady_clock())
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, tick):
                    return
                if not self._holds and not self._shown:
                    self._thread = None
                    return
            renews = steady_clock() >= due
            try:
                self.renew(presence_only=not renews)
            except Exception as error:  # every hold runs to its own deadline; the next round may succeed
                if not isinstance(error, StoreError):
                    log.exception("the claims of this process were not renewed; trying again")
                due = steady_clock() + min(renewal_interval(self.lease), 1.0)
            else:
                due = steady_clock() + renewal_interval(self.lease) if renews else due
