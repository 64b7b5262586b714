"""The protocols of dispatch, and the loop that carries one run as far as it goes in this thread."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Protocol, runtime_checkable

from vv_agent.checkpoint.record import UNFINISHED, Commit, Filter, Head, Look, ParkReason, State
from vv_agent.errors import CannotServe, CheckpointError, StoreError
from vv_agent.runtime.advance import Advanced, advance
from vv_agent.runtime.context import Engine
from vv_agent.runtime.owner import is_dead
from vv_agent.runtime.recipe import CycleRecipe
from vv_agent.runtime.run import Run
from vv_agent.runtime.tail import rests

log = logging.getLogger("vv_agent.dispatch")

SIDE_BY_SIDE = 8
"""Runs below one that a process works on at the same time."""
_LOOK = 0.5
"""Seconds between looks at a run that waits for a time: a signal may have woken it."""


@runtime_checkable
class CycleDispatcher(Protocol):
    """Tells some worker that a run can be advanced. A hint only: the store knows, and the sweeper is the net.

    `hold_ms` is how long a commit leaves the run alone because a message is on its way; 0 when none is sent. `dispatch`
    never raises, takes at most two seconds, and says whether the hint was sent.
    """

    @property
    def hold_ms(self) -> int: ...

    def dispatch(self, recipe: CycleRecipe) -> bool: ...


def hint(dispatcher: CycleDispatcher, head: Head, store_id: str) -> None:
    """Tell a worker of a run that a signal made ready."""
    if head.queue is not None and head.state is State.READY:
        dispatcher.dispatch(CycleRecipe.of(head, store_id))


@runtime_checkable
class Backend(Protocol):
    """Carries a run on. `drive` returns when the run ended or parked, or was handed to others (`local` False)."""

    local: bool
    """Whether this process advances the run, so that its events are seen here without the store."""

    def drive(self, engine: Engine, recipe: CycleRecipe, *, resume: bool = False) -> None: ...


def keep() -> Commit:
    """The commit of a loop that goes on with the run itself: the claim is kept, which saves a write."""
    return Commit(keep=True)


def drive(engine: Engine, recipe: CycleRecipe, *, resume: bool = False, patient: bool = False) -> Advanced:
    """Advance a run in this thread until it ends or parks for somebody else.

    A park inside the segment is waited for. A run that another living process holds raises `checkpoint_claim_active`,
    unless this one waited for it before (`patient`): then whoever was quicker goes on with it. One that this process
    has not the code for raises what kept it from being served.
    """
    below = Below(lambda child: _drive_below(engine, child))
    try:
        if resume:
            below.start(left_below(engine, recipe.key))
        step = _drive(engine, recipe, below, resume=resume, patient=patient)
    except BaseException:
        below.leave()
        raise
    if step.head is not None and step.head.state is State.ENDED:
        below.wait()  # they were told that it is over
    return step


def _drive(engine: Engine, recipe: CycleRecipe, below: Below, *, resume: bool, patient: bool) -> Advanced:
    kept: Run | None = None
    while True:
        step = advance(engine, recipe, commit=keep, kept=kept, resume=resume)
        kept, resume = step.kept, False
        below.start(begun_below(engine, step))
        match step.what:
            case "committed":
                recipe = step.next[0]
            case "released" if not engine.stopping:  # something woke it while it was parking
                recipe = step.next[0]
            case "parked" if step.head is not None and not rests(step.head):
                recipe, patient = _when_due(engine, step.head, below), True
            case "deferred":
                raise cannot_serve(recipe.key, step)
            case "refused" | "lost":
                patient = patient or step.why == "parked"
                again = _after_refusal(engine, recipe, below, patient=patient)
                if again is None:
                    return step
                recipe = again
            case _:
                return step


class Below:
    """The runs below one that this process carries on: each by one thread, a few side by side."""

    def __init__(self, drive: Callable[[CycleRecipe], object]) -> None:
        self._drive = drive
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        """Keys of those that wait for a thread, or have one."""
        self._again: dict[str, CycleRecipe] = {}
        """What to drive once more: it may have been about to be left when it was asked for."""
        self._waiting: deque[CycleRecipe] = deque()
        self._threads: list[threading.Thread] = []
        self._left = False
        self._failure: Exception | None = None

    def look(self, engine: Engine, head: Head) -> None:
        """Carry on with what a run waits for and nobody works on: its thread may have met a store that did not answer.
        Raises what kept one of them from being carried on here."""
        if self._failure is not None:
            raise self._failure
        self.start(stranded(engine, head), again=False)

    def start(self, recipes: Iterable[CycleRecipe], *, again: bool = True) -> None:
        """Carry on with these as well."""
        for recipe in recipes:
            with self._lock:
                if recipe.key in self._busy:
                    if again:
                        self._again[recipe.key] = recipe
                    continue
                self._busy.add(recipe.key)
                self._waiting.append(recipe)
                if len(self._threads) < SIDE_BY_SIDE:
                    work = partial(copy_context().run, self._work)
                    thread = threading.Thread(target=work, name="vv-below", daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def leave(self) -> None:
        """Begin no more of them."""
        self._left = True

    def wait(self) -> None:
        """Until all are driven as far as they go."""
        for thread in tuple(self._threads):
            thread.join()

    def _work(self) -> None:
        while (recipe := self._next()) is not None:
            try:
                self._drive(recipe)
            except StoreError as error:  # the run is as its last save left it; who waits for it looks again
                log.warning("run %s could not be carried on for a moment: %s", recipe.key, error)
            except Exception as error:  # as for a run that has none above it, the caller is told
                log.warning("run %s could not be carried on here: %s", recipe.key, error)
                self._failure = error
            with self._lock:
                self._busy.discard(recipe.key)
                again = self._again.pop(recipe.key, None)
            if again is not None:
                self.start([again])

    def _next(self) -> CycleRecipe | None:
        with self._lock:
            if self._left or not self._waiting:
                self._threads.remove(threading.current_thread())
                return None
            return self._waiting.popleft()


def _drive_below(engine: Engine, recipe: CycleRecipe) -> None:
    """Carry a run below on until it ended. One that waits for somebody goes on once they decided, in whoever drives the
    tree then."""
    drive(engine, recipe, patient=True)


def stranded(engine: Engine, head: Head) -> list[CycleRecipe]:
    """The runs that a run waits for, and that could go on: ready, or due."""
    if head.reason is not ParkReason.CHILDREN:
        return []
    now = engine.store.now()
    tree = engine.store.find(
        Filter(root_key=head.root_key, states=frozenset({State.READY, State.PARKED}), limit=10_000)
    )
    return [CycleRecipe.of(one, engine.store.id) for one in tree if one.parent_key == head.key and _ready(one, now)]


def begun_below(engine: Engine, step: Advanced) -> Sequence[CycleRecipe]:
    """The runs below that a step began or told to end, or that the run then waits for: they may be of a process that is
    gone."""
    head = step.head
    if head is None:
        return ()
    if "parked" in (step.what, step.why) and head.reason is ParkReason.CHILDREN:  # now, or when it was taken up
        return [CycleRecipe.of(one, engine.store.id) for one in unfinished(engine, head) if one.parent_key == head.key]
    return step.below


def left_below(engine: Engine, key: str) -> list[CycleRecipe]:
    """The runs below one that is taken up again: whoever carried them on may be gone."""
    look = engine.store.look(key)
    if look is None or look.head.parent_key is not None:
        return []
    return [CycleRecipe.of(one, engine.store.id) for one in unfinished(engine, look.head) if one.key != key]


def unfinished(engine: Engine, head: Head) -> list[Head]:
    """The records of a run's tree that did not end. This process may use the code of the root's starter for them."""
    tree = engine.store.find(Filter(root_key=head.root_key, states=UNFINISHED, limit=10_000))
    for one in tree:
        engine.programs.adopt(one.key, one.root_key)
    return list(tree)


def cannot_serve(key: str, step: Advanced) -> CannotServe:
    """The error for which a run was deferred, for whoever asked this process to go on with it."""
    code, _, message = step.why.partition(": ")
    return CannotServe(code, f"run {key!r} cannot go on here: {message}; another process may have what it needs")


def until_due(engine: Engine, head: Head) -> tuple[CycleRecipe, float]:
    """What to advance of a parked run, and the seconds until the next look at it: none once it is ready, by its
    deadline or because a signal woke it."""
    look = engine.store.look(head.key)
    if look is None or look.head.state is not State.PARKED or engine.stopping:
        return CycleRecipe.of(head if look is None else look.head, engine.store.id), 0.0
    left = _LOOK if look.head.due is None else max(0, look.head.due - look.now) / 1000
    return CycleRecipe.of(look.head, engine.store.id), min(left, _LOOK)


def _when_due(engine: Engine, head: Head, below: Below) -> CycleRecipe:
    """Wait until a parked run is ready."""
    version = 0
    while True:
        below.look(engine, head)
        recipe, pause = until_due(engine, head)
        if pause <= 0:
            return recipe
        version = engine.store.wait(version, pause)


def _after_refusal(engine: Engine, recipe: CycleRecipe, below: Below, *, patient: bool) -> CycleRecipe | None:
    """What to try next after a claim was refused: the same cycle once its dead owner is expired or its back-off is
    over.

    None: there is nothing to do here any more. Raises `checkpoint_claim_active` when a living process has the run.
    """
    look = engine.store.look(recipe.key)
    while look is not None and not engine.stopping and _is_orphan(engine, look):
        time.sleep(0.2)
        look = engine.store.look(recipe.key)
    if look is None or engine.stopping:
        return None
    head = look.head
    if head.state is State.PARKED and not rests(head):
        return _when_due(engine, head, below)
    if head.state is not State.CLAIMED:
        return CycleRecipe.of(head, engine.store.id) if _ready(head, look.now) else None
    if head.lease_until > look.now:
        alive = head.owner is None or not is_dead(head.owner)
        if alive and patient:
            engine.store.wait(0, _LOOK)
            return CycleRecipe.of(head, engine.store.id)
        if alive:
            raise CheckpointError(
                "checkpoint_claim_active",
                f"run {head.key!r} is being advanced {_by(engine, head)} right now; watch it "
                f"(vv-agent runs watch, or Runner.attach), or try later",
            )
        engine.store.expire(str(head.owner))
    else:
        time.sleep(min(0.2, max(0.0, ((head.due or look.now) - look.now) / 1000)))
    return CycleRecipe.of(head, engine.store.id)


def _is_orphan(engine: Engine, look: Look) -> bool:
    """Whether this very process gave up the claim without telling the store, which did not answer: it ends by
    itself."""
    head = look.head
    mine = head.state is State.CLAIMED and head.owner == engine.owner and head.lease_until > look.now
    return mine and not engine.keeper.holds(head.key)


def _by(engine: Engine, head: Head) -> str:
    return "by this process" if head.owner == engine.owner else f"by another process ({head.owner})"


def _ready(head: Head, now: int) -> bool:
    return head.state is State.READY or (head.state is State.PARKED and head.due is not None and head.due <= now)
