"""`advance`: one cycle of a run, and what is to be advanced next. Everything else only decides who calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

from vv_agent.checkpoint.record import Change, Claimed, Commit, Head, Refused, Release, Seen, State
from vv_agent.errors import CannotServe, ClaimLost, SignalsWaiting, StoreError
from vv_agent.runtime.context import Engine
from vv_agent.runtime.cycle import run_cycle
from vv_agent.runtime.lease import steady_clock
from vv_agent.runtime.patience import patiently
from vv_agent.runtime.recipe import CycleRecipe
from vv_agent.runtime.run import Run

_HOLD_MS, CANNOT_SERVE_HOLD_MS = 2_000, 120_000
"""A run that this process cannot serve is looked at again after this long, at first and at most."""
What = Literal["committed", "parked", "ended", "released", "lost", "refused", "deferred"]


@dataclass(frozen=True, slots=True)
class Advanced:
    """What a call of `advance` came to.

    `next` is what should be advanced now: the run's next cycle after a commit, nothing while it is parked or ended.
    `kept` is the run with its claim when the commit kept it. `why` says more about a refusal or a deferral. `below`
    are the runs that this one began, or whose end its own end asks for; `above` is the one that waited for its end.
    """

    what: What
    head: Head | None = None
    next: tuple[CycleRecipe, ...] = ()
    kept: Run | None = None
    why: str = ""
    below: tuple[CycleRecipe, ...] = ()
    above: tuple[CycleRecipe, ...] = ()


CycleRunner: TypeAlias = Callable[[Engine, CycleRecipe], Advanced]
"""What does one cycle of a run; `advance` is the one there is."""


def advance(
    engine: Engine,
    recipe: CycleRecipe,
    *,
    commit: Callable[[], Commit] = Commit,
    kept: Run | None = None,
    resume: bool = False,
) -> Advanced:
    """Do the cycle a recipe names, under a claim of this process (or the one a previous call kept).

    Not this process's business (another cycle, another owner, another queue): returns at once, after one refused
    verb. A run it cannot serve is deferred, never judged. `commit` is asked at the commit how the claim ends. Raises
    `StoreError` when the store did not carry out a verb; the record is then as the last save left it.
    """
    if recipe.store != engine.store.id:
        return Advanced("refused", why="store_mismatch")
    run = kept
    if run is None:
        if engine.stopping or engine.helpers.exhausted:
            return Advanced("refused", why="stopping")
        try:
            taken = _take(engine, recipe, resume)
        except CannotServe as error:
            return _defer(engine, recipe, error)
        if isinstance(taken, Refused):
            return Advanced("refused", taken.head, why=taken.why)
        run = taken
    try:
        run_cycle(run, commit)
    except CannotServe as error:
        return _give_back(run, recipe, error)
    except ClaimLost as error:
        engine.keeper.release(run.hold)
        return Advanced("lost", why=error.message)
    except KeyboardInterrupt:
        run.let_go()
        engine.keeper.release(run.hold)
        raise
    except BaseException:
        engine.keeper.release(run.hold)
        raise
    return _after(engine, run)


def _take(engine: Engine, recipe: CycleRecipe, resume: bool) -> Run | Refused:
    """Claim the cycle and decode the record. After `CannotServe` the claim is given back."""
    program = engine.programs.get(recipe)
    cached = engine.cache.take(recipe.key)
    began = steady_clock()
    seen = Seen(cached.entry_n, cached.revision) if cached else Seen()
    token = engine.token()
    answer = patiently(lambda: engine.store.claim(
        recipe.key, recipe.cycle, token, owner=engine.owner, lease=engine.keeper.lease, seen=seen,
        serves=engine.serves, resume=resume,
    ))  # fmt: skip
    if isinstance(answer, Refused):
        return answer
    if cached and (cached.run_id != answer.snapshot.head.run_id or answer.snapshot.head.entry_n < cached.entry_n):
        cached, answer = None, _reread(engine, answer)  # another run under the same key
    hold = engine.keeper.hold(answer.claim, began)
    if engine.stopping:  # it was told between the look and the claim
        hold.stop()
    try:
        return Run(engine, program, hold, answer, cached)
    except CannotServe:  # the agent that works now, or what the record says
        with suppress(ClaimLost):
            patiently(lambda: engine.store.save(hold.claim, Change(number=1, then=Release(due_in=_HOLD_MS))))
        engine.keeper.release(hold)
        raise
    except BaseException:
        engine.keeper.release(hold)
        raise


def _reread(engine: Engine, answer: Claimed) -> Claimed:
    snapshot = engine.store.load(answer.claim.key)
    if snapshot is None:
        raise ClaimLost(f"run {answer.claim.key!r} was deleted")
    return Claimed(answer.claim, snapshot, answer.recovered)


def _defer(engine: Engine, recipe: CycleRecipe, error: CannotServe) -> Advanced:
    look = engine.store.look(recipe.key)
    hold = _HOLD_MS
    if look is not None and look.head.refused_at is not None:  # as long again as it has been refused
        hold = min(max(hold, look.now - look.head.refused_at), CANNOT_SERVE_HOLD_MS)
    engine.store.defer(recipe.key, recipe.cycle, str(error), hold)
    return Advanced("deferred", look.head if look else None, why=str(error))


def _give_back(run: Run, recipe: CycleRecipe, error: CannotServe) -> Advanced:
    """A claimed run turned out to need what this process does not have: release it, backed off, attempt not counted."""
    engine = run.engine
    try:
        run.save(Release(due_in=_HOLD_MS))
    except SignalsWaiting:  # a cancel came before the runs below that the save was to create
        run.let_go()
    except ClaimLost:
        return Advanced("lost", why=error.message)
    finally:
        engine.keeper.release(run.hold)
    return _defer(engine, recipe, error)


def _after(engine: Engine, run: Run) -> Advanced:
    head, below = run.head, tuple(run.begun)
    if head.state is State.CLAIMED:
        run.recovered, run.begun = False, []
        return Advanced("committed", head, (CycleRecipe.of(head, engine.store.id),), run, below=below)
    engine.keeper.release(run.hold)
    if head.state is State.ENDED:
        if engine.sinks(run.key):  # who listens here reads the result next
            run.remember()
        told = [task["key"] for task in run.children.unfinished]
        for key in told:  # those that this process advances need not wait for the next renewal of their lease
            engine.keeper.poke(key)
        above = () if head.parent_key is None else _ready(engine, [head.parent_key])
        return Advanced("ended", head, below=(*below, *_ready(engine, told)), above=above)
    run.remember()
    if head.state is State.PARKED:
        return Advanced("parked", head, below=below)
    what: What = "committed" if head.cycle != run.cycle else "released"
    return Advanced(what, head, (CycleRecipe.of(head, engine.store.id),), below=below)


def _ready(engine: Engine, keys: Iterable[str]) -> tuple[CycleRecipe, ...]:
    """Those of these runs that a signal of this one made ready. One that the store does not tell of is found when it is
    due."""
    found: list[CycleRecipe] = []
    with suppress(StoreError):
        for key in keys:
            look = engine.store.look(key)
            if look is not None and look.head.state is State.READY:
                found.append(CycleRecipe.of(look.head, engine.store.id))
    return tuple(found)
