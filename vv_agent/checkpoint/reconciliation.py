"""What becomes of an operation that a new claim finds in the journal: a pure decision, carried out by the runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from vv_agent.checkpoint.config import AmbiguousModelPolicy, AmbiguousToolPolicy
from vv_agent.checkpoint.journal import ModelEntry, OperationError, OperationState, ToolEntry, transition
from vv_agent.errors import CheckpointError
from vv_agent.results import ResumeObservation
from vv_agent.tool_metadata import ToolIdempotency

RISK_TOOL = "unknown_tool_side_effect"
RISK_MODEL = "duplicate_model_request_and_cost"
ABORT_CODE = "operator_abort_with_unknown_outcome"
"""`error_code` of a run that ended by an operator's abort."""

INTERRUPTION_REASON = "resume_requires_reconciliation"


class ReconciliationDecision(BaseModel):
    """What became of an operation; made by its helpers (`ReconciliationDecision.retry()`), read by `parse`.

    A payload that does not belong to its decision is `checkpoint_reconciliation_decision_invalid`.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    @staticmethod
    def defer() -> ReconciliationDecision:
        return Defer()

    @staticmethod
    def retry() -> ReconciliationDecision:
        return Retry()

    @staticmethod
    def replay_response(response: Mapping[str, Any]) -> ReconciliationDecision:
        return ReconciliationDecision.parse({"kind": "replay_success", "response": response})

    @staticmethod
    def replay_result(result: Mapping[str, Any]) -> ReconciliationDecision:
        return ReconciliationDecision.parse({"kind": "replay_success", "result": result})

    @staticmethod
    def record_failure(code: str, message: str, *, retryable: bool = False) -> ReconciliationDecision:
        error = {"code": code, "message": message, "retryable": retryable}
        return ReconciliationDecision.parse({"kind": "record_failure", "error": error})

    @staticmethod
    def abort(code: str, message: str, *, retryable: bool = False) -> ReconciliationDecision:
        error = {"code": code, "message": message, "retryable": retryable}
        return ReconciliationDecision.parse({"kind": "abort", "error": error})

    @staticmethod
    def parse(value: Any) -> ReconciliationDecision:
        """Read `{"kind": ..., payload}` (closed); replay_success holds exactly one of response and result."""
        if isinstance(value, Mapping):
            value = {name: dict(item) if isinstance(item, Mapping) else item for name, item in value.items()}
        try:
            decision: ReconciliationDecision = _adapter().validate_python(value)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
            raise _invalid(f"{'.'.join(map(str, fault['loc'])) or 'decision'}: {fault['msg']}") from None
        if isinstance(decision, ReplaySuccess) and (decision.response is None) == (decision.result is None):
            raise _invalid("replay_success holds exactly one of response (a model's) and result (a tool's)")
        return decision

    def to_wire(self) -> dict[str, Any]:
        """The closed wire object; a payload field that is None is absent."""
        return self.model_dump(mode="json", exclude_none=True)


class Defer(ReconciliationDecision):
    """Not known yet: the run parks as reconciliation_required."""

    kind: Literal["defer"] = "defer"


class Retry(ReconciliationDecision):
    """Make the call again, with the same id, request and key."""

    kind: Literal["retry"] = "retry"


class ReplaySuccess(ReconciliationDecision):
    """It was carried out: go on with this receipt, `response` of a model or `result` of a tool."""

    kind: Literal["replay_success"] = "replay_success"
    response: dict[str, Any] | None = None
    result: dict[str, Any] | None = None


class RecordFailure(ReconciliationDecision):
    """It certainly was not carried out: go on with this error."""

    kind: Literal["record_failure"] = "record_failure"
    error: OperationError


class Abort(ReconciliationDecision):
    """End the run as failed; nobody knows whether the operation was carried out, and the run says so."""

    kind: Literal["abort"] = "abort"
    error: OperationError


@runtime_checkable
class ReconciliationProvider(Protocol):
    """Knows, or asks somebody who knows, what became of an operation.

    Called under the run's claim, once for each ambiguous operation of a recovery; it may block for as long as a tool
    may, and must not repeat the operation itself. Its errors count as `defer`.
    """

    def reconcile(self, observation: ResumeObservation) -> ReconciliationDecision: ...


class RecoveryAction(StrEnum):
    """What the runtime does next with an operation."""

    CALL = "call"
    REPLAY = "replay"
    PARK = "park"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Recovery:
    """A decided recovery: the entry to store, what to do then, and the events to emit, in order.

    `observation` is set while the outcome is unknown (park, abort); `risk` whenever it was unknown at the claim;
    `given_up` is the error of an abort.
    """

    action: RecoveryAction
    entry: ModelEntry | ToolEntry
    events: tuple[str, ...] = ()
    risk: str | None = None
    observation: ResumeObservation | None = None
    given_up: OperationError | None = None


def after_claim(entry: ModelEntry | ToolEntry) -> ModelEntry | ToolEntry:
    """The entry as a recovery claim leaves it: what was started and has no receipt is ambiguous."""
    return transition(entry, OperationState.AMBIGUOUS) if entry.state is OperationState.STARTED else entry


def observe(entry: ModelEntry | ToolEntry) -> ResumeObservation:
    """What is shown and asked about an entry whose outcome is unknown."""
    return ResumeObservation(
        operation_id=entry.operation_id,
        operation_kind=entry.kind,
        cycle_index=entry.cycle_index,
        state="ambiguous",
        risk=RISK_MODEL if isinstance(entry, ModelEntry) else RISK_TOOL,
        idempotency_support=None if isinstance(entry, ModelEntry) else ToolIdempotency(entry.idempotency_support),
    )


def recover(
    entry: ModelEntry | ToolEntry,
    *,
    model_policy: AmbiguousModelPolicy,
    tool_policy: AmbiguousToolPolicy,
    decision: ReconciliationDecision | None = None,
) -> Recovery:
    """Decide one entry (spec 11, section 5). `decision` is the provider's or an operator's; without it the policy's.

    Planned entries are called, receipts are replayed. Safety is never inferred from a name, arguments or anything but
    the declared idempotency. A decision for the other kind of operation is
    `checkpoint_reconciliation_decision_invalid`.
    """
    entry = after_claim(entry)
    if entry.state is OperationState.PLANNED:
        return Recovery(RecoveryAction.CALL, entry)
    if entry.state in (OperationState.SUCCEEDED, OperationState.FAILED):
        return Recovery(RecoveryAction.REPLAY, entry, ("operation_replayed",))
    if decision is None:
        return _by_policy(entry, model_policy, tool_policy)
    return _carry_out(entry, decision)


def _by_policy(
    entry: ModelEntry | ToolEntry, model_policy: AmbiguousModelPolicy, tool_policy: AmbiguousToolPolicy
) -> Recovery:
    if isinstance(entry, ModelEntry):
        repeat = model_policy == AmbiguousModelPolicy.RETRY_WITH_DUPLICATE_RISK
        events: tuple[str, ...] = ("operation_ambiguous", "model_retry_duplicate_risk")
    else:
        idempotent = entry.idempotency_support == "supported"
        repeat = tool_policy == AmbiguousToolPolicy.RETRY_IDEMPOTENT_ONLY and idempotent
        events = ("operation_ambiguous",)
    if not repeat:
        return _carry_out(entry, Defer())
    planned = transition(entry, OperationState.PLANNED)
    return Recovery(RecoveryAction.CALL, planned, events, observe(entry).risk)


def _carry_out(entry: ModelEntry | ToolEntry, decision: ReconciliationDecision) -> Recovery:
    seen = observe(entry)
    resolved = ("operation_ambiguous", "reconciliation_resolved")
    match decision:
        case Defer():
            events = ("operation_ambiguous", "reconciliation_required")
            return Recovery(RecoveryAction.PARK, entry, events, seen.risk, seen)
        case Abort():
            return Recovery(RecoveryAction.ABORT, entry, ("operation_ambiguous",), seen.risk, seen, decision.error)
        case Retry():
            planned = transition(entry, OperationState.PLANNED)
            return Recovery(RecoveryAction.CALL, planned, resolved, seen.risk)
        case ReplaySuccess():
            receipt = decision.response if isinstance(entry, ModelEntry) else decision.result
            if receipt is None:
                raise _invalid(f"operation {entry.operation_id} is a {entry.kind} call, the receipt is not")
            done = transition(entry, OperationState.SUCCEEDED, receipt=receipt)
            return Recovery(RecoveryAction.REPLAY, done, resolved, seen.risk)
        case RecordFailure():
            failed = transition(entry, OperationState.FAILED, error=decision.error)
            return Recovery(RecoveryAction.REPLAY, failed, resolved, seen.risk)
        case _:
            raise _invalid(f"{type(decision).__name__} is no decision; make one with ReconciliationDecision")


_ADAPTER: list[TypeAdapter[Any]] = []


def _adapter() -> TypeAdapter[Any]:
    """Built when the first decision is read."""
    if not _ADAPTER:
        union = Defer | Retry | ReplaySuccess | RecordFailure | Abort
        _ADAPTER.append(TypeAdapter(Annotated[union, Field(discriminator="kind")]))
    return _ADAPTER[0]


def _invalid(problem: str) -> CheckpointError:
    return CheckpointError("checkpoint_reconciliation_decision_invalid", problem)
