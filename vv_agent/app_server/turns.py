"""Turns: each is a run in the session of its thread. They are started, followed to their end, and taken up again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from vv_agent.app_server import protocol as wire
from vv_agent.app_server import rpc
from vv_agent.app_server.approvals import Approvals, Asking
from vv_agent.app_server.items import Projection, Shown, checkpoint_of, outcome_of, text_of
from vv_agent.app_server.outgoing import Connection, OutgoingRouter
from vv_agent.app_server.rpc import RequestId, RpcError
from vv_agent.app_server.runs import AppServerRunAdapter, Plan, is_held
from vv_agent.app_server.sql import ItemConflict, SqlThreadStore, TurnRecord
from vv_agent.app_server.threads import LiveThread, Threads
from vv_agent.checkpoint.config import validate_key
from vv_agent.checkpoint.record import Head
from vv_agent.errors import CheckpointError, ConfigError, RunFinished, StoreError
from vv_agent.events import ApprovalRequestedEvent, ApprovalResolvedEvent, RunEvent
from vv_agent.results import AgentStatus
from vv_agent.run_handle import RunHandle
from vv_agent.runtime.patience import patiently
from vv_agent.runtime.tail import is_over

INTERRUPTED = "turn interrupted"
LOST = "the server stopped before the turn ended"


@dataclass(eq=False)
class ActiveTurn:
    """A turn whose run is under way. `resumed`: its events are read again from the first one on."""

    record: TurnRecord
    plan: Plan
    handle: RunHandle
    asking: Asking
    view: Projection
    resumed: bool = False
    resolved: set[str] = field(default_factory=set)
    """Approvals whose decision clients were told."""
    unkept: bool = False
    """The store did not take the last item: the next one is tried once, so that the run is not held up."""

    @property
    def turn(self) -> wire.AppTurn:
        return self.record.turn

    @property
    def turn_id(self) -> str:
        return self.record.turn.turn_id

    @property
    def waits(self) -> bool:
        """Only for a decision, and nobody is here to make it."""
        waiting = list(self.asking.open.values())
        there = self.asking.owner is not None or any(one.decision is not None for one in waiting)
        return self.asking.durable and bool(waiting) and not there


class Turns:
    """`turn/*`, and the runs behind them."""

    def __init__(
        self, threads: Threads, runs: AppServerRunAdapter, router: OutgoingRouter, approvals: Approvals, *,
        approval_timeout: float, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._threads = threads
        self._runs = runs
        self._router = router
        self._approvals = approvals
        self._approval_timeout = approval_timeout
        self._clock = clock

    @property
    def _store(self) -> SqlThreadStore:
        return self._threads.store

    # Requests.

    def start(self, connection: Connection, request_id: RequestId, params: wire.TurnStartParams) -> None:
        with self._threads.at(params.thread_id) as (live, thread):
            if live.active is not None:
                raise RpcError(
                    rpc.INVALID_PARAMS, f"thread {live.thread_id!r} has the active turn {live.active.turn_id}"
                )
            record = self._new(thread, params.input, params.metadata, "running")
            active = self._begin(live, thread, record, connection)
            answer = wire.TurnStartResponse(thread_id=live.thread_id, turn_id=active.turn_id, status="running")
            self._threads.subscribe(live, connection)
            self._router.respond(connection, request_id, answer)
            self._announce(live, thread, active)

    def resume(self, connection: Connection, request_id: RequestId, params: wire.TurnResumeParams) -> None:
        with self._threads.at(params.thread_id) as (live, thread):
            record = self._resumable(live, params)
            plan = self._runs.plan(thread, record, self._store.session(thread.thread_id))
            if plan.store is None:
                raise RpcError(rpc.INTERNAL_ERROR, "the host gives no checkpoint settings; turns cannot be resumed")
            look = plan.store.look(params.checkpoint_key)
            if look is None:
                raise RpcError(rpc.INVALID_PARAMS, f"there is no checkpoint {params.checkpoint_key!r}")
            if is_over(look.head):
                self._replay(connection, request_id, record, plan)
            elif live.active is not None or is_held(look.head, look.now):
                self._router.respond(connection, request_id, _running(record.turn, look.head, checkpoint_of(look.head)))
            else:
                active = self._take_up(live, record, plan, look.head, connection)
                self._threads.subscribe(live, connection)
                self._router.respond(connection, request_id, _running(active.turn, look.head))
                self._announce(live, thread, active)

    def interrupt(self, connection: Connection, request_id: RequestId, params: wire.TurnInterruptParams) -> None:
        with self._threads.at(params.thread_id) as (live, _):
            active = _active(live, params.expected_turn_id)
            if not active.handle.cancel(params.reason) and not active.handle.state().cancelled:
                raise _just_ended(active)
            answer = wire.TurnInterruptResponse(thread_id=live.thread_id, turn_id=active.turn_id, cancelled=True)
            self._router.respond(connection, request_id, answer)
            self._drop_approvals(live, active, INTERRUPTED)

    def steer(self, connection: Connection, request_id: RequestId, params: wire.TurnMessageParams) -> None:
        with self._threads.at(params.thread_id) as (live, _):
            active = _active(live, params.expected_turn_id)
            try:
                active.handle.steer(text_of(params.input))
            except RunFinished:
                raise _just_ended(active) from None
            except ConfigError as error:
                raise RpcError(rpc.INVALID_PARAMS, str(error)) from None
            answer = wire.TurnQueuedResponse(thread_id=live.thread_id, turn_id=active.turn_id, queued=True)
            self._router.respond(connection, request_id, answer)

    def follow_up(self, connection: Connection, request_id: RequestId, params: wire.TurnMessageParams) -> None:
        with self._threads.at(params.thread_id) as (live, thread):
            active = _active(live, params.expected_turn_id)
            queued = self._new(thread, params.input, None, "queued")
            self._store.put_turn(queued)
            self._router.respond(connection, request_id, wire.TurnQueuedResponse(
                thread_id=live.thread_id, turn_id=active.turn_id, queued=True, follow_up_turn_id=queued.turn.turn_id,
            ))  # fmt: skip

    # After a restart.

    def recover(self) -> None:
        """Take up what ran when the last server stopped; what cannot be is interrupted."""
        for record in self._store.turns_of("running"):
            with self._threads.at(record.turn.thread_id, archived=True) as (live, thread):
                try:
                    self._recover(live, thread, record)
                except Exception as error:
                    problem = error.message if isinstance(error, RpcError) else str(error)
                    self._store.put_turn(self._ended(record, "interrupted", wire.Outcome(error=f"{LOST}: {problem}")))
        for thread_id in dict.fromkeys(queued.turn.thread_id for queued in self._store.turns_of("queued")):
            with self._threads.at(thread_id, archived=True) as (live, thread):
                if (
                    live.active is None
                    and thread.status == "idle"
                    and self._store.last_status(thread_id) == "completed"
                ):
                    self._follow_up(live, None)

    def _recover(self, live: LiveThread, thread: wire.AppThread, record: TurnRecord) -> None:
        if record.checkpoint_key is None:
            self._store.put_turn(self._ended(record, "interrupted", wire.Outcome(error=LOST)))
            return
        plan = self._runs.plan(thread, record, self._store.session(thread.thread_id))
        look = None if plan.store is None else plan.store.look(record.checkpoint_key)
        if look is None:
            raise RpcError(rpc.INTERNAL_ERROR, f"there is no checkpoint {record.checkpoint_key!r}")
        self._announce(live, thread, self._take_up(live, record, plan, look.head, None))

    # Beginning.

    def _new(self, thread: wire.AppThread, parts: list[Any], metadata: Any, status: wire.TurnStatus) -> TurnRecord:
        turn = wire.AppTurn(
            turn_id=self._store.new_turn_id(), thread_id=thread.thread_id, run_id=None, status=status,
            started_at=self._clock(), completed_at=None, input=parts,
        )  # fmt: skip
        return TurnRecord(turn, metadata=metadata or {})

    def _begin(
        self, live: LiveThread, thread: wire.AppThread, record: TurnRecord, owner: Connection | None
    ) -> ActiveTurn:
        """Write the turn down, then start its run: a crash between leaves a turn that is known to have done nothing."""
        plan = self._runs.plan(thread, record, self._store.session(thread.thread_id))
        before = self._store.turn(record.turn.turn_id)
        record = replace(record, checkpoint_key=plan.key)
        self._store.put_turn(record)
        try:
            handle = self._runs.start(plan, text_of(record.turn.input))
        except Exception as error:
            if before is None:
                self._store.drop_turn(record.turn.turn_id)
            raise RpcError(rpc.INTERNAL_ERROR, f"the run could not be started: {error}") from error
        return self._activate(live, record, plan, handle, run_id=handle.run_id, owner=owner)

    def _take_up(
        self, live: LiveThread, record: TurnRecord, plan: Plan, head: Head, owner: Connection | None
    ) -> ActiveTurn:
        handle = self._runs.take_up(plan, text_of(record.turn.input))
        again = record.turn.model_copy(update={"status": "running", "completed_at": None, "result": None})
        record = replace(record, turn=again, checkpoint_key=plan.key)
        return self._activate(live, record, plan, handle, run_id=head.run_id, owner=owner, resumed=True)

    def _activate(
        self, live: LiveThread, record: TurnRecord, plan: Plan, handle: RunHandle, *,
        run_id: str, owner: Connection | None, resumed: bool = False,
    ) -> ActiveTurn:  # fmt: skip
        record = replace(record, turn=record.turn.model_copy(update={"run_id": run_id}))
        timeout = self._approval_timeout if plan.asks_for is None else None
        here = owner if owner is not None and owner.speaks else None
        asking = Asking(plan.store is not None, timeout, handle.approve, here)
        view = Projection(live.thread_id, record.turn.turn_id)
        try:
            self._store.put_turn(record)
        except StoreError as error:  # the run goes on; its end is written with the same words
            self._warn(live, "durable_resume_store" if resumed else "event_stream", str(error))
        live.active = active = ActiveTurn(record, plan, handle, asking, view, resumed)
        name = f"vv-turn-{active.turn_id}"
        threading.Thread(target=self._follow, args=(live, active), name=name, daemon=True).start()
        return active

    def _announce(self, live: LiveThread, thread: wire.AppThread, active: ActiveTurn) -> None:
        """Say that the turn runs. It is followed already, and shows nothing before this: the thread's lock is held."""
        try:
            patiently(lambda: self._threads.set_status(thread, "running"))
        except StoreError as error:
            self._warn(live, "event_stream", str(error))
        self._threads.tell_status(live, "running")
        self._threads.tell(live, "turn/started", wire.TurnStarted(
            thread_id=live.thread_id, turn_id=active.turn_id, run_id=active.turn.run_id, status="running"
        ))  # fmt: skip

    # Following.

    def _follow(self, live: LiveThread, active: ActiveTurn) -> None:
        for event in active.handle.events():
            self._router.wait_for_readers(list(live.subscribers))
            with live.lock:
                try:
                    self._show(live, active, event)
                except Exception as error:  # of this event; the next one may be what the run waits for
                    self._warn_of_events(live, active, error)
        try:
            result = active.handle.result()
            look = active.plan.store.look(active.handle.checkpoint_key) if active.plan.store is not None else None
            if (
                result.status is AgentStatus.RUNNING
            ):  # this process stops and gave the run back: the next one takes it up
                with self._threads.hold(live.thread_id):
                    live.active = None
                return
            status, outcome = outcome_of(result, look.head if look else None)
        except BaseException as error:  # whatever stopped the run: its turn is over
            problem = str(error) or type(error).__name__
            status, outcome = "failed", wire.Outcome(error=problem, completion_reason="failed")
            if active.resumed:
                store = isinstance(error, StoreError)
                self._warn(live, "durable_resume_store" if store else "durable_resume_runtime", str(error))
        self._router.wait_for_readers(list(live.subscribers))
        with self._threads.hold(live.thread_id):
            try:
                self._end(live, active, status, outcome)
            except Exception as error:
                self._warn_of_events(live, active, error)
            finally:  # a follow-up that began is the active turn by now
                if live.active is active:
                    live.active = None

    def _show(self, live: LiveThread, active: ActiveTurn, event: RunEvent) -> None:
        """Store what an event shows, then say it."""
        shown = active.view.show(event)
        if shown is None:
            return
        fresh = True
        if not (isinstance(event, ApprovalResolvedEvent) and event.request_id in active.resolved):
            fresh = self._show_item(live, active, shown)
        if isinstance(event, ApprovalResolvedEvent):
            self._approvals.settle(event.request_id)
            fresh = fresh and event.request_id not in active.resolved
            active.resolved.add(event.request_id)
        if fresh:
            for method, params in shown.besides:
                self._threads.tell(live, method, params)
        if isinstance(event, ApprovalRequestedEvent):
            asked = shown.besides[0][1]
            assert isinstance(asked, wire.ApprovalRequestParams)
            if not active.resumed or patiently(lambda: active.handle.is_open(event.request_id)):
                self._approvals.open(active.asking, asked)

    def _show_item(self, live: LiveThread, active: ActiveTurn, shown: Shown) -> bool:
        """False if clients were shown this item before. One that the store does not take is not shown: it has no
        number."""
        item = shown.item
        if shown.kept:
            try:
                stored = patiently(lambda: self._store.add_item(item), until=(lambda: True) if active.unkept else None)
            except ItemConflict:
                self._warn(live, "item_identity_conflict", f"{item.item_id} is there with other content")
                return False
            except StoreError as error:
                if not active.unkept:
                    self._warn_of_events(live, active, error)
                active.unkept = True
                return True
            active.unkept = False
            if stored is None:
                return False
            item = stored
        for method, extra in shown.notes:
            self._router.notify(live.subscribers, method, {**item.to_wire(), **extra})
        return True

    def _drop_approvals(self, live: LiveThread, active: ActiveTurn, reason: str) -> None:
        """What the run asked is not asked any more: it timed out, for this reason."""
        for pending in list(active.asking.open.values()):
            asked = pending.params
            self._show(live, active, ApprovalResolvedEvent(
                event_id=f"{asked.request_id}_dropped", run_id=active.handle.run_id, trace_id="app-server",
                created_at=self._clock(), request_id=asked.request_id, tool_call_id=asked.tool_call_id,
                tool_name=asked.tool_name, action="timeout", metadata={"reason": reason},
            ))  # fmt: skip

    def _warn(self, live: LiveThread, code: str, message: str) -> None:
        self._threads.tell(live, "error/warning", wire.Warned(message=message, code=code))

    def _warn_of_events(self, live: LiveThread, active: ActiveTurn, error: Exception) -> None:
        self._warn(live, "durable_resume_projection" if active.resumed else "event_stream", str(error))

    # Ending.

    def _end(self, live: LiveThread, active: ActiveTurn, status: wire.TurnStatus, outcome: wire.Outcome) -> None:
        live.unwritten = self._ended(active.record, status, outcome)
        try:
            self._drop_approvals(live, active, "turn ended")
            patiently(lambda: self._threads.write_end(live))
        except StoreError as error:  # clients hear the end all the same; it is written before the thread is read
            self._warn(live, "durable_resume_store" if active.resumed else "event_stream", str(error))
        self._threads.tell_status(live, "idle")
        turn = active.turn
        self._threads.tell(live, "turn/completed", wire.TurnCompleted(
            thread_id=turn.thread_id, turn_id=turn.turn_id, run_id=turn.run_id, status=status, **dict(outcome)
        ))  # fmt: skip
        if status == "completed":
            self._follow_up(live, active.asking.owner)

    def _follow_up(self, live: LiveThread, owner: Connection | None) -> None:
        """Start the turn that waits longest, if there is one."""
        patiently(lambda: self._threads.write_end(live))
        queued = patiently(lambda: self._store.turns_of("queued", live.thread_id))
        thread = self._store.thread(live.thread_id)
        if not queued or thread is None:
            return
        turn = queued[0].turn.model_copy(update={"status": "running", "started_at": self._clock()})
        record = replace(queued[0], turn=turn)
        try:
            self._announce(live, thread, self._begin(live, thread, record, owner))
        except Exception as error:
            problem = error.message if isinstance(error, RpcError) else str(error)
            self._store.put_turn(self._ended(record, "failed", wire.Outcome(error=problem)))
            self._warn(live, "follow_up", problem)

    def _ended(self, record: TurnRecord, status: wire.TurnStatus, outcome: wire.Outcome) -> TurnRecord:
        changes = {"status": status, "completed_at": self._clock(), "result": outcome}
        return replace(record, turn=record.turn.model_copy(update=changes))

    # Resuming.

    def _resumable(self, live: LiveThread, params: wire.TurnResumeParams) -> TurnRecord:
        """The turn a client wants to resume, under the key it names."""
        try:
            validate_key(params.checkpoint_key)
        except CheckpointError as error:
            raise RpcError(rpc.INVALID_PARAMS, error.message) from None
        record = self._store.turn(params.turn_id)
        if record is None or record.turn.thread_id != params.thread_id:
            raise RpcError(rpc.INVALID_PARAMS, f"thread {params.thread_id!r} has no turn {params.turn_id[:200]!r}")
        if record.checkpoint_key != params.checkpoint_key:
            raise RpcError(rpc.INVALID_PARAMS, f"turn {params.turn_id!r} has no checkpoint {params.checkpoint_key!r}")
        if live.active is not None and live.active.turn_id != params.turn_id:
            raise RpcError(rpc.INVALID_PARAMS, f"thread {live.thread_id!r} has the active turn {live.active.turn_id}")
        return replace(record, checkpoint_key=params.checkpoint_key)

    def _replay(self, connection: Connection, request_id: RequestId, record: TurnRecord, plan: Plan) -> None:
        """Answer with the end of a run that is over; nothing runs."""
        assert plan.store is not None
        assert plan.key is not None
        handle = self._runs.runner.attach(plan.key, store=plan.store)
        result, look = handle.result(), plan.store.look(plan.key)
        status, outcome = outcome_of(result, look.head if look else None)
        ending = {name: getattr(outcome, name) for name in wire.Ending.model_fields}
        turn = record.turn
        if turn.status in ("running", "interrupted") and status != turn.status:
            self._store.put_turn(self._ended(record, status, outcome))
        self._router.respond(connection, request_id, wire.TurnResumeResponse(
            thread_id=turn.thread_id, turn_id=turn.turn_id, run_id=result.run_id, status=status, **ending
        ))  # fmt: skip


def _active(live: LiveThread, expected: str | None) -> ActiveTurn:
    if live.active is None:
        raise RpcError(rpc.NO_ACTIVE_TURN, f"thread {live.thread_id!r} has no active turn")
    if expected and expected != live.active.turn_id:
        raise RpcError(rpc.OTHER_TURN_ACTIVE, f"the active turn is {live.active.turn_id}, not {expected[:200]!r}")
    return live.active


def _just_ended(active: ActiveTurn) -> RpcError:
    return RpcError(rpc.NO_ACTIVE_TURN, f"turn {active.turn_id} has just ended")


def _running(
    turn: wire.AppTurn, head: Head, checkpoint: wire.CheckpointSummary | None = None
) -> wire.TurnResumeResponse:
    return wire.TurnResumeResponse(
        thread_id=turn.thread_id, turn_id=turn.turn_id, run_id=head.run_id, status="running", checkpoint=checkpoint
    )
