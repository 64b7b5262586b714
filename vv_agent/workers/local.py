"""The worker without a broker: takes due runs from the store and advances them on threads."""

from __future__ import annotations

import logging
import os
import threading
import time

from vv_agent import process
from vv_agent.checkpoint.record import Commit, Filter, Head, Presence, State
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.dispatch.store import WakeSocket
from vv_agent.errors import StoreError
from vv_agent.runtime.advance import Advanced, advance
from vv_agent.runtime.owner import is_dead, process_host
from vv_agent.runtime.recipe import CycleRecipe
from vv_agent.settings import Settings

log = logging.getLogger("vv_agent.worker")

_POLL = 0.25
"""Seconds between looks at what is due; the hint on the socket is faster, this is the truth."""
_NEIGHBOURS = 1.0
"""Seconds between looks at the claims of dead processes on this host."""
_GO_ON_HOLD_MS = 2_000
"""How long a commit leaves the run to the worker that goes on with it itself."""
_TAKE_HOLD_MS = 2_000
"""How long a run that was taken is left to this worker to claim, which is a matter of milliseconds unless it dies."""
_ENOUGH = 20
"""Cycles in a row of one run before others that may wait are looked at."""


class LocalWorker:
    """One worker process. `run` returns after `stop` (a signal handler may call it) once its cycles are saved or
    given back."""

    def __init__(self, store: CheckpointStore, settings: Settings, *, queues: tuple[str, ...], threads: int) -> None:
        self._queues = queues
        self._threads = threads
        self._socket = WakeSocket()
        self._id = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._active = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._swept = 0.0
        self.engine = process.make_engine(store, settings, queues=frozenset(queues), presence=self._presence)
        self._store = self.engine.store

    def run(self) -> None:
        """Work until `stop`."""
        self._patiently(self.engine.keeper.show)
        while not self._stop.is_set():
            if not self._patiently(self._round):
                self._socket.wait(_POLL)
        self._finish()

    def stop(self) -> None:
        """Take no new cycles; model calls are aborted and given back, tools get their grace."""
        self._stop.set()
        self.engine.stop()
        self._socket.nudge()

    def _round(self) -> bool:
        """Start what is due, as far as there are free threads; True if something was started."""
        self._sweep()
        free = self._free()
        if free < 1 or self.engine.helpers.exhausted:
            return False
        heads = self._store.take_due(self._queues, free, hold=_TAKE_HOLD_MS)
        for head in heads:
            self._start(head)
        return bool(heads)

    def _free(self) -> int:
        with self._lock:
            return self._threads - self._active

    def _start(self, head: Head) -> None:
        recipe = CycleRecipe.of(head, self._store.id)
        with self._lock:
            self._active += 1
        self.engine.helpers.submit(lambda: self._carry(recipe), lambda call: self._done())

    def _done(self) -> None:
        with self._lock:
            self._active -= 1
        self._socket.nudge()

    def _carry(self, recipe: CycleRecipe) -> None:
        """Advance a run, cycle after cycle while nobody else waits for the thread."""
        for cycles in range(1, 1 << 30):
            goes_on = self._free() > 0 or cycles % _ENOUGH != 0
            try:
                step = advance(self.engine, recipe, commit=lambda going=goes_on: self._commit(going))  # type: ignore[misc]
            except StoreError as error:
                log.warning("cycle %s of %s was not saved: %s", recipe.cycle, recipe.key, error)
                return
            except Exception:
                log.exception("cycle %s of %s failed in the worker", recipe.cycle, recipe.key)
                return
            _tell(recipe, step)
            if step.why == "stopping":  # taken, and not claimed: others need not wait for it
                self._patiently(lambda given=recipe: self._store.defer(given.key, given.cycle, "the worker stopped", 0))
            if step.what != "committed" or not goes_on or self._stop.is_set():
                return
            recipe = step.next[0]

    def _commit(self, goes_on: bool) -> Commit:
        return Commit(due_in=_GO_ON_HOLD_MS if goes_on and not self._stop.is_set() else 0)

    def _sweep(self) -> None:
        """End the claims of processes of this host that are no more."""
        now = time.monotonic()
        if now - self._swept < _NEIGHBOURS:
            return
        self._swept = now
        held = self._store.find(Filter(states=frozenset({State.CLAIMED}), host=process_host(), limit=1000))
        for owner in {head.owner for head in held if head.owner is not None}:
            if owner != self.engine.owner and is_dead(owner):
                for key in self._store.expire(owner):
                    log.warning("took the claim on %s from a dead process (%s)", key, owner)

    def _presence(self) -> Presence:
        queues = () if self._stop.is_set() else self._queues  # one that stops serves none
        return Presence(self._id, queues, max(0, self._free()), self._socket.path)

    def _patiently(self, work: object) -> bool:
        """Do work on the store; a store that does not answer is waited for."""
        assert callable(work)
        try:
            return bool(work())
        except StoreError as error:
            log.warning("%s", error)
            self._stop.wait(1.0)
            return False

    def _finish(self) -> None:
        self._patiently(self.engine.keeper.renew)
        end = time.monotonic() + self.engine.grace + 5.0
        while time.monotonic() < end:
            with self._lock:
                if self._active == 0:
                    break
            self._socket.wait(0.1)
        self.engine.close()
        self._socket.close()


_LEVELS = {"refused": logging.DEBUG, "deferred": logging.WARNING}
"""A run that this worker cannot serve waits for an operator to give it what it lacks; he must see that."""


def _tell(recipe: CycleRecipe, step: Advanced) -> None:
    level = _LEVELS.get(step.what, logging.INFO)
    log.log(level, "cycle %s of %s: %s%s", recipe.cycle, recipe.key, step.what, f" ({step.why})" if step.why else "")
