"""Waiting for a blocking call while the run may be cancelled, the lease lost or the worker stopped."""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from vv_agent.cancellation import CancellationToken
from vv_agent.errors import ClaimLost, StoreError, VVAgentError
from vv_agent.runtime.helpers import Call
from vv_agent.runtime.lease import steady_clock
from vv_agent.runtime.run import Run

T = TypeVar("T")
_LOOK_AGAIN = 0.5
"""Seconds until signals that could not be read are looked at again."""


class RunCancelled(VVAgentError):
    """An accepted cancel was seen; the cycle ends. Never leaves the runtime."""

    def __init__(self, reason: str) -> None:
        super().__init__("run_cancelled", reason)


class Stopping(VVAgentError):
    """The worker stops; the claim is given back. Never leaves the runtime.

    `finished` are the calls whose outcome was known before they were told to stop.
    """

    def __init__(self, finished: Sequence[Call[Any]] = ()) -> None:
        super().__init__("worker_stopping", "the worker stops")
        self.finished = tuple(finished)


class Interrupted:
    """Calls that were still running when something happened: what it was, and who must stop."""

    def __init__(self, token: CancellationToken, calls: Sequence[Call[Any]], grace: float) -> None:
        self._token = token
        self._calls = calls
        self._grace = grace

    def stop(self, run: Run, reason: str, grace: float | None = None) -> None:
        """Ask the calls to stop, wait `grace` seconds for them together, abandon those that do not."""
        self._token.cancel(reason)
        end = steady_clock() + (self._grace if grace is None else grace)
        for call in self._calls:
            if not call.finished.wait(max(0.0, end - steady_clock())):
                run.engine.helpers.abandon(call)


def submit(run: Run, work: Callable[[], T], *, here: bool = False) -> Call[T]:
    """Start a call in a helper thread; the run's mailbox is told when it is done.

    `here`: nothing but a cancel could end it early, so for a run that nobody can cancel it is made in this thread (the
    two hand-overs cost more than the rest of a cycle, measured).
    """
    news = run.hold.news
    if here and run.engine.is_alone(run.key):
        call = Call(work, lambda call: None)
        call.run()
        return call
    return run.engine.helpers.submit(work, lambda call: news.put(("done", call)))


def wait_for(
    run: Run,
    calls: Sequence[Call[Any]],
    token: CancellationToken,
    *,
    grace: float,
    until: float | None = None,
    finish: bool = False,
) -> bool:
    """Wait until all calls are finished: True; or until the steady clock shows `until`: False.

    On a cancel the calls are stopped and `RunCancelled` is raised, on a lost lease `ClaimLost`, when the worker stops
    `Stopping`; each after the calls had their grace. `finish`: a worker that stops leaves the calls alone for that
    time, so that one that ends in it has its outcome.
    """
    interrupted = Interrupted(token, calls, grace)
    look_again = math.inf
    while not all(call.finished.is_set() for call in calls):
        now = steady_clock()
        if until is not None and now >= until:
            return False
        stop_at = _stop_at(run, grace if finish else 0.0)
        if now >= stop_at:
            finished = [call for call in calls if call.finished.is_set()]
            interrupted.stop(run, "the worker stops", 0.0 if finish else None)
            raise Stopping(finished)
        limit = min(run.hold.deadline, stop_at, look_again, until if until is not None else run.hold.deadline)
        kind = _next_news(run, max(0.0, limit - now))
        if kind == "lost" or run.hold.lost:
            interrupted.stop(run, "the claim was lost")
            raise ClaimLost(f"the lease on run {run.key!r} ended while it waited; the cycle is not committed")
        if kind == "signal" or steady_clock() >= look_again:
            look_again = math.inf if refreshed(run) else steady_clock() + _LOOK_AGAIN
            if run.inbox.cancel is not None:
                interrupted.stop(run, run.inbox.cancel)
                raise RunCancelled(run.inbox.cancel)
    return True


def heed(run: Run) -> None:
    """Before something begins: raise `Stopping` if the process stops, `RunCancelled` if it was told of a cancel."""
    if run.hold.stopped is not None:
        raise Stopping
    if run.hold.signalled and refreshed(run) and run.inbox.cancel is not None:
        raise RunCancelled(run.inbox.cancel)


def refreshed(run: Run) -> bool:
    """Read the signals; False when the store does not answer: that is no reason to leave a running call."""
    try:
        run.refresh()
    except StoreError:
        return False
    return True


def _stop_at(run: Run, patience: float) -> float:
    return math.inf if run.hold.stopped is None else run.hold.stopped + patience


def _next_news(run: Run, timeout: float) -> str | None:
    try:
        return run.hold.news.get(timeout=timeout)[0]
    except queue.Empty:
        return None
