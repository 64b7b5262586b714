"""Which calls wait for a yes, and what became of the requests: kept with the run's record, so that a decision may come
from any process and after any restart.

A request belongs to a call of the open cycle and is bound to a digest of the arguments that were shown. Its decision is
a signal with the request's id, of which the first one counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from vv_agent.approvals import ApprovalAction
from vv_agent.errors import VVAgentError
from vv_agent.messages import ToolCall
from vv_agent.results import ToolDirective, ToolExecutionResult, ToolStatus
from vv_agent.runtime.control import HookFailed
from vv_agent.runtime.transcript import storable
from vv_agent.tools.base import Arguments, Tool, ToolContext
from vv_agent.tools.output import error_result
from vv_agent.tools.policy import ApprovalPolicy

if TYPE_CHECKING:
    from vv_agent.checkpoint.record import Head
    from vv_agent.runtime.run import Run

_MOST_EARLY = 64
_MOST_CALLS = 512
"""Calls of a batch among which the one of a request is looked for."""
FAILED = "failed"
"""The action of a provider that raised: the run fails with its message."""


class ApprovalNeeded(Exception):
    """Nothing of the batch can go on before somebody decides. Leaves no cycle."""


class ApprovalFailed(VVAgentError):
    """Whoever was asked could not answer. Leaves no cycle."""


def request_id(run: Run, position: int, digest: str) -> str:
    """The name of a request. What was shown is part of it: when the save of a request is lost and the model then asks
    for something else, a decision on the first one is none on the second."""
    return _name(run.head, run.cycle, position, digest)


def _name(head: Head, cycle: int, position: int, digest: str) -> str:
    name = f"{head.key}\0{head.run_id}\0{cycle}\0{position}\0{digest}"
    return f"approval_{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def asks(head: Head, name: str, digest: str) -> bool:
    """Whether a request of this name is one for a call of the record's open cycle."""
    return any(name == _name(head, head.cycle, position, digest) for position in range(_MOST_CALLS))


def digest_of(tool_name: str, arguments: Mapping[str, Any]) -> str:
    """What a decision is bound to: the tool, and the arguments as they were shown."""
    text = json.dumps(storable(arguments), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(f"{tool_name}\0{text}".encode()).hexdigest()


def message_of(tool_name: str) -> str:
    return f"Approval required for tool {tool_name}."


class Approvals:
    """The requests of the open cycle, and the tools that were allowed for the whole run. A request is gone once its
    call has a result."""

    def __init__(self, stored: Mapping[str, Any]) -> None:
        self.requests: dict[str, dict[str, Any]] = {name: dict(one) for name, one in stored.get("requests", {}).items()}
        self.granted: list[str] = list(stored.get("granted", ()))
        self._early: dict[str, Any] = dict(stored.get("early", {}))
        """Decisions on requests that were shown and are not open yet: their save failed, or comes next."""
        self.unsaved = False
        """A decision is noted that no save has taken yet."""

    def stored(self) -> dict[str, Any]:
        kept = {"requests": self.requests, "granted": self.granted, "early": self._early}
        return {name: value for name, value in kept.items() if value}

    def forget(self) -> None:
        """The cycle is committed."""
        self.requests, self._early = {}, {}

    def close(self, position: int) -> None:
        """The call at this position has its result."""
        self.requests = {name: one for name, one in self.requests.items() if one["position"] != position}

    def at(self, position: int) -> tuple[str, dict[str, Any]] | None:
        """The request for the call at this position, and its id."""
        return next((found for found in self.requests.items() if found[1]["position"] == position), None)

    def open(self) -> dict[str, dict[str, Any]]:
        return {name: one for name, one in self.requests.items() if "action" not in one}

    def settle(self, run: Run) -> bool:
        """Take in what came meanwhile; whether anything was decided."""
        decided = self.collect(run)
        self.decide(run, decided)
        return bool(decided)

    def collect(self, run: Run) -> dict[str, Mapping[str, Any]]:
        """What came for the open requests: decisions, and the deadlines that passed."""
        given = {**self._early, **run.inbox.take_approvals()}
        decided: dict[str, Mapping[str, Any]] = {}
        for name, request in self.open().items():
            until = request.get("until")
            word = given.pop(name, None)
            if word and word.get("digest") == request["digest"] and (until is None or word["at"] < until):
                decided[name] = word
            elif until is not None and until <= run.claimed_at:
                decided[name] = {"action": ApprovalAction.TIMEOUT.value}
        unknown = [name for name in given if name not in self.requests]
        self._early = {name: given[name] for name in unknown[-_MOST_EARLY:]}
        return decided

    def decide(self, run: Run, decided: Mapping[str, Mapping[str, Any]]) -> None:
        """Note decisions, and show them. What is allowed for the whole run counts for the requests without a word of
        their own."""
        for name, body in decided.items():
            self._note(run, name, body)
        for name, body in decided.items():
            if body["action"] == ApprovalAction.ALLOW_SESSION:
                tool = self.requests[name]["tool"]
                self.granted = [*self.granted, tool] if tool not in self.granted else self.granted
                for other in [other for other, one in self.open().items() if one["tool"] == tool]:
                    self._note(run, other, body)

    def _note(self, run: Run, name: str, body: Mapping[str, Any]) -> None:
        request, action = self.requests[name], body["action"]
        request |= {"action": action, "reason": str(body.get("reason") or "")}
        self.unsaved = True
        if action != FAILED:
            run.emit(
                "approval_resolved", request_id=name, tool_call_id=request["call_id"], tool_name=request["tool"],
                action=action,
                metadata={"reason": request["reason"], "decision_metadata": dict(body.get("metadata") or {})},
            )  # fmt: skip

    def due_in(self, now: int) -> int | None:
        """Milliseconds until the first deadline of an open request."""
        return min((max(0, one["until"] - now) for one in self.open().values() if one.get("until")), default=None)


def required(run: Run, tool: Tool, call: Callable[[], tuple[ToolContext, Arguments]]) -> bool:
    """Whether somebody must say yes to a call; a predicate of it that fails counts as a yes to asking."""
    mode = run.program.policy.approval
    if mode in (ApprovalPolicy.NEVER, ApprovalPolicy.ALWAYS):
        return mode is ApprovalPolicy.ALWAYS
    asks = tool.needs_approval
    if isinstance(asks, bool):
        return asks or run.program.asks(tool.name)
    from vv_agent.runtime.hooks import HOOK_CODE, host_call

    try:
        return bool(host_call(run, "needs_approval", HOOK_CODE, lambda: asks(*call())))
    except HookFailed:  # whoever is asked sees the call
        return True


def refused(run: Run, position: int, call: ToolCall, arguments: Mapping[str, Any]) -> ToolExecutionResult | None:
    """The result of a call that was denied or whose request timed out. Raises `ApprovalFailed`."""
    if (asked := run.approvals.at(position)) is None:
        return None
    name, request = asked
    action = request.get("action")
    if action in (None, ApprovalAction.ALLOW, ApprovalAction.ALLOW_SESSION):
        return None
    if action == FAILED:
        raise ApprovalFailed("approval_provider_failed", request["reason"])
    if action == ApprovalAction.TIMEOUT:
        text, code = request["reason"] or "Approval request timed out.", "tool_approval_timeout"
    else:
        text, code = request["reason"] or f"Approval denied for tool {call.name}.", "tool_approval_denied"
    metadata = {
        "mode": "approval_resolved", "request_id": name, "tool_name": call.name, "arguments": dict(arguments),
        "action": action, "message": text,
    }  # fmt: skip
    return error_result(call.id, text, code, {"tool_name": call.name}, metadata=metadata)


def undecided(run: Run, position: int, tool: Tool, judge: Callable[[], bool]) -> bool:
    """Whether a call still waits. `judge` says whether it is to be asked for; what was asked is not judged again."""
    if (asked := run.approvals.at(position)) is not None:
        return "action" not in asked[1]
    return tool.name not in run.approvals.granted and judge()


def was_asked(run: Run, position: int) -> bool:
    return run.approvals.at(position) is not None


def ask(run: Run, position: int, call: ToolCall, arguments: Mapping[str, Any]) -> None:
    """Open the request for a call, unless it is there."""
    if was_asked(run, position):
        return
    digest = digest_of(call.name, arguments)
    name = request_id(run, position, digest)
    timeout = run.program.definition.tool_policy.approval_timeout_seconds
    run.approvals.requests[name] = {
        "position": position, "tool": call.name, "call_id": call.id, "digest": digest,
        "until": None if timeout is None else run.engine.store.now() + round(timeout * 1000),
    }  # fmt: skip
    run.emit(
        "approval_requested", refs={"metadata": ("approval", position)}, request_id=name, tool_call_id=call.id,
        tool_name=call.name, message=message_of(call.name),
        metadata={"arguments": dict(arguments), "tool_name": call.name},
    )  # fmt: skip


def shown(name: str, request: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The result that stands in for a call in the result of a run that waits for its approval."""
    text = message_of(request["tool"])
    return ToolExecutionResult(
        tool_call_id=request["call_id"], content=text, status_code=ToolStatus.WAIT_RESPONSE,
        directive=ToolDirective.WAIT_USER, error_code="tool_approval_required",
        metadata={
            "mode": "approval_requested", "approval_required": True, "approval_interruption_id": name,
            "request_id": name, "tool_name": request["tool"], "arguments": dict(arguments), "message": text,
        },
    ).to_wire()  # fmt: skip
