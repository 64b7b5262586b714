"""Recovery of a cycle: what was started and has no receipt is settled before anything new happens.

Receipts stand in the log. The journal holds only what the log cannot tell: operations that were started (with the file
images of a decidable call), and those whose outcome is unknown. `vv_agent.checkpoint.reconciliation` has the decisions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from vv_agent.checkpoint import reconciliation
from vv_agent.checkpoint.config import AmbiguousModelPolicy, AmbiguousToolPolicy
from vv_agent.checkpoint.identity import idempotency_key, model_operation_id, tool_operation_id
from vv_agent.checkpoint.journal import ModelEntry, OperationKind, OperationState, ToolEntry
from vv_agent.checkpoint.reconciliation import ABORT_CODE, ReconciliationDecision, Recovery, RecoveryAction
from vv_agent.checkpoint.record import Progress
from vv_agent.checkpoint.request import operation_request, request_digest
from vv_agent.errors import CheckpointError, LlmError, VVAgentError
from vv_agent.results import ToolExecutionResult
from vv_agent.runtime import model_call
from vv_agent.runtime.eventlog import declared_ref
from vv_agent.runtime.output import Stop, failed
from vv_agent.runtime.run import Run
from vv_agent.runtime.tool_context import CallState, parsed, tool_context
from vv_agent.runtime.transcript import Transcript, storable
from vv_agent.tools.base import Decidable
from vv_agent.tools.output import error_result

MAX_PROVIDER_RETRIES = 3
"""A provider may have an operation made again until this attempt; an outcome in doubt once more is for a person."""


class Unresolved(VVAgentError):
    """An operation's outcome is unknown and nobody decided it: the run parks. Never leaves the runtime."""

    def __init__(self, observation: dict[str, Any]) -> None:
        super().__init__("reconciliation_required", str(observation.get("operation_id")))
        self.observation = observation


class GivenUp(Exception):
    """An operator gave up on a model call beside the turn. Leaves no cycle."""

    def __init__(self, stop: Stop) -> None:
        super().__init__()
        self.stop = stop


def operation_id(run: Run, position: int) -> str:
    """The id of the call at `position` (from 0) of the open cycle's batch, the same in every attempt."""
    return tool_operation_id(run.cycle, position + 1)


def key_of(run: Run, position: int) -> str:
    """The call's idempotency key; one that stands in the journal wins over a computed one."""
    stored = run.journal.get(operation_id(run, position), {}).get("key")
    return stored or idempotency_key(run.key, run.cycle, position + 1)


def attempt_of(run: Run, position: int) -> int:
    return int(run.journal.get(operation_id(run, position), {}).get("attempt", 1))


def start_model(run: Run, slot: str = "main") -> None:
    """Record a model call before it is made (policy `require_reconciliation` only): one durable save."""
    name = model_call.operation_id(run, slot)
    attempt = int(run.journal.get(name, {}).get("attempt", 1))
    run.note(name, {"state": "started", "attempt": attempt, "digest": run.transcript.identity.hex()})
    run.save(Progress(), durable=True)


def unstart_model(run: Run, slot: str = "main") -> None:
    """Note that the call certainly was not carried out: it may be made again."""
    name = model_call.operation_id(run, slot)
    run.note(name, {**run.journal[name], "state": "planned"})


def start_tool(run: Run, position: int, intent: Mapping[str, Any] | None) -> None:
    """Note that a call is about to start; the caller saves."""
    entry = dict(run.journal.get(operation_id(run, position), {}))
    entry.update(state="started", attempt=attempt_of(run, position))
    if intent is not None:
        entry["intent"] = dict(intent)
    run.note(operation_id(run, position), entry)


def doubt_tool(run: Run, position: int) -> None:
    """Note that a call ended in a way that does not say whether it had its effect."""
    _doubt(run, operation_id(run, position))


def doubt_model(run: Run, slot: str = "main") -> None:
    """The same for a model call."""
    _doubt(run, model_call.operation_id(run, slot))


def _doubt(run: Run, name: str) -> None:
    run.inbox.decisions.pop(name, None)  # it was about an earlier attempt
    run.note(name, {**run.journal[name], "state": "ambiguous"})


def recover(run: Run) -> Stop | None:
    """Settle what earlier claims left open; a Stop if an operator aborted. Raises `Unresolved`, or `LlmError` for a
    model call that is recorded as failed."""
    unresolved: list[dict[str, Any]] = []
    stop = _recover_model(run, unresolved)
    if run.turn is not None:
        for position in range(len(run.turn.calls)):
            stop = stop or _recover_tool(run, position, unresolved)
    if stop is None and unresolved:
        raise Unresolved(unresolved[0])
    return stop


def check_integrity(key: str, transcript: Transcript, cycle: int, journal: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse to go on with a model call that was recorded for another request than the one the run makes now.

    Tool requests are made of the log alone, so they cannot differ from what was recorded.
    """
    entry = journal.get(model_operation_id(cycle, "main"))
    if entry is None or entry["state"] == "planned" or cycle in transcript.turns:  # none was sent, or it was answered
        return
    if entry["digest"] != transcript.identity.hex():
        raise CheckpointError(
            "checkpoint_journal_integrity_mismatch",
            f"the model call of cycle {cycle} of run {key!r} was recorded for other messages than the record holds; "
            "the store was changed from outside, restore a backup",
        )


def settle_model(run: Run) -> Stop | None:
    """Settle a model call of this very claim whose outcome is unknown; like `recover`."""
    unresolved: list[dict[str, Any]] = []
    stop = _recover_model(run, unresolved)
    if unresolved:
        raise Unresolved(unresolved[0])
    return stop


def settle_tools(run: Run) -> Stop | None:
    """Settle the tool calls of this very claim whose outcome is unknown; like `recover`, but no file is looked at: a
    call that is abandoned may still write it."""
    unresolved: list[dict[str, Any]] = []
    stop: Stop | None = None
    for position in range(len(run.turn.calls) if run.turn is not None else 0):
        if run.journal.get(operation_id(run, position), {}).get("state") == "ambiguous":
            stop = stop or _recover_tool(run, position, unresolved, look=False)
    if stop is None and unresolved:
        raise Unresolved(unresolved[0])
    return stop


def observation(run: Run) -> dict[str, Any] | None:
    """The first call that was started and cut off or never heard of, for a run that ends without settling it."""
    for position in range(len(run.turn.calls) if run.turn is not None else 0):
        entry = run.journal.get(operation_id(run, position))
        assert run.turn is not None
        result = run.turn.results.get(position)
        if entry and entry["state"] in _BEGUN and (result is None or result.get("error_code") == "tool_cancelled"):
            return reconciliation.observe(_tool_entry(run, position, entry)).to_wire()
    name = model_call.operation_id(run)
    entry = run.journal.get(name)
    if run.turn is None and entry and entry["state"] in _BEGUN:
        return reconciliation.observe(_model_entry(run, name, entry)).to_wire()
    return None


_BEGUN = ("started", "ambiguous")


def _recover_model(run: Run, unresolved: list[dict[str, Any]]) -> Stop | None:
    name = model_call.operation_id(run)
    if run.turn is not None:
        _replayed(run, name, "model", "succeeded")
        return None
    entry = run.journal.get(name)
    if entry is None or entry["state"] == "planned":
        if run.head.recoveries and not run.program.reconciles_models:  # the call may have been made: nobody noted it
            model_call.warn_of_duplicate(run)
            model_call.reset_stream(run)
        return None
    recovery = _decide(run, _model_entry(run, name, entry))
    if (stop := _apply(run, name, entry, recovery, unresolved)) is not None:
        return stop
    match recovery.action, recovery.entry.state:
        case RecoveryAction.REPLAY, OperationState.SUCCEEDED:
            run.log(_response_item(run, recovery.entry.receipt or {}))
        case RecoveryAction.REPLAY, _:
            error = recovery.entry.error
            raise LlmError("reconciled_failure", error.message if error else "recorded as failed", definite=True)
        case RecoveryAction.CALL, _:
            model_call.reset_stream(run)
    return None


def settle_aside(run: Run, slot: str) -> Mapping[str, Any] | Stop | None:
    """What is known of a model call beside the turn that was begun before: the response somebody else knew, the end if
    an operator gave the run up, None when it is to be made. Raises `Unresolved`, and `LlmError` for one that is
    recorded as failed."""
    name, unresolved = model_call.operation_id(run, slot), list[dict[str, Any]]()
    entry = run.journal.get(name)
    if entry is None or entry["state"] == "planned":
        if run.recovered and not run.program.reconciles_models:  # it may have been made: nobody noted it
            model_call.warn_of_duplicate(run, slot)
        return None
    recovery = _decide(run, _model_entry(run, name, entry))
    if (stop := _apply(run, name, entry, recovery, unresolved)) is not None:
        return stop
    if unresolved:
        raise Unresolved(unresolved[0])
    if recovery.action is RecoveryAction.CALL:
        return None
    if recovery.entry.state is OperationState.SUCCEEDED:
        return recovery.entry.receipt or {}
    error = recovery.entry.error
    raise LlmError("reconciled_failure", error.message if error else "recorded as failed", definite=True)


def _model_entry(run: Run, name: str, entry: Mapping[str, Any]) -> ModelEntry:
    return ModelEntry(
        operation_id=name, cycle_index=run.index, attempt=entry["attempt"], state=OperationState(entry["state"]),
        request_digest=entry["digest"], error=None, idempotency_key=None, response=None,
    )  # fmt: skip


def _recover_tool(run: Run, position: int, unresolved: list[dict[str, Any]], *, look: bool = True) -> Stop | None:
    assert run.turn is not None
    name = operation_id(run, position)
    if position in run.turn.results:
        result = run.turn.results[position]
        _replayed(run, name, "tool", "failed" if result["status_code"] == "ERROR" else "succeeded")
        return None
    entry = run.journal.get(name)
    if entry is None or entry["state"] == "planned" or (look and _seen_done(run, position, entry)):
        return None
    recovery = _decide(run, _tool_entry(run, position, entry))
    if (stop := _apply(run, name, entry, recovery, unresolved)) is not None:
        return stop
    if recovery.action is RecoveryAction.REPLAY:
        receipt = _receipt(run, position, recovery.entry)
        run.log(["t", run.cycle, position, receipt])
        completed(run, position, receipt, started=True)
    return None


def completed(
    run: Run, position: int, result: Mapping[str, Any], *, started: bool, duration_ms: int | None = None
) -> None:
    """Tell that a call has its result; without a duration when nobody measured it."""
    assert run.turn is not None
    call = run.turn.call(position)
    declared = run.program.declared(call.name)
    run.emit(
        "tool_call_completed",
        refs=declared_ref(declared),
        tool_call_id=call.id,
        tool_name=call.name,
        status=result["status_code"].lower(),
        directive=result["directive"],
        error_code=result.get("error_code"),
        execution_started=started,
        duration_ms=duration_ms,
        tool_metadata=declared,
    )


def _seen_done(run: Run, position: int, entry: Mapping[str, Any]) -> bool:
    """Look at the images of a decidable call: True when that settled it."""
    assert run.turn is not None
    call = run.turn.call(position)
    tool = run.program.tools.get(call.name)
    if "intent" not in entry or not isinstance(tool, Decidable):
        return False
    name, arguments = operation_id(run, position), parsed(call)
    state = CallState(run)
    context = tool_context(run, call, state, attempt=entry["attempt"], key=key_of(run, position))
    try:
        found = tool.examine(context, arguments, entry["intent"])
    except Exception:  # a tool of somebody else: nobody can tell then
        return False
    match found:
        case "done":
            result = tool.replayed(context, arguments, entry["intent"])
            state.keep(run)
            run.log(["t", run.cycle, position, storable(result.to_wire())])
            run.note(name, None)
            _replayed(run, name, "tool", "succeeded")
        case "not_done":
            run.note(name, {**entry, "state": "planned", "attempt": entry["attempt"] + 1})
        case _:
            return False
    return True


def _tool_entry(run: Run, position: int, entry: Mapping[str, Any]) -> ToolEntry:
    assert run.turn is not None
    call = run.turn.call(position)
    key = key_of(run, position)
    request = {"tool_call_id": call.id, "tool_name": call.name, "arguments": parsed(call), "idempotency_key": key}
    digest = request_digest(operation_request(OperationKind.TOOL, request))
    return ToolEntry(
        operation_id=operation_id(run, position), cycle_index=run.index, attempt=entry["attempt"],
        state=OperationState(entry["state"]), request_digest=digest,
        error=None, tool_call_id=call.id, tool_name=call.name, arguments=parsed(call), idempotency_key=key,
        idempotency_support=run.program.idempotency(call.name), result=None,
    )  # fmt: skip


def _decide(run: Run, entry: ModelEntry | ToolEntry) -> Recovery:
    """The operator's decision, else the provider's, else the policy's."""
    policy = run.program.definition.checkpoint_policy
    decision = run.inbox.decided(entry.operation_id, entry.attempt) or _of_provider(run, entry)
    for fault in run.inbox.faults:
        run.emit("diagnostic", level="warning", code="signal_ignored", details={"error": fault})
    run.inbox.faults.clear()
    recover = partial(
        reconciliation.recover,
        entry,
        model_policy=AmbiguousModelPolicy(policy.ambiguous_model_policy),
        tool_policy=AmbiguousToolPolicy(policy.ambiguous_tool_policy),
    )
    try:
        return recover(decision=decision)
    except CheckpointError as error:  # a decision for another kind of operation
        return recover(decision=_unusable(run, error))


def _of_provider(run: Run, entry: ModelEntry | ToolEntry) -> ReconciliationDecision | None:
    provider = run.program.reconciliation_provider
    if provider is None:
        return None
    try:
        decision = provider.reconcile(reconciliation.observe(reconciliation.after_claim(entry)))
    except Exception as error:  # the host's own code
        return _unusable(run, error)
    if isinstance(decision, reconciliation.Retry) and entry.attempt >= MAX_PROVIDER_RETRIES:
        return _unusable(run, f"attempt {entry.attempt} was in doubt as well; a person decides now")
    return decision


def _unusable(run: Run, error: object) -> ReconciliationDecision:
    """Not knowing is the safe answer."""
    run.emit("diagnostic", level="warning", code="reconciliation_failed", details={"error": str(error)})
    return ReconciliationDecision.defer()


def _apply(
    run: Run, name: str, entry: Mapping[str, Any], recovery: Recovery, unresolved: list[dict[str, Any]]
) -> Stop | None:
    """Show a recovery's events, put its state into the journal; a Stop when the run is aborted."""
    after = recovery.entry
    said = (
        "told" in entry and recovery.action is not RecoveryAction.PARK
    )  # when the run began to wait for this decision
    for event in recovery.events:
        if event != "operation_ambiguous" or not said:
            _show(run, event, recovery)
    match recovery.action:
        case RecoveryAction.PARK:
            observation = recovery.observation
            assert observation is not None
            run.note(name, {**entry, "state": "ambiguous", "told": True})
            unresolved.append(observation.to_wire())
        case RecoveryAction.ABORT:
            run.note(name, {**entry, "state": "ambiguous"})
            assert recovery.observation is not None
            assert recovery.given_up is not None
            run.observe(recovery.observation.to_wire())
            return failed(f"given up, the outcome of {name} is unknown: {recovery.given_up.message}", ABORT_CODE)
        case RecoveryAction.CALL:
            kept = {field: value for field, value in entry.items() if field != "told"}
            run.note(name, {**kept, "state": "planned", "attempt": after.attempt})
        case RecoveryAction.REPLAY:
            run.note(name, None)
    return None


def _show(run: Run, event: str, recovery: Recovery) -> None:
    entry = recovery.entry
    fields: dict[str, Any] = {
        "checkpoint_key": run.key, "operation_id": entry.operation_id, "operation_kind": entry.kind,
    }  # fmt: skip
    support = entry.idempotency_support if isinstance(entry, ToolEntry) else None
    match event:
        case "operation_ambiguous":
            fields |= {"risk": recovery.risk, "idempotency_support": support}
        case "model_retry_duplicate_risk":
            fields |= {"risk": recovery.risk}
        case "reconciliation_required":
            observation = recovery.observation
            assert observation is not None
            fields |= {
                "interruption_reason": reconciliation.INTERRUPTION_REASON, "resume_observation": observation.to_wire(),
            }  # fmt: skip
        case "reconciliation_resolved":
            fields |= {"decision": _kind_of(recovery)}
        case "operation_replayed":
            fields |= {"receipt_state": entry.state.value}
    run.emit(event, **fields)


def _kind_of(recovery: Recovery) -> str:
    if recovery.action is RecoveryAction.CALL:
        return "retry"
    return "replay_success" if recovery.entry.state is OperationState.SUCCEEDED else "record_failure"


def _replayed(run: Run, name: str, kind: str, state: str) -> None:
    if run.body.checkpointed and run.recovered:
        run.emit(
            "operation_replayed", checkpoint_key=run.key, operation_id=name, operation_kind=kind, receipt_state=state
        )


def _receipt(run: Run, position: int, entry: ModelEntry | ToolEntry) -> dict[str, Any]:
    """The stored form of a decided tool outcome."""
    assert run.turn is not None
    call_id = run.turn.call(position).id
    if entry.receipt is not None:
        kept = {name: value for name, value in entry.receipt.items() if value is not None}
        return {**_PLAIN, **storable(kept), "tool_call_id": call_id}
    error = entry.error
    assert error is not None
    return error_result(call_id, error.message, error.code, {"retryable": error.retryable}).to_wire()


_PLAIN = ToolExecutionResult(tool_call_id="", content="").to_wire()
"""What a result is where whoever decided says no more of it."""


def _response_item(run: Run, response: Mapping[str, Any]) -> list[Any]:
    """The log item of a model response that somebody else knew."""
    calls = [
        {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": json.dumps(c["arguments"])}}
        for c in response.get("tool_calls", [])
    ]
    message: dict[str, Any] = {"role": "assistant", "content": response.get("content", "")}
    if calls:
        message["tool_calls"] = calls
    usage = (response.get("token_usage") or {}).get("provider_usage")
    return ["a", run.cycle, storable(message), storable(usage), None, None, "stop"]
