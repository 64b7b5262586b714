"""Carrying a run on for a caller, here or by workers, with its handle kept up to date."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import json
import logging
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from vv_agent import process
from vv_agent._loop import awaited_on, run_async
from vv_agent.approvals import ApprovalBroker, ApprovalDecision, ApprovalProvider, ApprovalRequest
from vv_agent.checkpoint.identity import event_id
from vv_agent.checkpoint.record import Head
from vv_agent.config import RunConfig
from vv_agent.dispatch.base import Backend, CycleDispatcher
from vv_agent.dispatch.inline import InlineBackend
from vv_agent.errors import LASTING_FAULTS, CheckpointError, StoreError, VVAgentError
from vv_agent.events import ApprovalRequestedEvent, ApprovalResolvedEvent, RunEvent, make_event
from vv_agent.launch import Admitted, open_approvals
from vv_agent.outcome import read_result
from vv_agent.result import RunResult
from vv_agent.results import AgentResult, AgentStatus, CompletionReason
from vv_agent.run_handle import RunHandle
from vv_agent.runtime import eventlog
from vv_agent.runtime.body import Body
from vv_agent.runtime.context import Engine
from vv_agent.runtime.feed import EventFeed
from vv_agent.runtime.opening import InputBlocked
from vv_agent.runtime.patience import patiently
from vv_agent.runtime.program import Program
from vv_agent.tracing import Tracer
from vv_agent.usage import aggregate

log = logging.getLogger("vv_agent.run")
T = TypeVar("T")
_LOOK = 0.25
"""Seconds between two looks whether a request that was shown is in the store."""


class Start:
    """A run that is about to begin."""

    def __init__(
        self, engine: Engine, backend: Backend, dispatcher: CycleDispatcher, admitted: Admitted, config: RunConfig
    ) -> None:
        self.engine = engine
        self.backend = backend
        self._run = admitted
        self._config = config
        self._feed = WatchedFeed(config.stream, tracer_of(config, admitted.body), config.log_preview_chars)
        self.handle = RunHandle(engine, dispatcher, admitted.key, admitted.run_id, self._feed)
        self._feed.desk = desk_for(config, self.handle, past=not backend.local)

    def begin(self, *, in_caller: bool = False, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Carry the run on: in the caller's thread, in one of our own, or by workers. Asynchronous tools run on `loop`,
        whose task awaits the run."""
        token = self._config.cancellation_token
        if token is not None:
            self.handle.when_over(token.on_cancel(lambda: self.handle.leave(token.reason)))
        if self._run.rests:
            self.handle.finish(self._read)
        elif not self.backend.local:
            programs, key = self.engine.programs, self._run.key
            programs.bind(key, self._run.program)  # should no worker be there, this process has what the run needs
            follow(
                self.engine,
                self.handle,
                self._feed,
                self._run.body,
                then=lambda: programs.unbind(key, self._run.program),
                read=self._read,
            )
            self.backend.drive(self.engine, self._run.recipe, resume=self._run.existed)
        elif in_caller:
            unknown = not self._run.body.checkpointed and token is None
            self.engine.leave_alone(self._run.key, unknown)
            self._drive(None)
        else:
            in_background(lambda: self._drive(loop))

    def _read(self) -> RunResult:
        """The result, with what this call knows and the record does not."""
        kind = self._run.program.hooks.output_type
        result = read_result(self.engine, self._run.key, tuple(self._feed.events), kind)
        return replace(result, cancellation=self._config.cancellation_token, config=self._config)

    def _drive(self, loop: asyncio.AbstractEventLoop | None) -> None:
        key, engine = self._run.key, self.engine
        engine.programs.bind(key, self._run.program)
        engine.listen(key, self._feed)
        for event in self._run.shown:
            self._feed.put(event)
        if self._run.existed:
            show_open_approvals(engine, key, self._run.body, self._feed)

        def work() -> RunResult:
            drive = partial(self.backend.drive, engine, self._run.recipe, resume=self._run.existed)
            carry_on(drive, waits=self._run.waits)
            return self._read()

        try:
            with awaited_on(loop):
                self.handle.finish(work)
        finally:
            engine.unlisten(key, self._feed)
            engine.leave_alone(key, False)
            waiting = None if self._run.body.checkpointed else self.handle.waiting()
            forget = partial(_forget, engine, key, self._run.program)
            if (
                waiting is not None and waiting.home is not None
            ):  # it can be resumed while somebody holds a result of it
                weakref.finalize(waiting.home, forget)
            elif self._run.body.checkpointed:
                engine.programs.unbind(key, self._run.program)
            else:
                forget()


class Blocked:
    """A start whose input a guardrail did not let pass: no record, no model, a failed result."""

    def __init__(
        self, engine: Engine, dispatcher: CycleDispatcher, key: str, block: InputBlocked, run: RunResult
    ) -> None:
        self.backend = InlineBackend()
        self._feed, self._block, self._run = EventFeed(), block, run
        self.handle = RunHandle(engine, dispatcher, key, run.run_id, self._feed)

    def begin(self, *, in_caller: bool = False, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Show the two events there are, and the result."""
        run = self._run
        whose = {
            "run_id": run.run_id,
            "trace_id": run.trace_id,
            "agent_name": run.agent_name,
            "created_at": time.time(),
        }
        for n, (name, fields) in enumerate((
            ("run_started", {"input": run.input}),
            ("run_failed", {"error": self._block.message, "status": "failed", "completion_reason": "failed"}),
        )):  # fmt: skip
            identity = event_id(run.run_id, 0, 1, name, n)
            self._feed.put(make_event(name, event_id=identity, **whose, **fields))  # type: ignore[arg-type]
        self.handle.finish(lambda: replace(run, events=tuple(self._feed.events)))


def blocked_result(
    block: InputBlocked, text: str, *, run_id: str, trace_id: str, agent_name: str, config: RunConfig
) -> RunResult:
    """The result of a run that did not begin."""
    raw = AgentResult(
        status=AgentStatus.FAILED, completion_reason=CompletionReason.FAILED, completion_tool_name=None,
        partial_output=None, messages=(), cycles=(), final_answer=None, wait_reason=None, error=block.message,
        shared_state=dict(config.shared_state), token_usage=aggregate([]), checkpoint_key=None,
        resume_observation=None, error_code=block.code,
    )  # fmt: skip
    metadata = {**config.metadata, "trace_id": trace_id}
    return RunResult.of(raw, input=text, run_id=run_id, trace_id=trace_id, agent_name=agent_name, metadata=metadata)


class Desk:
    """Has each call that waits for a yes decided: by the provider, or by whoever uses the broker. With `past`, events
    may be of long ago: then the store says which requests are open."""

    def __init__(
        self, provider: ApprovalProvider | None, broker: ApprovalBroker | None, handle: RunHandle, *, past: bool
    ) -> None:
        self._provider = provider
        self._broker = broker
        self._handle = handle
        self._past = past
        self._asked: set[str] = set()
        self._settled = threading.Condition()
        self._resolved: set[str] = set()
        self._over = False
        handle.when_over(self._close)

    def see(self, event: RunEvent) -> None:
        if isinstance(event, ApprovalRequestedEvent) and event.request_id not in self._asked:
            self._asked.add(event.request_id)
            in_background(lambda: self._ask(event))
        elif isinstance(event, ApprovalResolvedEvent):
            with self._settled:
                self._resolved.add(event.request_id)
                self._settled.notify_all()
            self._discard(event.request_id)

    def _close(self) -> None:
        with self._settled:
            self._over = True
            self._settled.notify_all()
        for name in tuple(self._asked):  # `see` may add to it
            self._discard(name)

    def _waits(self, name: str) -> bool:
        """Whether the request is open: at once for a run of this process; else once the store says so, unless it turns
        out to be of long ago."""
        while self._past and not patiently(lambda: self._handle.is_open(name)):
            with self._settled:
                if self._settled.wait_for(lambda: self._over or name in self._resolved, _LOOK):
                    return False
        return True

    def _discard(self, name: str) -> None:
        if self._broker is not None:
            self._broker.discard(name)

    def _ask(self, event: ApprovalRequestedEvent) -> None:
        name = event.request_id
        with contextlib.suppress(VVAgentError):  # it was decided elsewhere, or the run is over
            if not self._waits(name):
                return
            request = _request(event)
            if self._broker is not None:
                self._broker.register(request, partial(self._handle.approve, name))
            try:
                decision = self._decide(request)
            except BaseException as error:  # whatever it is: nobody else would hear of it
                self._discard(name)
                message = str(error) or type(error).__name__
                self._tell(name, lambda: self._handle.fail_approval(name, message))
                return
            if decision is not None:
                self._tell(name, lambda: self._handle.approve(name, decision))

    def _tell(self, name: str, post: Callable[[], object]) -> None:
        """Post a decision, however long the store takes none: nobody else has it."""
        while True:
            try:
                post()
                return
            except StoreError as error:
                if error.code in LASTING_FAULTS:
                    raise
            with self._settled:
                if self._settled.wait_for(lambda: self._over or name in self._resolved, _LOOK):
                    return

    def _decide(self, request: ApprovalRequest) -> ApprovalDecision | None:
        if self._provider is None:
            return None
        wants = getattr(self._provider, "should_request", None)
        if wants is not None:
            asked = wants(request)
            if not (run_async(asked) if inspect.isawaitable(asked) else asked):
                return ApprovalDecision.allow()
        decision = self._provider.decide(request)
        if inspect.isawaitable(decision):
            decision = run_async(decision)
        if decision is not None and not isinstance(decision, ApprovalDecision):
            raise TypeError(f"the approval provider answered with {type(decision).__name__}, not an ApprovalDecision")
        return decision


def desk_for(config: RunConfig | None, handle: RunHandle, *, past: bool) -> Desk | None:
    """A desk, if the config has somebody to ask."""
    if config is None or (config.approval_provider is None and config.approval_broker is None):
        return None
    return Desk(config.approval_provider, config.approval_broker, handle, past=past)


def _request(event: ApprovalRequestedEvent) -> ApprovalRequest:
    arguments = event.metadata["arguments"]
    return ApprovalRequest(
        request_id=event.request_id, run_id=event.run_id, trace_id=event.trace_id, agent_name=event.agent_name or "",
        cycle_index=event.cycle_index or 0, tool_call_id=event.tool_call_id, tool_name=event.tool_name,
        arguments=arguments, preview=f"{event.tool_name} {json.dumps(arguments, ensure_ascii=False)}",
        metadata={} if event.session_id is None else {"session_id": event.session_id},
    )  # fmt: skip


class WatchedFeed(EventFeed):
    """A feed that also calls the config's `stream` function, whose errors are its own, logs a line of at most `preview`
    characters for each durable event, and has requests decided."""

    def __init__(
        self,
        stream: Callable[[RunEvent], object] | None = None,
        tracer: Tracer | None = None,
        preview: int | None = None,
    ) -> None:
        super().__init__()
        self._stream = stream
        self._tracer = tracer
        self._preview = preview
        self.desk: Desk | None = None

    def put(self, event: RunEvent) -> None:
        super().put(event)
        if self._tracer is not None:
            self._tracer.put(event)
        if self.desk is not None:
            self.desk.see(event)
        if self._preview is not None and event.type not in eventlog.LIVE_ONLY:
            log.info("%s", _line(event)[: self._preview])
        if self._stream is not None:
            try:
                self._stream(event)
            except Exception:
                self._stream = None

    def close(self) -> None:
        if self._tracer is not None:
            self._tracer.close()
        super().close()


def tracer_of(config: RunConfig | None, body: Body) -> Tracer | None:
    """Who tells the config's trace sinks of a run that this process follows."""
    sinks = config.tracing.get("sink") if config is not None else None
    return Tracer(sinks, body.workflow_name) if sinks else None


_ENVELOPE = ("version", "type", "event_id", "run_id", "trace_id", "created_at")


def _line(event: RunEvent) -> str:
    fields = {name: value for name, value in event.to_wire().items() if name not in _ENVELOPE}
    return f"{event.type} {json.dumps(fields, ensure_ascii=False)}"


def carry_on(drive: Callable[[], object], *, waits: bool) -> None:
    """Carry a run on. One that waited for somebody when it was taken up may be in the hands of another caller: then
    this one waits for it, and takes over should the other be lost."""
    while True:
        try:
            drive()
        except CheckpointError as error:
            if not waits or error.code != "checkpoint_claim_active":
                raise
            time.sleep(_LOOK)
        else:
            return


def show_open_approvals(engine: Engine, key: str, body: Body, feed: EventFeed) -> None:
    """Show what a run that is taken up again still waits for, so that somebody may decide."""
    waiting, reader, after = open_approvals(engine.store, key), eventlog.EventReader(body), 0
    while waiting and (entries := engine.store.entries(key, after)):
        after = entries[-1].seq
        for numbered in (numbered for entry in entries for numbered in reader.feed(entry)):
            event = numbered.event
            if isinstance(event, ApprovalRequestedEvent) and waiting.pop(event.request_id, None) is not None:
                feed.put(event)


def follow(
    engine: Engine,
    handle: RunHandle,
    feed: EventFeed,
    body: Body,
    *,
    then: Callable[[], None] = lambda: None,
    read: Callable[[], RunResult] | None = None,
) -> None:
    """Watch a run that others advance, from its first event; the handle gets its result, by `read`, when the run ends
    or rests (`then` is called before)."""
    key = handle.checkpoint_key

    def over(end: Head | VVAgentError) -> None:
        then()
        if isinstance(end, VVAgentError):
            handle.fail(end)
        else:
            handle.finish(read or (lambda: read_result(engine, key, tuple(feed.events))))

    process.tailer_for(engine.store).follow(key, body, feed, over)


def _forget(engine: Engine, key: str, program: Program) -> None:
    """Drop the record of a run that asked for no checkpoint."""
    with contextlib.suppress(CheckpointError):
        engine.store.delete(key)
    engine.programs.unbind(key, program)


def in_background(work: Callable[[], None]) -> None:
    """Do work in a thread of its own, in the caller's context."""
    context = contextvars.copy_context()
    threading.Thread(target=lambda: context.run(work), name="vv-run", daemon=True).start()


async def in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a thread of its own, never on the loop's default executor."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def target() -> None:
        try:
            value = context.run(work)
        except BaseException as error:
            outcome: tuple[Callable[[Any], None], Any] = (future.set_exception, error)
        else:
            outcome = (future.set_result, value)
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=target, name="vv-prepare", daemon=True).start()
    return await future
