"""A run that is under way: watch it, cancel it, wait for its result."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from vv_agent.approvals import ApprovalDecision
from vv_agent.checkpoint.record import Signal, State
from vv_agent.dispatch.base import CycleDispatcher
from vv_agent.dispatch.distributed import settle
from vv_agent.errors import CheckpointError, ConfigError
from vv_agent.events import ApprovalRequestedEvent, ApprovalResolvedEvent, RunEvent
from vv_agent.launch import decide, decide_approval, open_approvals, shown_to
from vv_agent.result import RunResult
from vv_agent.results import AgentStatus
from vv_agent.runtime.approval import digest_of
from vv_agent.runtime.context import Engine
from vv_agent.runtime.feed import EventFeed
from vv_agent.runtime.inbox import DEFAULT_REASON, approval_signal, cancel_signal, provider_failed_signal


class RunHandleStatus(StrEnum):
    """Where a run stands, as its handle sees it."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    WAIT_USER = "wait_user"
    MAX_CYCLES = "max_cycles"
    RECONCILIATION_REQUIRED = "reconciliation_required"


@dataclass(frozen=True, slots=True)
class RunHandleState:
    """A snapshot. While an accepted cancel is not carried out yet: status running, done False, cancelled True."""

    status: RunHandleStatus
    done: bool
    cancelled: bool
    error: str | None = None


class Events:
    """The events of a run: iterate it, or `async for` over it. Each iteration starts at the first event and misses none
    that this process saw; it ends when the run ended or rests."""

    def __init__(self, feed: EventFeed) -> None:
        self._feed = feed

    def __iter__(self) -> Iterator[RunEvent]:
        return iter(self._feed)

    async def __aiter__(self) -> AsyncIterator[RunEvent]:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[RunEvent | None] = asyncio.Queue()
        stopped = threading.Event()

        def pump() -> None:
            for event in self._feed:
                if stopped.is_set():
                    return
                loop.call_soon_threadsafe(queue.put_nowait, event)
            loop.call_soon_threadsafe(queue.put_nowait, None)

        threading.Thread(target=_quietly, args=(pump,), name="vv-events", daemon=True).start()
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            stopped.set()


def _quietly(work: Callable[[], None]) -> None:
    """A reader whose loop was closed has nobody to tell."""
    try:
        work()
    except RuntimeError:
        return


class RunHandle:
    """Made by `Runner.start` and `Runner.attach`. It can be awaited: `result = await handle`.

    `checkpoint_key` is the key of the record also for a run in memory; `run_id` that of the first segment.
    """

    def __init__(self, engine: Engine, dispatcher: CycleDispatcher, key: str, run_id: str, feed: EventFeed) -> None:
        self.checkpoint_key = key
        self.run_id = run_id
        self._engine = engine
        self._dispatcher = dispatcher
        self._feed = feed
        self._future: Future[RunResult] = Future()
        self._cancel = threading.Lock()
        self._cancelled = False

    def events(self) -> Events:
        """The run's events, from the first one on."""
        return Events(self._feed)

    def result(self, timeout: float | None = None) -> RunResult:
        """Wait for the end of the run, or of the segment when it then waits for somebody; may be called again.

        `timeout` is in seconds; `TimeoutError` when it passes. What stopped the run outside of it (a lost store) is
        raised.
        """
        return self._future.result(timeout)

    def __await__(self) -> Generator[Any, None, RunResult]:
        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()

    def cancel(self, reason: str | None = None) -> bool:
        """Ask the run to stop, also one that waits for somebody; False when it ended already or was cancelled before.

        The cancel is durable once this returns; the result then has reason `cancelled` with `reason` as its error.
        """
        with self._cancel:
            if self._cancelled:
                return False
            try:
                signal = cancel_signal(f"cancel_{secrets.token_hex(8)}", reason or DEFAULT_REASON)
                posted = self._engine.store.post(self.checkpoint_key, signal)
            except CheckpointError as error:
                if error.code not in ("run_finished", "checkpoint_not_found"):  # a run in memory is gone once it ended
                    raise
                return False
            self._cancelled = True
        if not self._engine.keeper.poke(self.checkpoint_key) or posted.head.state is not State.CLAIMED:
            settle(self._engine, self._dispatcher, posted.head)
        return True

    def approve(self, request_id: str, decision: ApprovalDecision) -> None:
        """Decide on a tool call that waits; the decision is durable once this returns, and counts once.

        Raises `ConfigError`: `unknown_approval_request` for an id the run did not ask about, `already_decided` when
        another decision came first.
        """
        if not isinstance(decision, ApprovalDecision):
            raise ConfigError("approval_invalid", f"{decision!r} is no decision; use e.g. ApprovalDecision.allow()")
        events = [
            event for event in self._feed.events if isinstance(event, ApprovalRequestedEvent | ApprovalResolvedEvent)
        ]
        seen = [event for event in events if event.request_id == request_id]
        if seen and all(isinstance(event, ApprovalRequestedEvent) for event in seen):  # it may not be saved yet
            self._decide(approval_signal(request_id, decision, self._digest(request_id)))
        elif decide_approval(self._engine.store, self._dispatcher, self.checkpoint_key, request_id, decision):
            self._engine.keeper.poke(self.checkpoint_key)

    def state(self) -> RunHandleState:
        """Where the run stands now."""
        if not self._future.done():
            return RunHandleState(RunHandleStatus.RUNNING, False, self._cancelled)
        error = self._future.exception()
        if error is not None:
            return RunHandleState(RunHandleStatus.FAILED, True, self._cancelled, str(error))
        result = self._future.result()
        if result.completion_reason == "cancelled":
            return RunHandleState(RunHandleStatus.CANCELLED, True, True, result.raw_result.error)
        return RunHandleState(RunHandleStatus(result.status.value), True, self._cancelled, result.raw_result.error)

    # For the runner.

    def fail_approval(self, request_id: str, message: str) -> None:
        """Whoever was to decide could not."""
        self._decide(provider_failed_signal(request_id, message, self._digest(request_id)))

    def is_open(self, request_id: str) -> bool:
        """Whether the run waits for this approval."""
        return request_id in open_approvals(self._engine.store, self.checkpoint_key)

    def _digest(self, request_id: str) -> str:
        """What a request showed; one that was seen here may not be saved yet."""
        for event in self._feed.events:
            if isinstance(event, ApprovalRequestedEvent) and event.request_id == request_id:
                return digest_of(event.tool_name, event.metadata["arguments"])
        return shown_to(self._engine.store, self.checkpoint_key, request_id)

    def _decide(self, signal: Signal) -> None:
        decide(self._engine.store, self._dispatcher, self.checkpoint_key, signal)
        self._engine.keeper.poke(self.checkpoint_key)

    def when_over(self, call: Callable[[], object]) -> None:
        """Call once the outcome is there."""
        self._future.add_done_callback(lambda _: call())

    def waiting(self) -> RunResult | None:
        """The result of a run that waits for its user."""
        if self._future.exception() is not None or self._future.result().status is not AgentStatus.WAIT_USER:
            return None
        return self._future.result()

    def fail(self, error: BaseException) -> None:
        """The run cannot be followed any more."""
        self._future.set_exception(error)
        self._feed.close()

    def leave(self, reason: str | None) -> None:
        """Cancel the run if it is still under way; one that came to rest is left as it is."""
        if not self._future.done():
            self.cancel(reason)

    def finish(self, make: Callable[[], RunResult]) -> None:
        """Set the outcome once and end the event streams."""
        try:
            result = make()
        except BaseException as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(result)
        finally:
            self._feed.close()
