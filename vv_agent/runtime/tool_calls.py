"""The tool calls of a cycle: planned, validated, allowed, started, run, completed; results in call order.

Calls run in stages. A stage is either one call that may not be repeated blindly (unsafe or decidable), whose
`started` is saved first together with the receipts before it, or a row of repeatable calls, which run side by side
and need no durable `started`. A call that finishes or pauses the run ends its stage: what the model asked for after
it is skipped.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from vv_agent.cancellation import CancellationToken
from vv_agent.checkpoint.record import Progress
from vv_agent.errors import SignalsWaiting
from vv_agent.messages import ToolCall
from vv_agent.results import ToolDirective, ToolExecutionResult, ToolStatus
from vv_agent.runtime import approval, children, delegation, hooks, journal, steering
from vv_agent.runtime.eventlog import declared_ref
from vv_agent.runtime.helpers import Call
from vv_agent.runtime.inbox import DEFAULT_REASON
from vv_agent.runtime.lease import steady_clock
from vv_agent.runtime.output import Stop
from vv_agent.runtime.run import Run
from vv_agent.runtime.tool_context import CallState, parsed, tool_context
from vv_agent.runtime.transcript import storable
from vv_agent.runtime.waiting import RunCancelled, Stopping, submit, wait_for
from vv_agent.tools.artifacts import shortened
from vv_agent.tools.base import CallSafety, Decidable, Intent, Tool, ToolContext, safety_of
from vv_agent.tools.orchestrator import ReadyCall, RefusedCall, invoke
from vv_agent.tools.output import error_result

MAX_ANSWER_CHARS = 8_000_000
"""A longer result that would end the run is refused."""
MAX_SIDE_BY_SIDE = 16
"""Repeatable calls of one batch that run at the same time."""
_UNKNOWN_OUTCOMES = frozenset(
    {"tool_timeout", "tool_cancelled", "tool_connection_lost", "tool_execution_failed", "tool_orchestrator_error"}
)
"""Codes of results that do not say whether the call had its effect (spec/11, section 4)."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call that may start."""

    position: int
    call: ToolCall
    tool: Tool
    arguments: dict[str, Any]
    shown: dict[str, Any]
    """The arguments for events: a copy of their own, since a handler may change what it is given."""

    @property
    def safety(self) -> CallSafety:
        return safety_of(self.tool)

    @property
    def ends_stage(self) -> bool:
        """Declared to finish or pause the run, so nothing runs beside what follows it."""
        return self.tool.tool_metadata is not None and self.tool.tool_metadata.terminal


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call gave, and how long it took in ms (None: it never started)."""

    result: ToolExecutionResult
    duration_ms: int | None


def run_tools(run: Run) -> Stop | None:
    """Carry out the calls of the open turn that have no receipt yet.

    A call whose outcome turns out to be unknown is settled as after a crash; a Stop if an operator then aborts. Raises
    `journal.Unresolved` when nobody can tell.
    """
    while True:
        if run.children.tasks:
            _settle_children(run)
        pending = _pending(run)
        if not pending and not run.children.waits:
            return None
        if run.hold.stopped is not None:
            raise Stopping
        if (ended_by := _ended_by(run)) is not None:
            for position in pending:
                _skip(run, position, *_ended(ended_by))
            pending = []
        if not pending or (run.children.waits and pending[0] > min(run.children.waits)):
            if run.children.waits:
                raise children.Waiting
            return None
        run.approvals.settle(run)
        if steering.skips(run, pending[0]):
            _skip(run, pending[0], steering.SKIPPED, steering.SKIPPED_TEXT)
            continue
        _next_stage(run, pending[:1] if run.words.steers else pending)
        hooks.raise_failure(run)
        if run.program.reconciles_tools and (stop := journal.settle_tools(run)) is not None:
            return stop


def _settle_children(run: Run) -> None:
    """Give the calls whose work below is over their results."""
    assert run.turn is not None
    for position, result, waited in delegation.settled(run):
        call = run.turn.call(position)
        key, attempt = journal.key_of(run, position), journal.attempt_of(run, position)
        context = partial(tool_context, run, call, CallState(run), attempt=attempt, key=key)
        _complete(run, position, Outcome(hooks.after_tool_call(run, position, context, result), waited))


def _pending(run: Run) -> list[int]:
    turn = run.turn
    assert turn is not None
    waits = run.children.waits
    return [position for position in range(len(turn.calls)) if position not in turn.results and position not in waits]


def close_open_calls(run: Run, why: str = "The run was cancelled before this call.") -> None:
    """Give every call without a receipt the result of a cancelled one, so that the transcript stays valid; `why` is
    told of one that was not started."""
    turn = run.turn
    for position in range(len(turn.calls)) if turn is not None else ():
        assert turn is not None
        if position in turn.results:
            continue
        call_id = turn.call(position).id
        started = run.journal.get(journal.operation_id(run, position), {}).get("state") in ("started", "ambiguous")
        if started or position in run.children.waits:
            text = "The call was cancelled while it ran; whether it had an effect is not known."
            result = error_result(call_id, text, "tool_cancelled")
        else:
            result = error_result(call_id, why, "tool_execution_cancelled")
        run.log(["t", run.cycle, position, result.to_wire()])
    run.children.waits = {}


def _ended_by(run: Run) -> str | None:
    """The directive of a result that ends the batch."""
    turn = run.turn
    assert turn is not None
    directives = [result["directive"] for result in turn.results.values()]
    return next((directive for directive in directives if directive != "continue"), None)


def _ended(directive: str) -> tuple[str, str]:
    """Code and text of a call after the one that ended the batch."""
    code = "skipped_due_to_finish" if directive == "finish" else "skipped_due_to_wait_user"
    return code, f"Tool skipped: an earlier call of the batch ended it ({directive})."


def _skip(run: Run, position: int, code: str, text: str) -> None:
    assert run.turn is not None
    run.log(["t", run.cycle, position, error_result(run.turn.call(position).id, text, code).to_wire()])


def _next_stage(run: Run, pending: list[int]) -> None:
    """Run the next stage."""
    stage: list[Prepared] = []
    for position in pending[:MAX_SIDE_BY_SIDE]:
        prepared = _prepare(run, position, stage)
        if prepared is None:  # refused: it has its result
            if stage:
                break
            return
        if prepared.safety is not CallSafety.REPEATABLE and stage:
            break
        stage.append(prepared)
        if prepared.ends_stage or prepared.safety is not CallSafety.REPEATABLE:
            break
    if stage[0].safety is CallSafety.REPEATABLE:
        if run.unsaved:  # the model's receipt is saved before any tool starts
            run.save(Progress())
        if run.inbox.cancel is not None:  # it came with the answer of that save
            raise RunCancelled(run.inbox.cancel)
        if not steering.skips(run, stage[0].position):
            _run_stage(run, stage)
    else:
        _run_alone(run, stage[0])


def _prepare(run: Run, position: int, stage: list[Prepared]) -> Prepared | None:
    """Check a call in the order of spec/24; None when it was refused and has its result.

    A refusal within a stage waits until the stage is run: results stand in call order.
    """
    assert run.turn is not None
    given = _given_by_hooks(run, position)
    call = run.turn.call(position)
    if given is not None:
        if not stage:
            _planned(run, position, parsed(call))
            _complete(run, position, Outcome(given, None))
        return None
    checked = _checked(run, call)
    if isinstance(checked, ReadyCall):
        prepared = Prepared(position, call, checked.tool, checked.arguments, parsed(call))
        denied = approval.refused(run, position, call, prepared.shown)
        if denied is None:
            if not _undecided(run, prepared):
                return prepared
            if not stage:
                _ask(run, prepared)
            return None
        checked = RefusedCall(denied, prepared.shown)
    if stage:
        return None
    if checked.arguments is not None:
        _planned(run, position, checked.arguments)
        _complete(run, position, Outcome(checked.result, None))
    else:
        run.log(["t", run.cycle, position, checked.result.to_wire()])
    return None


def _checked(run: Run, call: ToolCall) -> ReadyCall | RefusedCall:
    """Whether a call may start; a predicate of the host's that does not come back ends with the run's cancel."""
    orchestrator = hooks.orchestrator(run)
    if orchestrator.policy.can_use_tool is None:
        return orchestrator.check(call)
    found: ReadyCall | RefusedCall = hooks.host_call(
        run, "can_use_tool", "tool_orchestrator_error", lambda: orchestrator.check(call)
    )
    return found


def _given_by_hooks(run: Run, position: int) -> ToolExecutionResult | None:
    def context() -> ToolContext:
        assert run.turn is not None
        attempt, key = journal.attempt_of(run, position), journal.key_of(run, position)
        return tool_context(run, run.turn.call(position), CallState(run), attempt=attempt, key=key)

    return hooks.before_tool_call(run, position, context)


def _undecided(run: Run, prepared: Prepared) -> bool:
    """Whether somebody must say yes first, and has not."""

    def call() -> tuple[ToolContext, dict[str, Any]]:
        return _context(run, prepared, CallState(run)), parsed(prepared.call)

    judge = partial(approval.required, run, prepared.tool, call)
    return approval.undecided(run, prepared.position, prepared.tool, judge)


def _ask(run: Run, first: Prepared) -> None:
    """Open the requests of the first call and of all that are still to be made: who decides sees them side by side.
    Raises `ApprovalNeeded` unless somebody decided already."""
    assert run.turn is not None
    _request(run, first)
    for position in _pending(run):
        given = _given_by_hooks(run, position)
        call = run.turn.call(position)
        checked = _checked(run, call)
        if given is not None or not isinstance(checked, ReadyCall):
            continue
        prepared = Prepared(position, call, checked.tool, checked.arguments, parsed(call))
        if position != first.position and _undecided(run, prepared):
            _request(run, prepared)
    if not run.approvals.settle(run):
        raise approval.ApprovalNeeded


def _request(run: Run, prepared: Prepared) -> None:
    _planned(run, prepared.position, prepared.shown)
    approval.ask(run, prepared.position, prepared.call, prepared.shown)


def _planned(run: Run, position: int, arguments: dict[str, Any]) -> None:
    if approval.was_asked(run, position):  # it was shown then
        return
    run.emit("tool_call_planned", **_call_fields(run, position, arguments))


def _call_fields(run: Run, position: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """The fields of `planned` and `started`; arguments and declaration are referred to, not copied."""
    assert run.turn is not None
    call = run.turn.call(position)
    declared = run.program.declared(call.name)
    return {
        "refs": {"arguments": ("args", position), **declared_ref(declared)},
        "tool_call_id": call.id,
        "tool_name": call.name,
        "arguments": arguments,
        "tool_metadata": declared,
    }


def _run_alone(run: Run, prepared: Prepared) -> None:
    """A call that must be recorded before it starts."""
    _planned(run, prepared.position, prepared.shown)
    context = _context(run, prepared, CallState(run))
    intent: Intent | None = None
    if isinstance(prepared.tool, Decidable):
        with suppress(Exception):  # without an intent nobody can tell later
            intent = prepared.tool.intend(context, prepared.arguments)
    journal.start_tool(run, prepared.position, intent)
    started = run.number("tool_call_started", **_call_fields(run, prepared.position, prepared.shown))
    try:
        run.save(Progress(), starts=True, durable=True, last_events=[started])
    except SignalsWaiting:
        run.note(journal.operation_id(run, prepared.position), None)
        raise RunCancelled(run.inbox.cancel or "Run was cancelled.") from None
    _run_stage(run, [prepared], shown=True)


def _run_stage(run: Run, stage: list[Prepared], *, shown: bool = False) -> None:
    """Run calls side by side and log their results in call order."""
    batch = CancellationToken()
    running = _start_all(run, stage, batch, shown=shown)
    try:
        _wait(run, running, batch)
    except RunCancelled:
        for one in running:
            if one.over and one.state.tasks.asked is None:
                _finish(run, one)
            else:
                _complete(run, one.prepared.position, one.cut_off())
        raise
    except Stopping as stopping:  # what is known is kept; the rest is settled by the next claim
        for one in running:
            if one.call not in stopping.finished and not one.timed_out:
                break
            _finish(run, one)
        raise
    for one in running:
        if _unknown(run, one.prepared, one.outcome().result):
            journal.doubt_tool(run, one.prepared.position)
        else:
            _finish(run, one)
    _save_children(run)


def _start_all(run: Run, stage: list[Prepared], batch: CancellationToken, *, shown: bool) -> list[_Running]:
    running, single = [], len(stage) == 1
    for prepared in stage:
        if not shown:
            _planned(run, prepared.position, prepared.shown)
            run.emit("tool_call_started", **_call_fields(run, prepared.position, prepared.shown))
        running.append(_start(run, prepared, batch if single else batch.child(), single=single))
    return running


def _save_children(run: Run) -> None:
    """What the calls began below, and told those below, is saved at once."""
    if run.children.new or run.children.posts:
        try:
            run.save(Progress())
        except SignalsWaiting:
            raise RunCancelled(run.inbox.cancel or DEFAULT_REASON) from None


def _finish(run: Run, one: _Running) -> None:
    """Log the result of a call that is over, and take over what it changed; one that was given up changes nothing."""
    outcome = one.outcome()
    if not one.timed_out and (faults := one.state.keep(run)):
        call = one.prepared.call
        text = f"Tool {call.name} ran, but left a shared state that cannot be stored: {'; '.join(faults)}"
        outcome = Outcome(error_result(call.id, text, "tool_state_invalid"), outcome.duration_ms)
    asked = one.state.tasks.asked
    if asked is not None and not one.timed_out and outcome.result.status_code is ToolStatus.SUCCESS:
        result = delegation.carry_out(run, one.prepared.position, asked)
        if result is None:
            return
        outcome = Outcome(result, outcome.duration_ms)
    if not one.timed_out:
        result = hooks.after_tool_call(
            run, one.prepared.position, lambda: _context(run, one.prepared, CallState(run)), outcome.result
        )
        outcome = Outcome(result, outcome.duration_ms)
    _complete(run, one.prepared.position, outcome)


def _unknown(run: Run, prepared: Prepared, result: ToolExecutionResult) -> bool:
    """Whether the call may have had its effect although it failed. Who lets runs resume by themselves shows the model
    the failure instead; a repeatable call can always be made again."""
    return (
        run.program.reconciles_tools
        and prepared.safety is not CallSafety.REPEATABLE
        and result.error_code in _UNKNOWN_OUTCOMES
        and (result.metadata or {}).get("definitive_outcome") is not True
    )


@dataclass(slots=True)
class _Running:
    """A call on its way."""

    prepared: Prepared
    token: CancellationToken
    state: CallState
    call: Call[ToolExecutionResult]
    began: int
    until: float | None
    timed_out: bool = False

    @property
    def over(self) -> bool:
        return self.timed_out or self.call.finished.is_set()

    def cut_off(self) -> Outcome:
        """The outcome of a call that did not stop in time."""
        text = "The call was cancelled while it ran; whether it had an effect is not known."
        return Outcome(error_result(self.prepared.call.id, text, "tool_cancelled"), self._duration())

    def _duration(self) -> int:
        return ((self.call.ended or time.monotonic_ns()) - self.began) // 1_000_000

    def outcome(self) -> Outcome:
        duration, prepared = self._duration(), self.prepared
        if self.timed_out:
            seconds = prepared.tool.timeout_seconds
            text = f"Tool {prepared.call.name} timed out after {seconds:g} seconds."
            return Outcome(error_result(prepared.call.id, text, "tool_timeout", {"retryable": True}), duration)
        return Outcome(self.call.result(), duration)


def _context(run: Run, prepared: Prepared, state: CallState, token: CancellationToken | None = None) -> ToolContext:
    position = prepared.position
    return tool_context(
        run, prepared.call, state, attempt=journal.attempt_of(run, position), key=journal.key_of(run, position),
        token=token,
    )  # fmt: skip


def _start(run: Run, prepared: Prepared, token: CancellationToken, *, single: bool) -> _Running:
    state = CallState(run)
    context = _context(run, prepared, state, token)

    def work() -> ToolExecutionResult:
        run.hold.check()
        run.engine.probe("tool", "before")
        result = invoke(prepared.tool, context, prepared.arguments)
        run.engine.probe("tool", "after")
        return result

    timeout = prepared.tool.timeout_seconds
    until = None if timeout is None else steady_clock() + timeout
    began = time.monotonic_ns()
    return _Running(prepared, token, state, submit(run, work, here=single and timeout is None), began, until)


def _wait(run: Run, running: list[_Running], batch: CancellationToken) -> None:
    """Until every call has an outcome or ran out of time."""
    while waiting := [one for one in running if not one.over]:
        limits = [one.until for one in waiting if one.until is not None]
        grace = run.engine.grace
        calls = [one.call for one in running if not one.timed_out]
        if wait_for(run, calls, batch, grace=grace, until=min(limits, default=None), finish=True):
            break
        now = steady_clock()
        for one in waiting:
            if one.until is not None and one.until <= now and not one.call.finished.is_set():
                one.timed_out = True
                one.token.cancel("timed out")
                run.engine.helpers.abandon(one.call)
    for one in running:
        one.token.close()


def _complete(run: Run, position: int, outcome: Outcome) -> None:
    """Log a result with its `completed` event; the agent's `tool_use_behavior` may make it finish the run."""
    assert run.turn is not None
    call = run.turn.call(position)
    result = _directed(outcome.result)
    reason = run.program.finishing(call.name, result)
    if reason is not None:
        result = result.model_copy(update={"directive": ToolDirective.FINISH})
    result = _bounded(run, result, call)
    ends_run = reason is not None and result.directive is ToolDirective.FINISH
    wire = storable(result.to_wire())
    run.log(["t", run.cycle, position, wire, *([reason] if ends_run else [])])
    journal.completed(run, position, wire, started=outcome.duration_ms is not None, duration_ms=outcome.duration_ms)


def _directed(result: ToolExecutionResult) -> ToolExecutionResult:
    """A successful result that waits for the user is reported as WAIT_RESPONSE."""
    if result.directive is ToolDirective.WAIT_USER and result.status_code is ToolStatus.SUCCESS:
        return result.model_copy(update={"status_code": ToolStatus.WAIT_RESPONSE})
    return result


def _bounded(run: Run, result: ToolExecutionResult, call: ToolCall) -> ToolExecutionResult:
    """A result the model reads on is cut; one that ends the run is its answer, and refused if it is beyond reason."""
    if result.directive is ToolDirective.CONTINUE:
        return shortened(result, run.program.workspace, run.cycle, run.hold.check)
    if len(result.content) <= MAX_ANSWER_CHARS:
        return result
    text = (
        f"Tool {call.name} returned {len(result.content)} characters as the answer of the run, at most "
        f"{MAX_ANSWER_CHARS} fit; write them to a file and answer with its name"
    )
    return error_result(call.id, text, "tool_result_too_large")
