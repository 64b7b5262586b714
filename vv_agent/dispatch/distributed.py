"""The distributed backend: workers of other processes advance the run; with none in sight, this process helps
itself."""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from vv_agent.checkpoint.record import Head, State
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.checkpoint.transitions import unserved
from vv_agent.dispatch.base import CycleDispatcher, hint, unfinished
from vv_agent.errors import StoreError
from vv_agent.runtime.advance import advance
from vv_agent.runtime.context import Engine
from vv_agent.runtime.owner import is_dead
from vv_agent.runtime.recipe import CycleRecipe
from vv_agent.runtime.tail import rests

log = logging.getLogger("vv_agent.dispatch")

PRESENT = 10.0
"""Seconds after its last sign of life for which a worker counts as present."""


class DistributedBackend:
    """Sends the hint and lets workers do the rest.

    When no worker of the queue has shown itself for `patience` seconds (at once if none ever did), or those that have
    refuse the run for as long, and this process can load what the run needs, it says so once on stderr and works on
    the run itself: same recipe, same record.
    `queue` is where its new runs go (None: that of the settings).
    """

    local = False

    def __init__(
        self, dispatcher: CycleDispatcher, *, queue: str | None = None, fallback: bool = True, patience: float = PRESENT
    ) -> None:
        self.dispatcher = dispatcher
        self.queue = queue
        self.fallback = fallback
        self.patience = patience

    def drive(self, engine: Engine, recipe: CycleRecipe, *, resume: bool = False) -> None:
        """Hand the run over; returns at once."""
        del resume
        engine.probe("dispatch", "before")
        waits = self.dispatcher.hold_ms > 0
        if not self.dispatcher.dispatch(recipe) and waits:  # for a message that does not come: due at once instead
            with suppress(StoreError):
                engine.store.defer(recipe.key, recipe.cycle, "the broker took no message", 0)
        engine.probe("dispatch", "after")
        if self.fallback:
            _lookout(engine).watch(Watched(recipe.key, recipe.queue, self.patience))


@dataclass
class Watched:
    """One run that was given to workers of a queue, and what its starter made of it so far."""

    key: str
    queue: str | None
    patience: float
    look_at: float = 0.0
    """When to read its record again (steady clock), as long as there are workers."""
    refused: bool = False
    """The workers that are there cannot take it: from then on it is ours."""
    said: bool = False
    helped: bool = False
    """A thread of this process works on it."""


class Lookout:
    """Watches the runs of one engine that workers are to take, from one thread, which lives while there are any. A run
    that no worker takes gets a thread that works on it here."""

    _PAUSE = 0.25
    """Seconds between looks at who is there, and at the runs that nobody serves."""
    _LOOK = 2.0
    """Seconds between looks at a run that workers are there for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.store
        self._runs: dict[int, Watched] = {}
        self._changed = threading.Condition()
        self._new = False
        self._thread: threading.Thread | None = None

    def watch(self, run: Watched) -> None:
        """Until the run is over: whenever no worker shows itself, advance it here."""
        with self._changed:
            self._runs[id(run)] = run
            self._new = True
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="vv-fallback", daemon=True)
                self._thread.start()

    def _watch(self) -> None:
        pause = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._new, pause)
                self._new = False
                runs = list(self._runs.values())
                if not runs or self._engine.stopping:
                    self._thread = None
                    return
            pause = self._PAUSE
            try:
                self._round(runs)
            except StoreError as error:  # whoever reads a run is told; it may come back
                if error.code == "store_closed":
                    self._forget(runs)
                pause = 1.0
            except Exception:  # whatever it was, the other runs are still watched
                log.exception("runs given to workers could not be looked at for a moment")
                pause = 1.0

    def _forget(self, runs: list[Watched]) -> None:
        with self._changed:
            for run in runs:
                self._runs.pop(id(run), None)

    def _round(self, runs: list[Watched]) -> None:
        served = {place: workers_of(self._store, *place) for place in {(run.queue, run.patience) for run in runs}}
        for run in runs:
            there, now = served[run.queue, run.patience], time.monotonic()
            if run.helped or (there and not run.refused and now < run.look_at):
                continue
            run.look_at = now + self._LOOK
            self._look(run, there)

    def _look(self, run: Watched, served: bool) -> None:
        look = self._store.look(run.key)
        if look is None or rests(look.head):
            self._forget([run])
            return
        run.refused = run.refused or unserved(look.head, look.now) >= max(1, run.patience * 1000)
        if served and not run.refused:
            return
        if not run.said:
            run.said = True
            _say(look.head, served)
        owner = look.head.owner
        if owner is not None and is_dead(owner):  # no worker is there to see it
            self._store.expire(owner)
        if any(_open(head, look.now) for head in unfinished(self._engine, look.head)):
            run.helped = True
            try:
                threading.Thread(target=self._help, args=(run,), name="vv-fallback-run", daemon=True).start()
            except RuntimeError:  # the machine gives no more threads: with the next look again
                run.helped = False
                raise

    def _help(self, run: Watched) -> None:
        """Advance the run and those below it here, as long as there is something to do and nobody else for it."""
        try:
            while run.refused or not workers_of(self._store, run.queue, run.patience):
                look = self._store.look(run.key)
                if look is None or self._engine.stopping:
                    return
                tree = [head for head in unfinished(self._engine, look.head) if _open(head, look.now)]
                if not any(self._advance(head) for head in tree):
                    return
        except StoreError as error:
            log.info("%r waits for its store: %s", run.key, error)
        finally:
            run.helped = False

    def _advance(self, head: Head) -> bool:
        """One cycle here; True if it was done."""
        recipe = CycleRecipe.of(head, self._store.id)
        try:
            step = advance(self._engine, recipe)
        except StoreError:
            raise
        except Exception:  # the claim runs out and the run is taken up again, or parks after some such failures
            log.exception("cycle %s of %s failed in this process", recipe.cycle, recipe.key)
            return False
        return step.what in ("committed", "ended", "parked")


def _lookout(engine: Engine) -> Lookout:
    """That of the engine, which lives as long as it does."""
    found: Lookout = vars(engine).setdefault("_vv_lookout", Lookout(engine))
    return found


def _say(head: Head, served: bool) -> None:
    if served:
        why, what = f"the workers of queue {head.queue!r} cannot take the run: {head.refusal}", ""
    else:
        why, what = f"no worker of queue {head.queue!r} is running", " (start one with: vv-agent worker)"
    sys.stderr.write(f"vv-agent: {why}; working on {head.key!r} in this process{what}\n")


def settle(engine: Engine, dispatcher: CycleDispatcher, head: Head) -> None:
    """After a cancel: wake a worker; a run that nobody would look at is ended by the caller.

    That is one of a queue without workers, or one without a queue that was parked for somebody. Any other one without a
    queue has a starter that goes on with it.
    """
    hint(dispatcher, head, engine.store.id)
    if head.state is not State.READY:
        return
    unserved = head.queue is not None and not workers_of(engine.store, head.queue)
    rested = head.queue is None and head.reason is not None and head.status != "running"
    if unserved or rested:
        try:
            for one in unfinished(engine, head):
                advance(engine, CycleRecipe.of(one, engine.store.id))
        except Exception:  # the cancel stands in the record; whoever takes the run up next ends it
            log.exception("run %s was cancelled, but could not be ended here", head.key)


def _open(head: Head, now: int) -> bool:
    """Whether somebody could take the run now."""
    due = head.due is not None and head.due <= now
    return head.state is State.READY or due


def workers_of(store: CheckpointStore, queue: str | None, within: float = PRESENT) -> bool:
    """Whether a worker of the queue showed itself in the last `within` seconds, and is not known to be dead."""
    shown = [presence.id for presence in store.presences(int(within * 1000)) if queue in presence.queues]
    return not all(is_dead(name.rpartition("@")[2]) for name in shown)
