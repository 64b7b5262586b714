"""Carrying a run on for a caller, here or by workers, with its handle kept up to date."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import json
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from vv_agent import process
from vv_agent._loop import awaited_on, run_async
from vv_agent.approvals import ApprovalBroker, ApprovalDecision, ApprovalProvider, ApprovalRequest
from vv_agent.checkpoint.record import Head
from vv_agent.config import RunConfig
from vv_agent.dispatch.base import Backend, CycleDispatcher
from vv_agent.errors import CheckpointError, VVAgentError
from vv_agent.events import ApprovalRequestedEvent, ApprovalResolvedEvent, RunEvent
from vv_agent.launch import Admitted
from vv_agent.outcome import read_result
from vv_agent.result import RunResult
from vv_agent.run_handle import RunHandle
from vv_agent.runtime.body import Body
from vv_agent.runtime.context import Engine
from vv_agent.runtime.feed import EventFeed

T = TypeVar("T")


class Start:
    """A run that is about to begin."""

    def __init__(
        self, engine: Engine, backend: Backend, dispatcher: CycleDispatcher, admitted: Admitted, config: RunConfig
    ) -> None:
        self.engine = engine
        self.backend = backend
        self._run = admitted
        self._config = config
        self._feed = WatchedFeed(config.stream)
        self.handle = RunHandle(engine, dispatcher, admitted.key, admitted.run_id, self._feed)
        self._feed.desk = desk_for(config, self.handle, past=not backend.local)

    def begin(self, *, in_caller: bool = False, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Carry the run on: in the caller's thread, in one of our own, or by workers. Asynchronous tools run on `loop`,
        whose task awaits the run."""
        token = self._config.cancellation_token
        if token is not None:
            self.handle.when_over(token.on_cancel(lambda: self.handle.leave(token.reason)))
        if self._run.rests:
            self.handle.finish(lambda: read_result(self.engine, self._run.key, ()))
        elif not self.backend.local:
            programs, key = self.engine.programs, self._run.key
            programs.bind(key, self._run.program)  # should no worker be there, this process has what the run needs
            follow(self.engine, self.handle, self._feed, self._run.body, then=lambda: programs.unbind(key))
            self.backend.drive(self.engine, self._run.recipe, resume=self._run.existed)
        elif in_caller:
            unknown = not self._run.body.checkpointed and token is None
            self.engine.leave_alone(self._run.key, unknown)
            self._drive(None)
        else:
            in_background(lambda: self._drive(loop))

    def _drive(self, loop: asyncio.AbstractEventLoop | None) -> None:
        key, engine = self._run.key, self.engine
        engine.programs.bind(key, self._run.program)
        engine.listen(key, self._feed)
        for event in self._run.shown:
            self._feed.put(event)

        def work() -> RunResult:
            self.backend.drive(engine, self._run.recipe, resume=self._run.existed)
            return read_result(engine, key, tuple(self._feed.events))

        try:
            with awaited_on(loop):
                self.handle.finish(work)
        finally:
            engine.unlisten(key)
            engine.leave_alone(key, False)
            waiting = None if self._run.body.checkpointed else self.handle.waiting()
            if waiting is not None:  # it can be resumed as long as somebody holds its result
                weakref.finalize(waiting, _forget, engine, key)
            elif self._run.body.checkpointed:
                engine.programs.unbind(key)
            else:
                _forget(engine, key)


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
        handle.when_over(self._close)

    def see(self, event: RunEvent) -> None:
        if isinstance(event, ApprovalRequestedEvent) and event.request_id not in self._asked:
            self._asked.add(event.request_id)
            in_background(lambda: self._ask(event))
        elif isinstance(event, ApprovalResolvedEvent):
            self._discard(event.request_id)

    def _close(self) -> None:
        for name in self._asked:
            self._discard(name)

    def _discard(self, name: str) -> None:
        if self._broker is not None:
            self._broker.discard(name)

    def _ask(self, event: ApprovalRequestedEvent) -> None:
        name = event.request_id
        with contextlib.suppress(VVAgentError):  # it was decided elsewhere, or the run is over
            if self._past and not self._handle.is_open(name):
                return
            request = _request(event)
            if self._broker is not None:
                self._broker.register(request, partial(self._handle.approve, name))
            try:
                decision = self._decide(request)
            except Exception as error:
                self._discard(name)
                self._handle.fail_approval(name, str(error))
                return
            if decision is not None:
                self._handle.approve(name, decision)

    def _decide(self, request: ApprovalRequest) -> ApprovalDecision | None:
        if self._provider is None:
            return None
        wants = getattr(self._provider, "should_request", None)
        if wants is not None and not wants(request):
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
    """A feed that also calls the config's `stream` function, whose errors are its own, and has requests decided."""

    def __init__(self, stream: Callable[[RunEvent], object] | None = None) -> None:
        super().__init__()
        self._stream = stream
        self.desk: Desk | None = None

    def put(self, event: RunEvent) -> None:
        super().put(event)
        if self.desk is not None:
            self.desk.see(event)
        if self._stream is not None:
            try:
                self._stream(event)
            except Exception:
                self._stream = None


def follow(
    engine: Engine, handle: RunHandle, feed: EventFeed, body: Body, *, then: Callable[[], None] = lambda: None
) -> None:
    """Watch a run that others advance, from its first event; the handle gets its result when the run ends or rests
    (`then` is called before)."""
    key = handle.checkpoint_key

    def over(end: Head | VVAgentError) -> None:
        then()
        if isinstance(end, VVAgentError):
            handle.fail(end)
        else:
            handle.finish(lambda: read_result(engine, key, tuple(feed.events)))

    process.tailer_for(engine.store).follow(key, body, feed, over)


def _forget(engine: Engine, key: str) -> None:
    """Drop the record of a run that asked for no checkpoint."""
    engine.programs.unbind(key)
    try:
        engine.store.delete(key)
    except CheckpointError:
        return


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
