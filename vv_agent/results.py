"""The closed result of a run, with the cycles, tool results and approvals in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import PlainSerializer, PlainValidator, model_validator

from vv_agent._wire import LAX, Count, Positive, Text, Wire
from vv_agent.budget import BudgetExhaustion, BudgetUsageSnapshot
from vv_agent.messages import Message
from vv_agent.tool_metadata import ToolIdempotency
from vv_agent.usage import TaskTokenUsage, TokenUsage

MAX_CYCLES_ANSWER = "Reached max cycles without finish signal."
"""The `final_answer` of a run that used up its cycles."""


class AgentStatus(StrEnum):
    """Where a run stands. `wait_user` is a pause, not an end."""

    PENDING = "pending"
    RUNNING = "running"
    RECONCILIATION_REQUIRED = "reconciliation_required"
    WAIT_USER = "wait_user"
    COMPLETED = "completed"
    FAILED = "failed"
    MAX_CYCLES = "max_cycles"


class CompletionReason(StrEnum):
    """What made a run end or pause."""

    TOOL_FINISH = "tool_finish"
    NO_TOOL_FINISH = "no_tool_finish"
    STOP_ON_FIRST_TOOL = "stop_on_first_tool"
    STOP_AT_TOOL_NAME = "stop_at_tool_name"
    WAIT_USER = "wait_user"
    MAX_CYCLES = "max_cycles"
    CANCELLED = "cancelled"
    FAILED = "failed"
    BUDGET_EXHAUSTED = "budget_exhausted"


class ToolStatus(StrEnum):
    """How a tool call ended; events show it in lower case."""

    SUCCESS = "SUCCESS"
    ERROR = "ERROR"
    WAIT_RESPONSE = "WAIT_RESPONSE"
    RUNNING = "RUNNING"
    PENDING_COMPRESS = "PENDING_COMPRESS"


class ToolDirective(StrEnum):
    """What a tool result asks of the run."""

    CONTINUE = "continue"
    FINISH = "finish"
    WAIT_USER = "wait_user"


class ToolExecutionResult(Wire):
    """What a tool call gave: the text the model reads, and what the run does next.

    The optional fields are written only when set; null is accepted on read.
    """

    tool_call_id: str
    content: str
    status_code: Annotated[ToolStatus, LAX] = ToolStatus.SUCCESS
    directive: Annotated[ToolDirective, LAX] = ToolDirective.CONTINUE
    error_code: str | None = None
    metadata: dict[str, Any] | None = None
    image_url: str | None = None
    image_path: str | None = None

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {
            "tool_call_id": self.tool_call_id,
            "content": self.content,
            "status_code": self.status_code.value,
            "directive": self.directive.value,
        }
        optional = ("error_code", "metadata", "image_url", "image_path")
        return wire | {name: value for name in optional if (value := getattr(self, name)) is not None}

    @classmethod
    def from_wire(cls, wire: Any) -> Self:
        if isinstance(wire, dict) and (missing := {"status_code", "directive"} - wire.keys()):
            raise ValueError(f"{cls.__name__} lacks {', '.join(sorted(missing))}")
        return super().from_wire(wire)


class CycleToolCall(Wire):
    """A tool call of a cycle with its arguments parsed."""

    id: Text
    name: Text
    arguments: dict[str, Any]


def _wired(kind: Any) -> Any:
    """A value that reads and writes its own wire form inside a wire object."""
    return (
        PlainValidator(lambda value: value if isinstance(value, kind) else kind.from_wire(value)),
        PlainSerializer(lambda value: value.to_wire()),
    )


class CycleRecord(Wire):
    """One cycle: a model turn and the results of the tools it asked for. `index` counts from 1."""

    index: Positive
    assistant_message: str
    tool_calls: Annotated[tuple[CycleToolCall, ...], LAX]
    tool_results: Annotated[tuple[Annotated[ToolExecutionResult, *_wired(ToolExecutionResult)], ...], LAX]
    memory_compacted: bool
    token_usage: TokenUsage


class ResumeObservation(Wire):
    """The operation whose outcome nobody knows, as shown when a run needs a decision.

    `idempotency_support` is None for models and set for tools.
    """

    operation_id: Text
    operation_kind: Literal["model", "tool"]
    cycle_index: Count
    state: Literal["ambiguous"]
    risk: Text
    idempotency_support: Annotated[ToolIdempotency, LAX] | None

    @model_validator(mode="after")
    def _only_tools_declare_idempotency(self) -> Self:
        check_idempotency_support(self.operation_kind, self.idempotency_support)
        return self


def check_idempotency_support(operation_kind: str, support: ToolIdempotency | None) -> None:
    """`ValueError` unless a tool declares its support and a model does not."""
    if (operation_kind == "model") != (support is None):
        raise ValueError(f"idempotency_support {support!r} does not fit operation_kind {operation_kind!r}")


class ApprovalSnapshot(Wire):
    """An approval that a run waits for."""

    interruption_id: str
    tool_name: str | None
    tool_call_id: str
    arguments: dict[str, Any]
    message: str | None
    cycle_index: Count
    approved: bool


_OPTIONAL = ("budget_usage", "budget_exhaustion", "error_code")


class AgentResult(Wire):
    """The result of a run. Three fields are left out when absent and never null; all others are always written.

    Readers check types only; `normalized` gives the one form in which a result of each status is stored and shown.
    """

    status: Annotated[AgentStatus, LAX]
    completion_reason: Annotated[CompletionReason, LAX] | None
    completion_tool_name: str | None
    partial_output: str | None
    messages: Annotated[tuple[Annotated[Message, *_wired(Message)], ...], LAX]
    cycles: Annotated[tuple[CycleRecord, ...], LAX]
    final_answer: str | None
    wait_reason: str | None
    error: str | None
    shared_state: dict[str, Any]
    token_usage: TaskTokenUsage
    checkpoint_key: str | None
    resume_observation: ResumeObservation | None
    budget_usage: BudgetUsageSnapshot | None = None
    budget_exhaustion: BudgetExhaustion | None = None
    error_code: str | None = None

    def to_wire(self) -> dict[str, Any]:
        wire = super().to_wire()
        for name in _OPTIONAL:
            if wire[name] is None:
                del wire[name]
        return wire

    @classmethod
    def from_wire(cls, wire: Any) -> Self:
        if isinstance(wire, dict) and (nulls := [name for name in _OPTIONAL if name in wire and wire[name] is None]):
            raise ValueError(f"AgentResult {', '.join(nulls)} must be left out, not null")
        return super().from_wire(wire)

    def normalized(self) -> Self:
        """The normal form by status (spec/17 section 4): no result mixes the fields of two kinds of end.

        A completion reason that does not fit the status is a `ValueError`. `pending` and `running` are no results and
        stay as they are.
        """
        if (form := _FORMS.get(self.status)) is None:
            return self
        if self.completion_reason not in form.reasons:
            raise ValueError(f"a {self.status} result cannot have completion reason {self.completion_reason}")
        given = {name: getattr(self, name) for name in _SHAPED}
        changes = {name: given[name] if name in form.keeps else None for name in _SHAPED}
        if form.text is not None and changes[form.text] is None:
            changes[form.text] = ""
        if self.status is AgentStatus.MAX_CYCLES:
            changes["final_answer"] = MAX_CYCLES_ANSWER
        if self.status is not AgentStatus.COMPLETED and self.partial_output is None:
            changes["partial_output"] = last_text(self.messages)
        return self.model_copy(update=changes)

    def approvals(self) -> tuple[ApprovalSnapshot, ...]:
        """The approvals asked for in the cycles, each interruption once (its first appearance)."""
        found: dict[str, ApprovalSnapshot] = {}
        for cycle in self.cycles:
            for result in cycle.tool_results:
                approval = _approval(cycle.index, result)
                if approval is not None:
                    found.setdefault(approval.interruption_id, approval)
        return tuple(found.values())


@dataclass(frozen=True, slots=True)
class _Form:
    """What a status allows: its reasons, the fields it keeps, and the one that is a text even if none was given."""

    reasons: frozenset[CompletionReason | None]
    keeps: frozenset[str]
    text: str | None = None


_SHAPED = ("completion_tool_name", "partial_output", "final_answer", "wait_reason", "error")

_R = CompletionReason
_FORMS: dict[AgentStatus, _Form] = {
    AgentStatus.COMPLETED: _Form(
        frozenset({_R.TOOL_FINISH, _R.NO_TOOL_FINISH, _R.STOP_ON_FIRST_TOOL, _R.STOP_AT_TOOL_NAME}),
        frozenset({"completion_tool_name", "final_answer"}),
        text="final_answer",
    ),
    AgentStatus.WAIT_USER: _Form(
        frozenset({_R.WAIT_USER}),
        frozenset({"completion_tool_name", "partial_output", "wait_reason"}),
        text="wait_reason",
    ),
    AgentStatus.MAX_CYCLES: _Form(frozenset({_R.MAX_CYCLES}), frozenset({"partial_output", "error"})),
    AgentStatus.FAILED: _Form(
        frozenset({_R.FAILED, _R.CANCELLED, _R.BUDGET_EXHAUSTED}),
        frozenset({"partial_output", "error"}),
        text="error",
    ),
    AgentStatus.RECONCILIATION_REQUIRED: _Form(frozenset({None}), frozenset({"partial_output"})),
}


def last_text(messages: Sequence[Message]) -> str | None:
    """The last non-blank assistant text: what a run that did not complete had to say."""
    return next(
        (item.content for item in reversed(messages) if item.role == "assistant" and item.content.strip()), None
    )


def _approval(cycle_index: int, result: ToolExecutionResult) -> ApprovalSnapshot | None:
    metadata = result.metadata or {}
    interruption_id = metadata.get("approval_interruption_id")
    if metadata.get("mode") != "approval_requested" or not isinstance(interruption_id, str) or not interruption_id:
        return None
    tool_name, arguments, message = (metadata.get(name) for name in ("tool_name", "arguments", "message"))
    return ApprovalSnapshot(
        interruption_id=interruption_id,
        tool_name=tool_name if isinstance(tool_name, str) else None,
        tool_call_id=result.tool_call_id,
        arguments=arguments if isinstance(arguments, dict) else {},
        message=message if isinstance(message, str) else None,
        cycle_index=cycle_index,
        approved=False,
    )
