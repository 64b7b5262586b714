"""A run that is under way: watch it, cancel it, wait for its result."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from vv_agent.approvals import ApprovalDecision
from vv_agent.checkpoint.record import Signal, State
from vv_agent.dispatch.base import CycleDispatcher
from vv_agent.dispatch.distributed import settle
from vv_agent.errors import CheckpointError, ConfigError, RunFinished
from vv_agent.events import ApprovalRequestedEvent, ApprovalResolvedEvent, RunEvent
from vv_agent.launch import asking_record, decide, decide_approval, open_approvals, shown_to
from vv_agent.result import RunResult, RunState
from vv_agent.results import AgentStatus
from vv_agent.runtime.approval import digest_of
from vv_agent.runtime.context import Engine
from vv_agent.runtime.feed import EventFeed
from vv_agent.runtime.inbox import (
    DEFAULT_REASON,
    approval_signal,
    cancel_signal,
    follow_up_signal,
    provider_failed_signal,
    steer_signal,
)


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
        self.resumer: Callable[..., RunHandle] | None = None
        """`start_resume` of the runner that made the handle."""
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
        another decision came first; `RunFinished` when the run ended already.
        """
        if not isinstance(decision, ApprovalDecision):
            raise ConfigError("approval_invalid", f"{decision!r} is no decision; use e.g. ApprovalDecision.allow()")
        kinds = ApprovalRequestedEvent | ApprovalResolvedEvent
        events = [event for event in self._feed.events if isinstance(event, kinds)]
        seen = [event for event in events if event.request_id == request_id]
        with self._unless_gone():
            shown = seen and all(isinstance(event, ApprovalRequestedEvent) for event in seen)
            if shown and (asked := self._asked(request_id)) is not None:
                key, digest = asked
                self._decide(key, approval_signal(request_id, decision, digest))
            elif decide_approval(self._engine.store, self._dispatcher, self.checkpoint_key, request_id, decision):
                self._engine.keeper.poke(self.checkpoint_key)

    def steer(self, message: str) -> None:
        """Say something before the run's next model call; tool calls of its batch that were not begun are skipped.

        From any process, and durable once this returns: a worker that is busy with the run reads it within a heartbeat,
        a run that waits keeps it. Raises `RunFinished` when the run ended already, `message_empty`.
        """
        self._say(steer_signal(f"steer_{secrets.token_hex(8)}", message))

    def follow_up(self, message: str) -> None:
        """Give the run another input for when it completes: it goes on in a new segment, first come first served.

        Durable like `steer`, and with the same errors. A run that ends otherwise drops it with a diagnostic.
        """
        self._say(follow_up_signal(f"follow_up_{secrets.token_hex(8)}", message))

    def _say(self, signal: Signal) -> None:
        with self._unless_gone():
            self._engine.store.post(self.checkpoint_key, signal)
        self._engine.keeper.poke(self.checkpoint_key)

    @contextlib.contextmanager
    def _unless_gone(self) -> Iterator[None]:
        """`RunFinished` for a run in memory that is gone since it ended."""
        try:
            yield
        except CheckpointError as error:
            if error.code != "checkpoint_not_found":
                raise
            raise RunFinished(self.checkpoint_key) from None

    def resume(self, state_or_token: RunState | str | None = None, payload: str | None = None) -> RunHandle:
        """Go on with a run that waits, this one or that of a state or key, with the runner that made this handle; see
        `Runner.start_resume`. `payload` answers its question."""
        assert self.resumer is not None
        if isinstance(state_or_token, RunState):
            return self.resumer(state_or_token, input=payload)
        return self.resumer(state_or_token or self.checkpoint_key, input=payload, store=self._engine.store)

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
        asked = self._asked(request_id)
        key, digest = asked or shown_to(self._engine.store, self.checkpoint_key, request_id)
        self._decide(key, provider_failed_signal(request_id, message, digest))

    def is_open(self, request_id: str) -> bool:
        """Whether the run waits for this approval."""
        return request_id in open_approvals(self._engine.store, self.checkpoint_key)

    def _asked(self, request_id: str) -> tuple[str, str] | None:
        """Which record of the tree asks for what was shown here, saved or not, and the digest of it; None when none
        does."""
        for event in self._feed.events:
            if isinstance(event, ApprovalRequestedEvent) and event.request_id == request_id:
                digest = digest_of(event.tool_name, event.metadata["arguments"])
                key = asking_record(self._engine.store, self.checkpoint_key, request_id, digest)
                return None if key is None else (key, digest)
        return None

    def _decide(self, key: str, signal: Signal) -> None:
        decide(self._engine.store, self._dispatcher, key, signal)
        self._engine.keeper.poke(key)

    def when_over(self, call: Callable[[], object]) -> None:
        """Call once the outcome is there."""
        self._future.add_done_callback(lambda _: call())

    def waiting(self) -> RunResult | None:
        """The result of a run that waits for its user."""
        if self._future.exception() is not None or self._future.result().status is not AgentStatus.WAIT_USER:
            return None
        return self._future.result()

    def failure(self) -> BaseException | None:
        """What stopped the run outside of it, once it is over."""
        return self._future.exception()

    def fail(self, error: BaseException) -> None:
        """The run cannot be followed any more."""
        with contextlib.suppress(InvalidStateError):  # its outcome is there
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
            self.fail(error)
        else:
            with contextlib.suppress(InvalidStateError):
                self._future.set_result(result)
            self._feed.close()
