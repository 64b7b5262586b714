"""The thread backend: a pool of our own takes cycles from a queue, so that many runs share few threads fairly."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from contextvars import ContextVar, copy_context

from vv_agent.checkpoint.record import Head, ParkReason
from vv_agent.dispatch.base import begun_below, cannot_serve, drive, left_below, stranded, until_due
from vv_agent.errors import ConfigError, StoreError
from vv_agent.runtime.advance import advance
from vv_agent.runtime.context import Engine
from vv_agent.runtime.recipe import CycleRecipe
from vv_agent.runtime.tail import rests

_pool: ContextVar[ThreadBackend | None] = ContextVar("vv_agent_pool", default=None)
"""The pool that advances the run whose code is running here, also in a helper thread of it."""


class ThreadBackend:
    """Up to `max_workers` threads; after each cycle a run goes to the end of the queue. A run that waits for a time
    holds no thread. Threads are daemons and end by themselves when idle."""

    local = True
    _IDLE = 5.0

    def __init__(self, max_workers: int = 8) -> None:
        if max_workers < 1:
            raise ConfigError(
                "run_config_invalid", f"ThreadBackend(max_workers={max_workers}) needs at least one thread"
            )
        self._most = max_workers
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._queue: list[tuple[float, int, _Job]] = []
        self._order = itertools.count()
        self._threads = 0
        self._idle = 0

    def drive(self, engine: Engine, recipe: CycleRecipe, *, resume: bool = False) -> None:
        """Put the run into the queue and wait for its end or park; the first error is raised here.

        A run that a tool of this pool starts is advanced by the caller: its thread waits for it anyway, and a pool
        whose threads all wait for runs behind them in the queue would never go on.
        """
        if os.getpid() != self._pid:  # threads do not survive a fork
            self._begin()
        if _pool.get() is self:
            drive(engine, recipe, resume=resume)
            return
        tree = _Tree(self)
        job = tree.begin(engine, recipe, resume=resume)
        for below in left_below(engine, recipe.key) if resume else ():
            tree.begin(engine, below)
        job.done.wait()
        if job.error is not None:
            raise job.error
        if job.ended:
            tree.wait()  # the runs below were told that it is over

    def put(self, job: _Job, delay: float) -> None:
        """Take a step of a job after `delay` seconds."""
        with self._changed:
            heapq.heappush(self._queue, (time.monotonic() + delay, next(self._order), job))
            if len(self._queue) > self._idle and self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._work, name="vv-cycle", daemon=True).start()
            self._changed.notify()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                delay = job.context.run(job.step)
            except BaseException as error:
                job.error = error
                job.done.set()
            else:
                if delay is None:
                    delay = job.tree.over(job)
                if delay is not None:
                    self.put(job, delay)

    def _next(self) -> _Job | None:
        with self._changed:
            self._idle += 1
            try:
                end = time.monotonic() + self._IDLE
                while True:
                    now = time.monotonic()
                    if self._queue and self._queue[0][0] <= now:
                        return heapq.heappop(self._queue)[2]
                    limit = self._queue[0][0] if self._queue else end
                    if not self._queue and now >= end:
                        self._threads -= 1
                        return None
                    self._changed.wait(max(0.0, limit - now))
            finally:
                self._idle -= 1


class _Tree:
    """A run and those below it on their way through the pool."""

    def __init__(self, pool: ThreadBackend) -> None:
        self._pool = pool
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.Lock()

    def begin(self, engine: Engine, recipe: CycleRecipe, *, resume: bool = False) -> _Job:
        """Put a run into the queue, once."""
        with self._lock:
            known = self._jobs.get(recipe.key)
            if known is not None and not known.done.is_set():
                known.again = recipe
                return known
            job = self._jobs[recipe.key] = _Job(engine, recipe, resume, self)
        job.context.run(_pool.set, self._pool)
        self._pool.put(job, 0.0)
        return job

    def look(self, engine: Engine, head: Head) -> None:
        """Carry on with what a run waits for and nobody works on. Raises what kept one of them from it."""
        if head.reason is not ParkReason.CHILDREN:
            return
        with self._lock:
            jobs = dict(self._jobs)
        over = [job for job in jobs.values() if job.done.is_set()]
        for error in (job.error for job in over):
            if error is not None and not isinstance(error, StoreError):
                raise error
        for recipe in stranded(engine, head):
            if recipe.key not in jobs or jobs[recipe.key].done.is_set():
                self.begin(engine, recipe)

    def over(self, job: _Job) -> float | None:
        """The last step of a job was taken; 0.0 when it was asked for again meanwhile: that step may not have seen
        why."""
        with self._lock:
            if job.again is None:
                job.done.set()
                return None
            job.recipe, job.again = job.again, None
            return 0.0

    def wait(self) -> None:
        for job in list(self._jobs.values()):
            job.done.wait()


class _Job:
    """One run on its way through the pool."""

    def __init__(self, engine: Engine, recipe: CycleRecipe, resume: bool, tree: _Tree) -> None:
        self.engine = engine
        self.recipe = recipe
        self.resume = resume
        self.tree = tree
        self.ended = False
        self.again: CycleRecipe | None = None
        """What to advance once more: it may have been about to be left when it was asked for."""
        self.context = copy_context()
        self.done = threading.Event()
        self.error: BaseException | None = None
        self._parked: Head | None = None
        self._patient = False

    def step(self) -> float | None:
        """One cycle, or a look at the run while it waits for a time; seconds until the next one, or None when there is
        none."""
        self.again = None
        if self._parked is not None:
            self.tree.look(self.engine, self._parked)
            self.recipe, pause = until_due(self.engine, self._parked)
            if pause > 0:
                return pause
            self._parked = None
        step = advance(self.engine, self.recipe, resume=self.resume)
        self.resume, self.ended = False, step.what == "ended"
        for below in begun_below(self.engine, step):
            self.tree.begin(self.engine, below)
        if step.what in ("committed", "released") and not self.engine.stopping:
            self.recipe = step.next[0]
            return 0.0
        if step.what == "parked" and step.head is not None and not rests(step.head):
            self._parked, self._patient = step.head, True
            return 0.0
        if step.what in ("refused", "lost"):  # rare: a dead owner, a back-off; the loop in this thread knows how
            drive(self.engine, self.recipe, patient=self._patient)
        if step.what == "deferred":
            raise cannot_serve(self.recipe.key, step)
        return None
