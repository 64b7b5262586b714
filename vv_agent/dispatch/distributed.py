"""The distributed backend: workers of other processes advance the run; with none in sight, this process helps
itself."""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextlib import suppress

from vv_agent.checkpoint.record import Head, Look, State
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
            threading.Thread(
                target=self._watch, args=(engine, recipe.key, recipe.queue), name="vv-fallback", daemon=True
            ).start()

    def _watch(self, engine: Engine, key: str, queue: str | None) -> None:
        """Until the run is over: whenever no worker shows itself, advance it here."""
        said = refused = False
        while not engine.stopping:
            try:
                look = engine.store.look(key)
                served = workers_of(engine.store, queue, self.patience)
            except StoreError as error:  # whoever reads the run is told; it may come back
                if error.code == "store_closed":
                    return
                time.sleep(1.0)
                continue
            if look is None or rests(look.head):
                return
            refused = refused or self._is_refused(look)
            if refused or not served:
                if not said:
                    said = True
                    _say(look.head, served)
                owner = look.head.owner
                if owner is not None and is_dead(owner):  # no worker is there to see it
                    engine.store.expire(owner)
                if any(self._help(engine, head) for head in unfinished(engine, look.head) if _open(head, look.now)):
                    continue
            time.sleep(0.25)

    def _is_refused(self, look: Look) -> bool:
        refused = unserved(look.head, look.now)
        return refused > 0 and refused >= self.patience * 1000

    def _help(self, engine: Engine, head: Head) -> bool:
        """One cycle here; True if it was done."""
        recipe = CycleRecipe.of(head, engine.store.id)
        try:
            step = advance(engine, recipe)
        except Exception:  # the claim runs out and the run is taken up again, or parks after some such failures
            log.exception("cycle %s of %s failed in this process", recipe.cycle, recipe.key)
            return False
        return step.what in ("committed", "ended", "parked")


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
        for one in unfinished(engine, head):
            advance(engine, CycleRecipe.of(one, engine.store.id))


def _open(head: Head, now: int) -> bool:
    """Whether somebody could take the run now."""
    due = head.due is not None and head.due <= now
    return head.state is State.READY or due


def workers_of(store: CheckpointStore, queue: str | None, within: float = PRESENT) -> bool:
    """Whether a worker of the queue showed itself in the last `within` seconds, and is not known to be dead."""
    shown = [presence.id for presence in store.presences(int(within * 1000)) if queue in presence.queues]
    return not all(is_dead(name.rpartition("@")[2]) for name in shown)
