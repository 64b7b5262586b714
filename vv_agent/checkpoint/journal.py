"""The operation journal: what a cycle asked of the outside world, and how far each operation has come.

    planned -> started -> succeeded | failed | ambiguous
    planned -> failed                            refused before it was sent
    ambiguous -> planned | succeeded | failed    retry, replay_success, record_failure

An entry never changes; `transition` gives the next one. Receipts (succeeded, failed) are final.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from vv_agent._json import MAX_WIRE
from vv_agent.errors import CheckpointError


class OperationKind(StrEnum):
    """Who is called."""

    MODEL = "model"
    TOOL = "tool"


class OperationState(StrEnum):
    """How far an operation has come."""

    PLANNED = "planned"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    AMBIGUOUS = "ambiguous"


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


_Text = Annotated[str, AfterValidator(_not_blank)]
_Positive = Annotated[int, Field(ge=1, le=MAX_WIRE)]
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}\z")]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class OperationError(_Closed):
    """Why an operation certainly did not succeed."""

    code: _Text
    message: _Text
    retryable: bool


class _Entry(_Closed):
    """What both kinds share. Arguments and receipts stay the JSON they were."""

    operation_id: _Text
    cycle_index: _Positive
    attempt: _Positive
    state: Annotated[OperationState, Field(strict=False)]
    request_digest: _Digest
    error: OperationError | None

    @property
    def receipt(self) -> dict[str, Any] | None:
        """The stored outcome of an operation that succeeded: `response` of a model, `result` of a tool."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _receipt_rules(self) -> _Entry:
        has_receipt, has_error = self.receipt is not None, self.error is not None
        if self.state is OperationState.SUCCEEDED:
            if not has_receipt or has_error:
                raise _fault("operation_receipt_required", "a succeeded operation has its receipt and no error")
        elif self.state is OperationState.FAILED:
            if not has_error or has_receipt:
                raise _fault("operation_error_required", "a failed operation has its error and no receipt")
        elif has_receipt or has_error:
            raise _fault("operation_receipt_unexpected", f"a {self.state} operation has neither receipt nor error yet")
        return self

    def to_wire(self) -> dict[str, Any]:
        """The closed wire object, with explicit nulls."""
        return self.model_dump(mode="json")


class ModelEntry(_Entry):
    """A model call: the main one of a cycle, a compaction or a repair."""

    kind: Literal["model"] = "model"
    idempotency_key: str | None
    response: dict[str, Any] | None

    @property
    def receipt(self) -> dict[str, Any] | None:
        return self.response


class ToolEntry(_Entry):
    """A tool call. `idempotency_support` is what the tool declared when the entry was made."""

    kind: Literal["tool"] = "tool"
    tool_call_id: _Text
    tool_name: _Text
    arguments: dict[str, Any]
    idempotency_key: _Text
    idempotency_support: Literal["supported", "unsupported", "unknown"]
    result: dict[str, Any] | None

    @property
    def receipt(self) -> dict[str, Any] | None:
        return self.result


OperationJournalEntry: TypeAlias = Annotated[ModelEntry | ToolEntry, Field(discriminator="kind")]

_TOOL_FIELDS = ("tool_call_id", "tool_name", "arguments", "idempotency_support", "result")
_CHECKS: tuple[tuple[str, frozenset[tuple[str, bool]]], ...] = (
    # code, then the faults that mean it as (field, whether the field is one too many); in the order of the checks
    ("operation_id_invalid", frozenset({("operation_id", False)})),
    ("operation_cycle_invalid", frozenset({("cycle_index", False)})),
    ("operation_attempt_invalid", frozenset({("attempt", False)})),
    ("operation_request_digest_invalid", frozenset({("request_digest", False)})),
    ("operation_kind_fields_invalid", frozenset((name, True) for name in (*_TOOL_FIELDS, "response"))),
    (
        "tool_idempotency_key_required",
        frozenset((name, False) for name in (*_TOOL_FIELDS[:-1], "idempotency_key")),
    ),
)


def decode_entry(value: Any) -> ModelEntry | ToolEntry:
    """Read one wire object. Raises `CheckpointError` with a code of spec 11, section 2, in the order given there."""
    try:
        entry: ModelEntry | ToolEntry = _adapter().validate_python(value)
    except ValidationError as error:
        raise _coded(error) from None
    return entry


def transition(
    entry: ModelEntry | ToolEntry,
    to: OperationState,
    *,
    receipt: Mapping[str, Any] | None = None,
    error: OperationError | None = None,
) -> ModelEntry | ToolEntry:
    """The entry in its next state; a retry (ambiguous to planned) is the next attempt at the same request.

    Raises `operation_transition_invalid` for a step the table does not have, and the receipt codes of
    `decode_entry` when `receipt` or `error` do not fit the new state.
    """
    to = OperationState(to)
    if (entry.state, to) not in TRANSITIONS:
        allowed = ", ".join(sorted(new for old, new in TRANSITIONS if old is entry.state))
        raise CheckpointError(
            "operation_transition_invalid",
            f"operation {entry.operation_id} cannot go from {entry.state} to {to}; "
            f"allowed from there: {allowed or 'nothing, a receipt is final'}",
        )
    wire = entry.to_wire() | {"state": to, "error": error.model_dump() if error else None}
    wire["response" if isinstance(entry, ModelEntry) else "result"] = None if receipt is None else dict(receipt)
    wire["attempt"] = entry.attempt + (to is OperationState.PLANNED)
    return decode_entry(wire)


_S = OperationState
TRANSITIONS = frozenset(
    {
        (_S.PLANNED, _S.STARTED),
        (_S.PLANNED, _S.FAILED),
        (_S.STARTED, _S.SUCCEEDED),
        (_S.STARTED, _S.FAILED),
        (_S.STARTED, _S.AMBIGUOUS),
        (_S.AMBIGUOUS, _S.PLANNED),
        (_S.AMBIGUOUS, _S.SUCCEEDED),
        (_S.AMBIGUOUS, _S.FAILED),
    }
)


def check_journal(
    entries: Sequence[ModelEntry | ToolEntry], *, open_cycle: int, claimed: bool, reconciling: bool
) -> None:
    """The rules that tie a journal to its record (spec 10, section 5).

    Every entry belongs to the open cycle (`checkpoint_journal_cycle_invalid`). A record that waits for reconciliation
    has an ambiguous entry and no claim; one that does not may hold an ambiguous entry only under a claim
    (`checkpoint_status_invalid`).
    """
    for entry in entries:
        if entry.cycle_index != open_cycle:
            raise CheckpointError(
                "checkpoint_journal_cycle_invalid",
                f"operation {entry.operation_id} belongs to cycle {entry.cycle_index}, the open cycle is {open_cycle}",
            )
    ambiguous = [entry.operation_id for entry in entries if entry.state is OperationState.AMBIGUOUS]
    if reconciling and (claimed or not ambiguous):
        problem = "waits for reconciliation but is claimed" if claimed else "waits for reconciliation of nothing"
    elif ambiguous and not reconciling and not claimed:
        problem = f"holds ambiguous operations ({', '.join(ambiguous)}) and neither waits nor is claimed"
    else:
        return
    raise CheckpointError("checkpoint_status_invalid", f"the record {problem}")


_ADAPTER: list[TypeAdapter[Any]] = []


def _adapter() -> TypeAdapter[Any]:
    """Built when the first entry is read."""
    if not _ADAPTER:
        _ADAPTER.append(TypeAdapter(OperationJournalEntry))
    return _ADAPTER[0]


def _fault(code: str, message: str) -> PydanticCustomError:
    return PydanticCustomError(code, message)


def _coded(error: ValidationError) -> CheckpointError:
    """The contract's error for the first of the checks that failed; the text holds places and rules, never values."""
    faults = {}
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        if fault["type"].startswith("operation_"):
            return CheckpointError(fault["type"], f"journal entry: {fault['msg']}")
        path = [str(step) for step in fault["loc"][1:]]
        faults[path[0] if path else "", fault["type"] == "extra_forbidden" and len(path) == 1] = (path, fault["msg"])
    for code, meant in _CHECKS:
        for name in sorted(faults.keys() & meant):
            return CheckpointError(code, f"journal entry, {'.'.join(faults[name][0])}: {faults[name][1]}")
    path, problem = next(iter(faults.values()))
    return CheckpointError("operation_journal_invalid", f"journal entry, {'.'.join(path) or 'whole'}: {problem}")
