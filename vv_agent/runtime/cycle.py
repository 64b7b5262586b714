"""One cycle, exactly (DESIGN section 6): signals, recovery, model, tools, decision, save."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from vv_agent.checkpoint.reconciliation import ABORT_CODE
from vv_agent.checkpoint.record import Commit, End, Park, ParkReason, Progress, Release, Then
from vv_agent.errors import LlmError, RetryLater, SignalsWaiting
from vv_agent.llm.base import ModelResponse
from vv_agent.messages import Message
from vv_agent.results import AgentStatus, CompletionReason
from vv_agent.runtime import (
    after_cycle,
    children,
    conversation,
    delegation,
    extensions,
    guards,
    handoff,
    hooks,
    journal,
    memory,
    model_call,
    output,
    steering,
    tool_calls,
)
from vv_agent.runtime.account import EXHAUSTED, Account, Exhausted
from vv_agent.runtime.approval import ApprovalFailed, ApprovalNeeded, message_of
from vv_agent.runtime.control import HookFailed
from vv_agent.runtime.inbox import DEFAULT_REASON, Inbox
from vv_agent.runtime.output import Decision, GoOn, Stop
from vv_agent.runtime.run import Run
from vv_agent.runtime.transcript import message_item, storable
from vv_agent.runtime.waiting import RunCancelled, Stopping, refreshed
from vv_agent.tools.builtin.processes import background

BEFORE_CODE = "before_cycle_messages_failed"
MAX_RETRY_AFTER = 3600.0
"""Seconds a provider's Retry-After may park a run at most; then it is asked again."""


class StillWaiting(Exception):
    """The run waits for its user, or for other limits, and something else woke it. Never leaves this module."""

    def __init__(self, reason: ParkReason) -> None:
        super().__init__()
        self.reason = reason


CommitPlan = Callable[[], Commit]
"""Says at the commit how the run goes on: the claim kept, or released and due when."""


def run_cycle(run: Run, commit: CommitPlan) -> None:
    """Carry out the open cycle and save what it came to. Raises `ClaimLost` or `StoreError` when it could not be
    saved."""
    run.recorder.feed(run)
    if run.head.ending and (end := run.transcript.ends.get(run.body.segment)) is not None:
        _finish(run, Stop.of_log(end))  # all but the last save was made
        return
    while (decision := _end(run)) is not None:
        if _carry_out(run, decision, commit):
            return
        run.recovered = False  # what was left open is settled


def _finish(run: Run, decision: Stop) -> None:
    """The last save of an end whose events were to go to the host's event store first."""
    judged = run.recorder.judge(decision)
    assert isinstance(judged, Stop)
    changed = [["e", run.body.segment, judged.to_log()]] if judged is not decision else ()
    run.recorder.tell(run)
    then = End(keep_journal=decision.error_code == ABORT_CODE)
    run.save(then, status=judged.status.value, ending=True, durable=True, last_log=changed)
    background.end(run.key)


def _end(run: Run) -> Decision | None:
    """What the cycle comes to, also for the host's guardrails; None when it was given back or parked."""
    decision = _decided(run, _decide)
    return None if decision is None else _decided(run, lambda run: guards.checked(run, decision))


def _decided(run: Run, decide: Callable[[Run], Decision]) -> Decision | None:
    """What `decide` comes to, whatever it raises; None when the cycle was given back or parked, and that is saved."""
    try:
        return decide(run)
    except RunCancelled as cancel:
        return _cancelled(run, cancel.message)
    except RetryLater as later:
        wait = math.ceil(_bounded(later.retry_after) * 1000)
        run.emit("diagnostic", level="info", code="model_retry_later", details={"wait_ms": wait})
        run.save(Park(ParkReason.RETRY_AFTER, due_in=wait))
    except LlmError as error:
        return output.failed(error.message, error.code)
    except Stopping:
        return _give_back(run)
    except journal.GivenUp as given_up:
        return given_up.stop
    except journal.Unresolved as unresolved:
        _park_for_reconciliation(run, unresolved)
    except StillWaiting as still:
        status = "failed" if still.reason is ParkReason.BUDGET else "wait_user"
        run.save(Park(still.reason, due_in=_approval_due(run)), status=status)
    except ApprovalNeeded:
        if not run.body.live:
            return _asks(run)
        run.save(Park(ParkReason.APPROVAL, due_in=_approval_due(run)), durable=True)  # stream and segment stay open
    except children.Waiting:
        run.save(Park(ParkReason.CHILDREN, due_in=run.children.due_in(run.engine.store.now())))
    except (HookFailed, ApprovalFailed) as error:
        tool_calls.close_open_calls(run, "The run failed before this call.")
        return output.failed(str(error) if isinstance(error, HookFailed) else error.message, error.code)
    return None


def _give_back(run: Run) -> Stop | None:
    if run.asked and run.turn is None and not run.program.reconciles_models:  # a model call was cut off
        model_call.warn_of_duplicate(run)
        model_call.reset_stream(run)
    try:
        run.save(Release())
    except SignalsWaiting:  # a cancel came before the runs below that the save was to create
        return _cancelled(run, run.inbox.cancel or DEFAULT_REASON)
    return None


def _bounded(retry_after: float | None) -> float:
    """A provider's wish to wait, in seconds, within reason: a date far away or no number is asked again in an hour."""
    wish = retry_after or 0.0
    return min(wish, MAX_RETRY_AFTER) if wish >= 0 else MAX_RETRY_AFTER


def _decide(run: Run) -> Decision:
    if (candidate := run.transcript.candidates.get(run.body.segment)) and run.body.segment not in run.transcript.ends:
        run.inbox = Inbox()  # what is unread is for after the end
        return Stop.of_log(candidate)
    run.inbox.check()
    delegation.hear(run)
    if not handoff.take_over(run):
        _follow_up(run)
    if run.inbox.cancel is not None:
        raise RunCancelled(run.inbox.cancel)
    _begin_segment(run)
    if run.refused is not None:
        return run.refused
    extensions.restore(run)
    if run.recovered and run.body.checkpointed:
        run.emit(
            "checkpoint_resumed", cycle_index=max(0, run.index - 1), checkpoint_key=run.key, resume_attempt=run.attempt
        )
    aborted = journal.recover(run)
    if aborted is not None:
        return aborted
    run.observe(None)
    if (lost := run.recorder.judge(GoOn())) != GoOn():
        tool_calls.close_open_calls(run, "The event store of the run did not take its events.")
        return lost
    try:
        return _advance(run)
    except Exhausted:
        if not run.body.checkpointed:  # nobody can raise it
            tool_calls.close_open_calls(run, "The budget of the run was used up before this call.")
        return EXHAUSTED


def _advance(run: Run) -> Decision:
    """Model, tools, decision; the account of a limited run is looked at in between."""
    _account(run, Account.begin)
    run.asked = False
    if run.turn is None:
        _account(run, Account.before_model)
        memory.keep_within(run, hooks.rewriting(run))
        try:
            _prepare(run)
        except HookFailed as error:
            return output.failed(f"before_cycle_messages failed: {error.__cause__}", error.code)
        steering.enter(run)
        if (aborted := _model_turn(run)) is not None:
            return aborted
    _account(run, Account.after_model)
    _account(run, Account.before_tools)
    if (aborted := tool_calls.run_tools(run)) is not None:
        return aborted
    _account(run, Account.after_tools)
    turn = run.turn
    assert turn is not None
    controls = run.program.controls
    decision = output.decide(turn, index=run.index, max_cycles=controls.max_cycles, policy=controls.no_tool_policy)
    decision = handoff.passed_on(run, decision)
    if isinstance(decision, Stop):
        _account(run, Account.at_end)
    return after_cycle.judged(run, decision)


def _account(run: Run, boundary: Callable[[Account, Run], None]) -> None:
    """Pass a boundary of a limited run. A cancel that is known there comes first."""
    if run.account is None:
        return
    if run.hold.signalled:
        refreshed(run)
    if run.inbox.cancel is not None:
        raise RunCancelled(run.inbox.cancel)
    _take_limits(run)
    boundary(run.account, run)


def _follow_up(run: Run) -> None:
    """What was said for after the end begins the next segment. Before anything else: one that is cancelled has its own
    run id."""
    if (said := steering.next_input(run)) is not None:
        _next_segment(run, said)


def _begin_segment(run: Run) -> None:
    """What a run waited for begins its next segment: an answer, a decision on an approval, other limits. It has a fresh
    run id and cycle limit. Raises `StillWaiting` when the run waits and nothing came."""
    decided, answers, waits = run.approvals.collect(run), run.inbox.take_answers(), _waits_for(run)
    raised = run.inbox.raises and run.account is not None
    came = {ParkReason.BUDGET: raised, ParkReason.APPROVAL: decided, ParkReason.INPUT: answers}
    begins = waits is not None and bool(came[waits])
    if begins:
        _next_segment(run, Message("user", "\n\n".join(answers)) if waits is ParkReason.INPUT else None)
    _take_limits(run)
    run.approvals.decide(run, decided)
    if answers and waits is not ParkReason.INPUT:
        run.emit("diagnostic", level="warning", code="answer_ignored", details={"reason": "the run did not wait"})
    if waits is not None and not begins:
        raise StillWaiting(waits)


def _waits_for(run: Run) -> ParkReason | None:
    """What the segment that ended waits for."""
    end = run.transcript.ends.get(run.body.segment)
    if end is None:
        return None
    if end.get("reason") == CompletionReason.BUDGET_EXHAUSTED:
        return ParkReason.BUDGET
    return ParkReason.APPROVAL if run.approvals.requests else ParkReason.INPUT


def _next_segment(run: Run, said: Message | None) -> None:
    segment = run.body.segment + 1
    first = run.cycle if run.turn is None else run.cycle + 1  # an open cycle counted in the segment before
    run.body = replace(
        run.body,
        segment=segment,
        first_cycle=first,
        run_id=run.engine.new_id("run"),
        observation=None,
        came_from=None,
    )
    run.log(["s", segment] if said is None else ["i", segment, said.to_wire()])
    children.show_begin(run)


def _take_limits(run: Run) -> bool:
    """Whether the budget was raised."""
    limits = run.inbox.take_limits()
    if limits is None:
        return False
    if run.account is None:
        run.emit("diagnostic", level="warning", code="budget_ignored", details={"reason": "the run has no limits"})
        return False
    run.account.raise_to(limits)
    return True


def _prepare(run: Run) -> None:
    """The program's own messages before the model call; a cycle asks for them once, whatever happens later."""
    ask = run.program.before_cycle_messages
    if ask is None or run.cycle in run.transcript.prepared:
        return

    def said() -> list[Any]:
        messages = ask(run.index, tuple(run.transcript.messages), dict(run.shared_state))
        return [message_item(run.cycle, message) for message in messages]

    for item in hooks.host_call(run, "before_cycle_messages", BEFORE_CODE, said):
        run.log(item)
    run.log(["b", run.cycle])


def _model_turn(run: Run) -> Stop | None:
    """Call the model until its answer is in the log; a Stop if an operator aborts a call whose outcome is unknown."""
    run.emit("cycle_started")
    while run.turn is None:
        run.emit("llm_started", model=run.program.resolved.model_id)
        if run.program.reconciles_models:
            journal.start_model(run)
        try:
            response = model_call.call_model(run)
        except LlmError as error:
            if memory.too_long(error):
                if run.program.reconciles_models:
                    journal.unstart_model(run)
                memory.after_refusal(run, error)
                continue
            if not run.program.reconciles_models:
                raise
            if error.definite:
                journal.unstart_model(run)
                raise
            journal.doubt_model(run)
            if (aborted := journal.settle_model(run)) is not None:
                return aborted
            continue
        run.log(_receipt(run, response))
        if response.finish_reason == "length":
            run.emit("diagnostic", level="warning", code="model_output_cut", details={"finish_reason": "length"})
    return None


def _receipt(run: Run, response: ModelResponse) -> list[Any]:
    message = Message(
        "assistant", response.content, tool_calls=response.tool_calls, reasoning_content=response.reasoning
    )
    usage = response.usage
    raw = storable(usage.raw) if isinstance(usage.raw, Mapping) else None
    return ["a", run.cycle, message.to_wire(), raw, usage.source, usage.cache_status, response.finish_reason]


def _cancelled(run: Run, reason: str) -> Stop:
    run.inbox.accept_cancel()
    delegation.drop(run, reason)
    if run.body.segment in run.transcript.ends:  # it has its terminal event
        _next_segment(run, None)
    if (observation := journal.observation(run)) is not None:
        run.observe(observation)
    tool_calls.close_open_calls(run)
    return output.cancelled(reason)


def _carry_out(run: Run, decision: Decision, commit: CommitPlan) -> bool:
    """Save the decision; a signal that can still change an end is looked at first, without repeating anything. False
    when other limits have come for a run out of budget: it is decided again."""
    run.recorder.tell(run)
    decision = run.recorder.judge(decision)
    while True:
        decision = steering.redirected(run, decision)
        try:
            if isinstance(decision, GoOn):
                _commit(run, decision, commit)
            else:
                _stop(run, decision, commit)
        except SignalsWaiting:
            run.inbox.check()
            if run.inbox.cancel is not None:
                decision = _cancelled(run, run.inbox.cancel)
            elif _take_limits(run) and decision is EXHAUSTED:
                return False
            continue
        return True


def _commit(run: Run, decision: GoOn, commit: CommitPlan) -> None:
    for position, result in sorted(run.turn.results.items()) if run.turn and _sees(run) else ():
        if result.get("image_url"):
            run.log(["p", run.cycle, position])
    for message in decision.messages:
        run.log(message_item(run.cycle, message))
    extensions.snapshot(run)
    run.approvals.forget()
    run.save(commit())


def _sees(run: Run) -> bool:
    """Whether the model takes images; a tool's result cannot carry one, so it gets a message of the user after it."""
    return run.program.definition.runtime_controls.native_multimodal


def _stop(run: Run, decision: Stop, commit: CommitPlan) -> None:
    extensions.snapshot(run)
    if isinstance(_goes_to(run, decision), End):
        steering.drop(run)
    waiting = run.body.segment in run.transcript.ends  # its messages are in the session
    keeps = run.program.has_session and decision.error_code != ABORT_CODE and not waiting
    if keeps:
        conversation.fix_end(run, decision, ends=isinstance(_goes_to(run, decision), End))
        decision = conversation.append(run, decision)
    then = _goes_to(run, decision)
    if not isinstance(then, Park) or then.commit:
        run.approvals.forget()
    run.save(
        _saved_as(run, then, commit),
        status=None if isinstance(then, Commit) else decision.status.value,
        ending=isinstance(then, End),
        closing=isinstance(then, Park) and not keeps,
        durable=True,
        last_log=[["e", run.body.segment, decision.to_log()]],
        last_events=[terminal_event(run, decision), *handoff.completed(run, decision)],
        posts=delegation.end_posts(run, decision, ends=isinstance(then, End)),
    )
    if isinstance(then, End) and run.recorder.on:
        _finish(run, decision)
    elif isinstance(then, End):
        background.end(run.key)


def _saved_as(run: Run, then: Park | Commit | End, commit: CommitPlan) -> Then:
    """A run with an event store ends in two saves: the store gets the terminal event in between."""
    if isinstance(then, Commit):
        return commit()
    return Progress() if isinstance(then, End) and run.recorder.on else then


def _asks(run: Run) -> Stop:
    """The end of a segment that waits for approvals."""
    asked = next(iter(run.approvals.open().values()))
    return Stop(AgentStatus.WAIT_USER, CompletionReason.WAIT_USER, asked["tool"], message_of(asked["tool"]))


def _approval_due(run: Run) -> int | None:
    """Milliseconds until the first approval that is asked for times out."""
    timed = any(request.get("until") for request in run.approvals.open().values())
    return run.approvals.due_in(run.engine.store.now()) if timed else None


def _goes_to(run: Run, decision: Stop) -> Park | Commit | End:
    """Where the end of a segment leaves the run."""
    if steering.continues(run, decision):
        return Commit()
    below = run.body.parent is not None
    if decision.status is AgentStatus.WAIT_USER and run.approvals.open():
        return Park(ParkReason.APPROVAL, due_in=_approval_due(run))
    if decision.status is AgentStatus.WAIT_USER and not below:
        return Park(ParkReason.INPUT, commit=True)
    if decision.reason == CompletionReason.BUDGET_EXHAUSTED and run.body.checkpointed and not below:
        return Park(ParkReason.BUDGET)
    return End(keep_journal=decision.error_code == ABORT_CODE)


def terminal_event(run: Run, decision: Stop) -> Any:
    """The event that ends the segment: run_completed, run_failed or run_cancelled; texts are referred to, not
    copied."""
    if run.body.parent is not None:
        return delegation.terminal_event(run, decision)
    segment = run.body.segment
    fields: dict[str, Any] = {"completion_reason": decision.reason.value if decision.reason else None}
    refs: dict[str, Any] = {}
    kept = run.transcript.partial_of(decision.to_log())
    partial = kept if decision.status is not AgentStatus.COMPLETED else None
    if partial is not None:
        fields["partial_output"], refs["partial_output"] = partial, ("partial", segment)
    if run.account is not None:
        fields["budget_usage"] = run.account.usage
        if decision.reason == CompletionReason.BUDGET_EXHAUSTED:
            fields["budget_exhaustion"] = run.account.exhaustion
    if decision.reason == "cancelled":
        return run.number("run_cancelled", refs, reason=decision.error, **fields)
    fields["status"] = decision.status.value
    fields["completion_tool_name"] = decision.tool
    if decision.status in (AgentStatus.COMPLETED, AgentStatus.WAIT_USER):
        fields["final_output"], refs["final_output"] = run.transcript.resolve(decision.answer), ("answer", segment)
        return run.number("run_completed", refs, **fields)
    error = decision.error if decision.error is not None else str(decision.answer)
    return run.number("run_failed", refs, error=error, **fields)


def _park_for_reconciliation(run: Run, unresolved: journal.Unresolved) -> None:
    run.body = replace(run.body, observation=unresolved.observation)
    run.save(Park(ParkReason.RECONCILIATION), status="reconciliation_required", durable=True)
