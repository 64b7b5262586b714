"""One worker process at its store: its slots, the runs it carries, and what it shows of itself. Whatever brings the
runs (a broker, the store) goes through it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vv_agent import process
from vv_agent.checkpoint.record import Commit, Filter, Presence, State
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.dispatch.base import CycleDispatcher
from vv_agent.dispatch.store import StoreDispatcher
from vv_agent.errors import StoreError
from vv_agent.runtime.advance import Advanced, advance
from vv_agent.runtime.owner import is_dead, process_host, process_owner
from vv_agent.runtime.recipe import CycleRecipe
from vv_agent.settings import Settings
from vv_agent.tools.builtin.processes import background

log = logging.getLogger("vv_agent.worker")

_NEIGHBOURS = 1.0
"""Seconds between looks at the claims of dead processes on this host."""
_GO_ON_HOLD_MS = 2_000
"""How long a commit leaves the run to the worker that goes on with it itself."""
_ENOUGH = 20
"""Cycles in a row of one run before others that may wait are looked at."""


class Station:
    """A worker process: up to `slots` runs at once, under one engine.

    `dispatcher` hands each next cycle on to any worker; without one, or when it fails, the slot goes on with the run
    itself while nobody else waits for it. `on_free` is called whenever a slot is free again.
    """

    def __init__(
        self,
        store: CheckpointStore,
        settings: Settings,
        *,
        queues: tuple[str, ...],
        slots: int,
        dispatcher: CycleDispatcher | None = None,
        wake: str | None = None,
        on_free: Callable[[], None] = lambda: None,
    ) -> None:
        self.queues = queues
        self.slots = slots
        self.dispatcher = dispatcher
        self.stopping = threading.Event()
        self._wake = wake
        self._on_free = on_free
        self._id = f"{os.getpid()}-{os.urandom(4).hex()}@{process_owner()}"
        self._active = 0
        self._changed = threading.Condition()
        self._swept = 0.0
        self.engine = process.make_engine(store, settings, queues=frozenset(queues), presence=self._presence)
        self.store = self.engine.store
        self._hints: CycleDispatcher = dispatcher or StoreDispatcher(self.store)
        """Tell of other runs of a tree, which this slot does not go on with."""

    @property
    def free(self) -> int:
        """Slots that carry nothing; none for a process that takes no more work."""
        if self.stopping.is_set() or self.engine.helpers.exhausted:
            return 0
        with self._changed:
            return max(0, self.slots - self._active)

    def start(self, recipe: CycleRecipe) -> None:
        """Carry a run in a thread of its own; its slot is taken at once."""
        self._enter()
        try:
            self.engine.helpers.submit(lambda: self._carry(recipe), lambda call: self._leave())
        except BaseException:  # no thread could be started
            self._leave()
            raise

    def carry(self, recipe: CycleRecipe) -> None:
        """Carry a run in this thread: one cycle, then the next by whoever gets the hint, else here. Never raises."""
        with self._slot():
            self._carry(recipe)

    def expire_dead(self) -> None:
        """End the claims of processes of this host that are no more; at most once a second."""
        now = time.monotonic()
        if now - self._swept < _NEIGHBOURS:
            return
        self._swept = now
        held = self.store.find(Filter(states=frozenset({State.CLAIMED}), host=process_host(), limit=1000))
        for owner in {head.owner for head in held if head.owner is not None}:
            if owner != self.engine.owner and is_dead(owner):
                for key in self.store.expire(owner):
                    log.warning("took the claim on %s from a dead process (%s)", key, owner)

    def patiently(self, work: Callable[[], object]) -> bool:
        """Do work on the store; a store that does not answer is waited for, and so is a machine that lacks memory or
        threads."""
        try:
            return bool(work())
        except StoreError as error:
            log.warning("%s", error)
        except Exception:
            log.exception("this worker could not look after its store; trying again")
        self.stopping.wait(1.0)
        return False

    def worn_out(self) -> bool:
        """Whether too many calls of this process never came back. It takes no more work then, and is to be replaced by
        whoever started it: its threads cannot be got back."""
        if not self.engine.helpers.exhausted:
            return False
        log.error(
            "more than %d calls of tools or models in process %d never came back, although they were told to stop: it "
            "takes no more runs and exits, to be replaced by whoever supervises it; give these calls timeouts",
            self.engine.helpers.MAX_ABANDONED, os.getpid(),
        )  # fmt: skip
        return True

    def stop(self) -> None:
        """Take no new cycles; model calls are aborted and given back, tools get their grace. A signal handler may call
        this."""
        self.stopping.set()
        self.engine.stop()

    def finish(self) -> None:
        """After `stop`: show that this process serves nobody any more, and wait for what it carries."""
        self.patiently(self.engine.keeper.renew)
        with self._changed:
            self._changed.wait_for(lambda: self._active == 0, self.engine.grace + 5.0)
        self.engine.close()

    def _carry(self, recipe: CycleRecipe) -> None:
        for cycles in range(1, 1 << 30):
            stays = self.free > 0 or cycles % _ENOUGH != 0
            step = self._advance(recipe, stays)
            for other in (*step.below, *step.above) if step is not None else ():
                self._hints.dispatch(other)
            if step is None or not step.next:
                return
            recipe = step.next[0]
            if self._hand_on(recipe, stays) or step.what != "committed" or not stays or self.stopping.is_set():
                return

    def _advance(self, recipe: CycleRecipe, stays: bool) -> Advanced | None:
        try:
            step = advance(self.engine, recipe, commit=lambda: self._commit(stays))
        except StoreError as error:
            log.warning("cycle %s of %s was not saved: %s", recipe.cycle, recipe.key, error)
            return None
        except Exception:
            log.exception("cycle %s of %s failed in the worker", recipe.cycle, recipe.key)
            return None
        _tell(recipe, step)
        if step.why == "stopping":  # taken, and not claimed: others need not wait for it
            self.patiently(lambda: self.store.defer(recipe.key, recipe.cycle, "the worker stopped", 0))
        return step

    def _hand_on(self, recipe: CycleRecipe, stays: bool) -> bool:
        """Whether another worker was told. A run with commands in the background goes on where they are."""
        if self.dispatcher is None or (stays and background.has_live(recipe.key)):
            return False
        return self.dispatcher.dispatch(recipe)

    def _commit(self, stays: bool) -> Commit:
        hold = self.dispatcher.hold_ms if self.dispatcher is not None else 0
        return Commit(due_in=hold or (_GO_ON_HOLD_MS if stays and not self.stopping.is_set() else 0))

    def _presence(self) -> Presence:
        serves = not self.stopping.is_set() and not self.engine.helpers.exhausted
        queues = self.queues if serves else ()  # else starters would count on it
        return Presence(self._id, queues, self.free, self._wake)

    @contextmanager
    def _slot(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        with self._changed:
            self._active += 1

    def _leave(self) -> None:
        with self._changed:
            self._active -= 1
            self._changed.notify_all()
        self._on_free()


_LEVELS = {"refused": logging.DEBUG, "deferred": logging.WARNING}
"""A run that this worker cannot serve waits for an operator to give it what it lacks; he must see that. So does
one whose recipes come from another store."""


def _tell(recipe: CycleRecipe, step: Advanced) -> None:
    level = logging.WARNING if step.why == "store_mismatch" else _LEVELS.get(step.what, logging.INFO)
    log.log(level, "cycle %s of %s: %s%s", recipe.cycle, recipe.key, step.what, f" ({step.why})" if step.why else "")
