"""The end of a segment, before it is stored: output guardrails, then the validation of the output with one repair."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import partial
from typing import Any

from vv_agent.checkpoint.identity import model_operation_id
from vv_agent.checkpoint.reconciliation import ABORT_CODE
from vv_agent.checkpoint.record import Progress
from vv_agent.errors import LlmError, VVAgentError
from vv_agent.hooks import (
    GuardrailResult,
    OutputRepairRequest,
    OutputValidationContext,
    OutputValidationResult,
    typed,
)
from vv_agent.results import AgentResult, AgentStatus, CompletionReason
from vv_agent.runtime import hooks, journal
from vv_agent.runtime.control import BLOCKED_CODE, GUARD_CODE, HookFailed
from vv_agent.runtime.output import Decision, Stop, agent_result, failed
from vv_agent.runtime.run import Run
from vv_agent.runtime.transcript import clean
from vv_agent.runtime.waiting import RunCancelled

VALIDATION_CODE = "output_validation_failed"
VALIDATOR_CODE = "output_validator_error"
CONTRACT_CODE = "output_validator_contract_invalid"
REPAIR_CODE = "repair_provider_error"
SLOT = "repair"
"""The call site of a repair in its cycle."""
_NEVER = (CompletionReason.CANCELLED, CompletionReason.BUDGET_EXHAUSTED)


def checked(run: Run, decision: Decision) -> Decision:
    """The end after guardrails and validation; the host is asked once about the same end under one claim."""
    wanted = run.program.hooks
    if not isinstance(decision, Stop) or not (wanted.output_guardrails or wanted.validation.enabled):
        return decision
    if decision.reason in _NEVER or decision.error_code == ABORT_CODE or _settled(run, decision):
        return decision
    if run.checked is None or run.checked[:2] != (run.cycle, decision):
        guarded = _guarded(run, decision)
        run.checked = (run.cycle, decision, _validated(run, guarded))
    return run.checked[2]


def _settled(run: Run, decision: Stop) -> bool:
    """Whether there is nothing to look at: the end was decided under an earlier claim, hands the run on, or asks for an
    approval."""
    decided = decision.to is not None or run.body.segment in run.transcript.candidates
    return decided or (decision.status is AgentStatus.WAIT_USER and bool(run.approvals.open()))


# Guardrails.


def _guarded(run: Run, decision: Stop) -> Stop:
    """What the guardrails let pass; the first one that does not decides."""
    for guardrail in run.program.hooks.output_guardrails:
        result, name = _result(run, decision), type(guardrail).__name__
        context = hooks.context_of(run)
        check = partial(guardrail.check, context, result)
        try:
            verdict = hooks.host_call(run, name, GUARD_CODE, check, GuardrailResult)
        except HookFailed as error:
            return _blocked(decision, error.message, error.code)
        if verdict is None:
            continue
        if verdict.action != "allow":
            return _blocked(decision, clean(verdict.message), BLOCKED_CODE)
        decision = _rewritten(decision, verdict.value)
    return decision


def _result(run: Run, decision: Stop) -> AgentResult:
    blobs = {"state": run.shared_state, "approvals": run.approvals.stored()}
    if run.account is not None:
        blobs["budget"] = run.account.stored()
    found = agent_result(run.head._replace(ending=True), run.body, run.transcript, blobs, decision)
    return found.model_copy(deep=True)


def _blocked(decision: Stop, message: str, code: str) -> Stop:
    candidate = decision.answer if decision.status is AgentStatus.COMPLETED else None
    return replace(failed(message, code), partial=candidate)


def _rewritten(decision: Stop, value: Any) -> Stop:
    """The same end with another text; nothing else of it can be changed."""
    if isinstance(value, AgentResult):
        value = next((text for text in (value.final_answer, value.wait_reason, value.error) if text is not None), None)
    if value is None:
        return decision
    text = clean(str(value))
    if decision.status in (AgentStatus.COMPLETED, AgentStatus.WAIT_USER):
        return replace(decision, answer=text)
    return replace(decision, error=text) if decision.status is AgentStatus.FAILED else decision


# Validation.


def _validated(run: Run, decision: Stop) -> Stop:
    validation = run.program.hooks.validation
    if decision.status is not AgentStatus.COMPLETED or not validation.enabled:
        return decision
    output = run.transcript.resolve(decision.answer) or ""
    verdict, repairable = _judged(run, output)
    if verdict.valid:
        return decision
    if repairable and validation.repair is not None and validation.max_repairs:
        repaired, error = _repaired(run, output, verdict)
        if isinstance(repaired, Stop):
            return repaired
        if repaired is None:
            verdict = OutputValidationResult.fail(REPAIR_CODE, error)
        else:
            verdict, _ = _judged(run, repaired)
            if verdict.valid:
                return replace(decision, answer=repaired)
    text = f"{VALIDATION_CODE}: {verdict.code}" + (f": {verdict.message}" if verdict.message else "")
    return replace(failed(clean(text), VALIDATION_CODE), partial=decision.answer)


def _judged(run: Run, output: str) -> tuple[OutputValidationResult, bool]:
    """What the validator says, and whether a repair can help."""
    wanted = run.program.hooks
    kind, validator = wanted.output_type, wanted.validation.validator
    value: Any = output
    assert validator is not None
    if kind is not None:
        try:
            value = typed(output, kind)
        except VVAgentError as error:
            return OutputValidationResult.fail(error.code, error.message), True
    context = OutputValidationContext(run.body.run_id, run.body.agent, type_name(kind) if kind is not None else None)
    try:
        verdict = hooks.host_call(run, "the output validator", VALIDATOR_CODE, lambda: validator(value, context))
    except HookFailed as error:
        return OutputValidationResult.fail(error.code, error.message), False
    if not isinstance(verdict, OutputValidationResult):
        return _contract(f"it gave {type(verdict).__name__}, not an OutputValidationResult"), False
    if verdict.valid and (verdict.code is not None or verdict.message is not None):
        return _contract("a valid output has no code and no message"), False
    if not verdict.valid and not (isinstance(verdict.code, str) and verdict.code.strip()):
        return _contract("an invalid output needs a code"), False
    return verdict, True


def _contract(problem: str) -> OutputValidationResult:
    return OutputValidationResult.fail(CONTRACT_CODE, f"the output validator: {problem}")


def type_name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)


def _repaired(run: Run, output: str, verdict: OutputValidationResult) -> tuple[str | Stop | None, str | None]:
    """The repaired text, or why there is none: a model call of its own, recorded before it is made and once it is done.
    A Stop when an operator gave it up."""
    if run.cycle not in run.transcript.repairs:
        name = model_operation_id(run.cycle, SLOT)
        if (stop := _settled_repair(run, name)) is not None:
            return stop, None
        if run.cycle not in run.transcript.repairs:
            _repair(run, name, output, verdict)
    return run.transcript.repairs[run.cycle]


def _settled_repair(run: Run, name: str) -> Stop | None:
    """Settle a repair that an earlier claim began."""
    if name not in run.journal:
        return None
    try:
        known = journal.settle_aside(run, SLOT)
    except LlmError as error:
        run.log(["v", run.cycle, None, error.message])
        return None
    if isinstance(known, Stop):
        return known
    if known is not None:
        run.log(["v", run.cycle, str(known.get("content", "")), None])
    return None


def _repair(run: Run, name: str, output: str, verdict: OutputValidationResult) -> None:
    validation = run.program.hooks.validation
    assert validation.repair is not None
    request = OutputRepairRequest(
        invalid_output=output, validation_code=verdict.code or "", validation_message=verdict.message,
        model=validation.repair_model, model_settings=validation.repair_model_settings,
    )  # fmt: skip
    digest = hashlib.sha256(json.dumps([output, verdict.code, verdict.message, request.model]).encode()).hexdigest()
    attempt = int(run.journal.get(name, {}).get("attempt", 1))
    run.note(name, {"state": "started", "attempt": attempt, "digest": digest})
    run.save(Progress(), durable=True)
    if run.inbox.cancel is not None:
        raise RunCancelled(run.inbox.cancel)
    repair = validation.repair

    def work() -> Any:
        run.engine.probe("model", "before")
        text = hooks.awaited(repair(request))
        run.engine.probe("model", "after")
        return text

    try:
        text = hooks.host_call(run, "the output repair", REPAIR_CODE, work, str)
    except HookFailed as error:
        run.log(["v", run.cycle, None, error.message])
    else:
        run.log(["v", run.cycle, clean(text or ""), None])
    run.note(name, None)
    run.save(Progress())
