"""What a caller gets from a run, and the state from which a waiting run is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

from vv_agent.budget import BudgetExhaustion, BudgetUsageSnapshot
from vv_agent.cancellation import CancellationToken
from vv_agent.errors import ConfigError, VVAgentError
from vv_agent.events import RunEvent
from vv_agent.messages import Message
from vv_agent.results import (
    AgentResult,
    AgentStatus,
    ApprovalSnapshot,
    CompletionReason,
    CycleRecord,
    ResumeObservation,
)
from vv_agent.usage import TaskTokenUsage

if TYPE_CHECKING:
    from vv_agent.config import RunConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """The model a run used. `endpoint` is the endpoint's id: never a key or an address."""

    backend: str
    requested_model: str
    selected_model: str
    model_id: str
    endpoint: str | None = None


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Home:
    """The store and the key of a record. One for all results of a run in a process: a record that asked for no
    checkpoint is kept as long as it is."""

    store: Any
    key: str


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of one segment of a run; `RunResult.of` derives the fields that follow from the raw result.

    `final_output` is the answer, else the reason of the wait, else the error; with an output type it is a value of it.
    `new_items` are the messages this run added, `events` its own events in order.
    """

    input: str | tuple[Message, ...]
    new_items: tuple[Message, ...]
    final_output: Any
    status: AgentStatus
    raw_result: AgentResult
    events: tuple[RunEvent, ...]
    token_usage: TaskTokenUsage
    trace_id: str
    run_id: str
    metadata: Mapping[str, Any]
    agent_name: str
    resolved_model: ResolvedModel | None = None
    home: Home | None = field(default=None, repr=False, compare=False)
    """Where the record is, for `Runner.resume` in this process."""
    cancellation: CancellationToken | None = field(default=None, repr=False, compare=False)
    config: RunConfig | None = field(default=None, repr=False, compare=False)
    """Under which it was started here: whoever resumes it here asks the same people."""
    """The token of the run's config: it also cancels what `Runner.resume` makes of this result."""

    @classmethod
    def of(
        cls,
        raw_result: AgentResult,
        *,
        input: str | tuple[Message, ...],  # noqa: A002 - the name of the field
        run_id: str,
        trace_id: str,
        agent_name: str,
        new_items: tuple[Message, ...] = (),
        events: tuple[RunEvent, ...] = (),
        metadata: Mapping[str, Any] | None = None,
        resolved_model: ResolvedModel | None = None,
        home: Home | None = None,
    ) -> Self:
        """The public result around the raw one."""
        texts = (raw_result.final_answer, raw_result.wait_reason, raw_result.error)
        return cls(
            input=input,
            new_items=new_items,
            final_output=next((text for text in texts if text is not None), None),
            status=raw_result.status,
            raw_result=raw_result,
            events=events,
            token_usage=raw_result.token_usage,
            trace_id=trace_id,
            run_id=run_id,
            metadata=metadata or {},
            agent_name=agent_name,
            resolved_model=resolved_model,
            home=home,
        )

    @property
    def completion_reason(self) -> CompletionReason | None:
        """Why the run ended or pauses; None while it waits for reconciliation."""
        return self.raw_result.completion_reason

    @property
    def completion_tool_name(self) -> str | None:
        """The tool that ended or paused the run, if one did."""
        return self.raw_result.completion_tool_name

    @property
    def partial_output(self) -> str | None:
        """The last text of a run that did not complete."""
        return self.raw_result.partial_output

    @property
    def budget_usage(self) -> BudgetUsageSnapshot | None:
        """What a limited run used; None without limits."""
        return self.raw_result.budget_usage

    @property
    def budget_exhaustion(self) -> BudgetExhaustion | None:
        """The limit that stopped the run, if one did."""
        return self.raw_result.budget_exhaustion

    @property
    def checkpoint_key(self) -> str | None:
        """The key under which the run is stored; None for a run in memory."""
        return self.raw_result.checkpoint_key

    @property
    def resume_observation(self) -> ResumeObservation | None:
        """The operation that somebody must decide about, if there is one."""
        return self.raw_result.resume_observation

    @property
    def error_code(self) -> str | None:
        """The stable code of a failure that has one."""
        return self.raw_result.error_code

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole conversation."""
        return self.raw_result.messages

    @property
    def cycles(self) -> tuple[CycleRecord, ...]:
        """The committed cycles."""
        return self.raw_result.cycles

    def final_output_as(self, kind: type[T]) -> T:
        """The output as a value of `kind`: text for `str`, else its JSON read strictly by pydantic.

        `VVAgentError` with code `output_type_invalid` when it is not one.
        """
        from pydantic import TypeAdapter, ValidationError

        adapter = TypeAdapter(kind)
        try:
            if isinstance(self.final_output, str) and kind is not str:
                return adapter.validate_json(self.final_output, strict=True)
            return adapter.validate_python(self.final_output, strict=True)
        except ValidationError as error:
            name = getattr(kind, "__name__", kind)
            raise VVAgentError(
                "output_type_invalid",
                f"failed to validate final output for agent {self.agent_name!r} as {name}: {error}",
            ) from error

    def approval_snapshot(self) -> list[ApprovalSnapshot]:
        """The approvals the run asked for, each once, none of them approved yet."""
        return list(self.raw_result.approvals())

    def into_state(self) -> RunState:
        """The state that `Runner.resume` takes; `ConfigError` unless the run waits for its user."""
        return RunState.from_result(self)

    def to_dict(self) -> dict[str, Any]:
        """The projection as JSON values: 18 keys, null where there is nothing, and `error_code` only when set."""
        from pydantic_core import to_jsonable_python

        raw = self.raw_result.to_wire()
        projection = {
            "input": self.input if isinstance(self.input, str) else [item.to_wire() for item in self.input],
            "new_items": [item.to_wire() for item in self.new_items],
            "final_output": to_jsonable_python(self.final_output),
            "status": self.status.value,
            "events": [event.to_wire() for event in self.events],
            "token_usage": self.token_usage.to_wire(),
            "trace_id": self.trace_id,
            "run_id": self.run_id,
            "metadata": dict(self.metadata),
            "agent_name": self.agent_name,
            "resolved_model": asdict(self.resolved_model) if self.resolved_model else None,
        }
        projection |= {name: raw.get(name) for name in _DELEGATED}
        if self.error_code is not None:
            projection["error_code"] = self.error_code
        return projection


_DELEGATED = (
    "completion_reason",
    "completion_tool_name",
    "partial_output",
    "budget_usage",
    "budget_exhaustion",
    "checkpoint_key",
    "resume_observation",
)


@dataclass(slots=True)
class RunState:
    """A run that waits for its user, with the approvals given so far. Not for several threads at once."""

    result: RunResult
    _approved: dict[str, None] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.result.status is not AgentStatus.WAIT_USER:
            raise ConfigError(
                "run_not_waiting",
                f"run {self.result.run_id!r} is {self.result.status}; only a result with status wait_user has a state",
            )

    @classmethod
    def from_result(cls, result: RunResult) -> Self:
        """The state of a waiting result."""
        return cls(result)

    def approve(self, interruption_id: str) -> None:
        """Allow one call; approving it again changes nothing. `ConfigError` for an id the run did not ask about."""
        if interruption_id not in self.pending_approval_ids():
            raise ConfigError("unknown_approval_request", f"unknown approval request: {interruption_id}")
        self._approved[interruption_id] = None

    def pending_approval_ids(self) -> list[str]:
        """The ids the run asked about; an approved one stays in the list until the run is resumed."""
        return [approval.interruption_id for approval in self.result.raw_result.approvals()]

    def approved_interruption_ids(self) -> list[str]:
        """The approved ids in the order of approval."""
        return list(self._approved)

    def approval_snapshot(self) -> list[ApprovalSnapshot]:
        """The approvals with what was decided so far."""
        return [
            approval.model_copy(update={"approved": approval.interruption_id in self._approved})
            for approval in self.result.raw_result.approvals()
        ]
