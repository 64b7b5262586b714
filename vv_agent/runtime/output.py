"""What a cycle comes to: the decision after a model turn and its tools (one pure function), and the result of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from vv_agent.agent import NoToolPolicy
from vv_agent.budget import BudgetExhaustion, BudgetUsageSnapshot
from vv_agent.checkpoint.record import Head, ParkReason
from vv_agent.memory.stages import HINT
from vv_agent.messages import Message
from vv_agent.results import (
    MAX_CYCLES_ANSWER,
    AgentResult,
    AgentStatus,
    CompletionReason,
    CycleRecord,
    CycleToolCall,
    ResumeObservation,
    ToolExecutionResult,
)
from vv_agent.runtime.body import Body
from vv_agent.runtime.transcript import Transcript, Turn
from vv_agent.usage import CycleTokenUsage, TaskTokenUsage, TokenUsage, aggregate, normalize_token_usage

WAITING = "No tool call and runtime is waiting for user."


@dataclass(frozen=True, slots=True)
class Stop:
    """The segment ends. `answer` is a reference of the transcript, or a plain text."""

    status: AgentStatus
    reason: CompletionReason | None
    tool: str | None = None
    answer: Sequence[Any] | str | None = None
    error: str | None = None
    error_code: str | None = None
    to: int | None = None
    """Number of the agent that takes over."""
    partial: Sequence[Any] | str | None = None
    """The answer that this end did not become, like `answer`; None: the last text."""

    def to_log(self) -> dict[str, Any]:
        fields = {
            "status": self.status.value,
            "reason": self.reason.value if self.reason else None,
            "tool": self.tool,
            "answer": self.answer if isinstance(self.answer, str | None) else list(self.answer),
            "partial": self.partial if isinstance(self.partial, str | None) else list(self.partial),
            "error": self.error,
            "error_code": self.error_code,
            "to": self.to,
        }
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def of_log(cls, end: Mapping[str, Any]) -> Stop:
        """What `to_log` wrote."""
        reason = end.get("reason")
        return cls(
            AgentStatus(end["status"]), CompletionReason(reason) if reason else None, end.get("tool"),
            end.get("answer"), end.get("error"), end.get("error_code"), end.get("to"), end.get("partial"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GoOn:
    """The next cycle follows, after these messages."""

    messages: tuple[Message, ...] = ()


Decision: TypeAlias = Stop | GoOn


def failed(error: str, code: str | None = None) -> Stop:
    return Stop(AgentStatus.FAILED, CompletionReason.FAILED, error=error, error_code=code)


def cancelled(reason: str) -> Stop:
    return Stop(AgentStatus.FAILED, CompletionReason.CANCELLED, error=reason)


def decide(turn: Turn, *, index: int, max_cycles: int, policy: NoToolPolicy) -> Decision:
    """The mechanical decision of spec/18: tool directives, then the no-tool policy, then the cycle limit.

    `index` is the cycle's number in its segment.
    """
    for position, call in enumerate(turn.calls):
        result = turn.results[position]
        match result["directive"]:
            case "finish":
                reason = CompletionReason(turn.reasons.get(position, "tool_finish"))
                return Stop(AgentStatus.COMPLETED, reason, call.name, ("result", turn.cycle, position))
            case "wait_user":
                answer = ("result", turn.cycle, position)
                return Stop(AgentStatus.WAIT_USER, CompletionReason.WAIT_USER, call.name, answer)
    if not turn.calls:
        text = ("text", turn.cycle)
        if policy is NoToolPolicy.FINISH:
            return Stop(AgentStatus.COMPLETED, CompletionReason.NO_TOOL_FINISH, answer=text)
        if policy is NoToolPolicy.WAIT_USER:
            question = text if turn.message.content.strip() else WAITING
            return Stop(AgentStatus.WAIT_USER, CompletionReason.WAIT_USER, answer=question)
    if index >= max_cycles:
        return Stop(AgentStatus.MAX_CYCLES, CompletionReason.MAX_CYCLES, answer=MAX_CYCLES_ANSWER)
    return GoOn() if turn.calls else GoOn((Message("user", HINT),))


def usage_of(turn: Turn) -> TokenUsage:
    return normalize_token_usage(turn.usage, turn.usage_source, turn.cache_status)


def usage_between(
    body: Body, turns: Sequence[Turn], asides: Sequence[tuple[int, Any, Any, Any]], first: int, end: int | None = None
) -> TaskTokenUsage:
    """What these turns used, and the model calls beside them from the cycle `first` to that before `end`."""
    usages = [CycleTokenUsage(cycle_index=max(1, body.index(turn.cycle)), usage=usage_of(turn)) for turn in turns]
    usages += [
        CycleTokenUsage(cycle_index=body.index(cycle), usage=normalize_token_usage(*reported))
        for cycle, *reported in asides
        if first <= cycle and (end is None or cycle < end)
    ]
    return aggregate(sorted(usages, key=lambda one: one.cycle_index))


def cycle_record(
    turn: Turn, first_cycle: int, asked: Mapping[int, dict[str, Any]], compacted: bool = False
) -> CycleRecord:
    """One cycle in its public form; `asked` are the results that stand in for calls that wait."""
    results = {**asked, **turn.results}
    return CycleRecord(
        index=max(1, turn.cycle - first_cycle + 1),
        assistant_message=turn.message.content,
        tool_calls=tuple(CycleToolCall(id=c.id, name=c.name, arguments=_object(c)) for c in turn.calls),
        tool_results=tuple(ToolExecutionResult.from_wire(results[p]) for p in range(len(turn.calls)) if p in results),
        memory_compacted=compacted,
        token_usage=usage_of(turn),
    )


def _object(call: Any) -> dict[str, Any]:
    try:
        arguments: dict[str, Any] = call.parsed()
    except ValueError:
        return {}
    return arguments


def agent_result(
    head: Head,
    body: Body,
    transcript: Transcript,
    blobs: Mapping[str, Mapping[str, Any]],
    ending: Stop | None = None,
) -> AgentResult:
    """The result of the record as it stands, assembled from the log and the decoded blobs; `ending` is how the segment
    is about to end. Cycles are those of the open segment; a call that waits for an approval has a result that says so.
    """
    budget, asked = blobs.get("budget") or {}, _asked(transcript, head, blobs.get("approvals") or {})
    first = min(body.first_cycle, head.cycle) if asked else body.first_cycle
    turns = [turn for cycle, turn in sorted(transcript.turns.items()) if first <= cycle < _committed(head)]
    records = [
        cycle_record(
            turn, body.first_cycle, asked if turn.cycle == head.cycle else {}, turn.cycle in transcript.compactions
        )
        for turn in turns
    ]
    usage = usage_between(body, turns, transcript.asides, first, _committed(head))
    end = transcript.ends.get(body.segment, {}) if ending is None else ending.to_log()
    waits = head.reason is ParkReason.APPROVAL and not end
    status = AgentStatus.WAIT_USER if waits else AgentStatus(end.get("status", head.status))
    answer = transcript.resolve(end.get("answer"))
    exhaustion = budget.get("exhaustion") if end.get("reason") == CompletionReason.BUDGET_EXHAUSTED else None
    result = AgentResult(
        status=status,
        completion_reason=_reason(end, waits=waits),
        completion_tool_name=end.get("tool"),
        partial_output=transcript.partial_of(end),
        messages=tuple(transcript.messages),
        cycles=tuple(records),
        final_answer=answer,
        wait_reason=answer if status is AgentStatus.WAIT_USER else None,
        error=end.get("error"),
        shared_state=dict(blobs.get("state") or {}),
        token_usage=usage,
        budget_usage=BudgetUsageSnapshot.from_wire(budget["usage"]) if budget else None,
        budget_exhaustion=BudgetExhaustion.from_wire(exhaustion) if exhaustion else None,
        checkpoint_key=head.key,
        resume_observation=ResumeObservation.from_wire(body.observation) if body.observation else None,
        error_code=end.get("error_code") or _parked_code(head),
    )
    return result.normalized()


def _reason(end: Mapping[str, Any], *, waits: bool) -> CompletionReason | None:
    if waits:
        return CompletionReason.WAIT_USER
    return CompletionReason(end["reason"]) if end.get("reason") else None


def _asked(transcript: Transcript, head: Head, stored: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """The stand-ins for calls of the open cycle that wait for an approval, by position."""
    from vv_agent.runtime.approval import Approvals, shown

    turn = transcript.turns.get(head.cycle)
    if turn is None or not stored:
        return {}
    return {
        one["position"]: shown(name, one, _object(turn.call(one["position"])))
        for name, one in Approvals(stored).open().items()
    }


def _committed(head: Head) -> int:
    """The first cycle that is not committed; the open cycle of a run that ended, or whose budget did, or that waits for
    an approval, counts as committed."""
    shows_open = head.ending or head.reason in (ParkReason.BUDGET, ParkReason.APPROVAL)
    return head.cycle + 1 if shows_open else head.cycle


def _parked_code(head: Head) -> str | None:
    return "cycle_attempts_exhausted" if head.reason == "attempts" else None
