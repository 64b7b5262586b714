"""Approvals: what a person or a program is asked before a tool call runs, and what they may answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from vv_agent.errors import ConfigError


class ApprovalAction(StrEnum):
    """What was decided. `allow_session` also allows later calls of the same tool in this run."""

    ALLOW = "allow"
    ALLOW_SESSION = "allow_session"
    DENY = "deny"
    TIMEOUT = "timeout"


@dataclass(frozen=True, kw_only=True)
class ApprovalDecision:
    """A decision; made by its helpers, for example `ApprovalDecision.deny("not on Fridays")`."""

    action: ApprovalAction
    reason: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "action", ApprovalAction(self.action))
        except ValueError:
            raise ConfigError(
                "approval_invalid", f"action {self.action!r} is not one of {', '.join(ApprovalAction)}"
            ) from None
        if not isinstance(self.reason, str):
            raise ConfigError("approval_invalid", f"the reason of a decision is text, not {self.reason!r}")
        try:
            json.dumps(self.metadata if isinstance(self.metadata, dict) else dict(self.metadata))
        except (TypeError, ValueError) as error:
            raise ConfigError("approval_invalid", f"the metadata of a decision is no JSON object: {error}") from None

    @classmethod
    def allow(cls, reason: str | None = None, *, metadata: Mapping[str, Any] | None = None) -> ApprovalDecision:
        return cls(action=ApprovalAction.ALLOW, reason=reason or "", metadata=metadata or {})

    @classmethod
    def allow_session(cls, reason: str | None = None, *, metadata: Mapping[str, Any] | None = None) -> ApprovalDecision:
        return cls(action=ApprovalAction.ALLOW_SESSION, reason=reason or "", metadata=metadata or {})

    @classmethod
    def deny(cls, reason: str | None = None, *, metadata: Mapping[str, Any] | None = None) -> ApprovalDecision:
        return cls(action=ApprovalAction.DENY, reason=reason or "", metadata=metadata or {})

    @classmethod
    def timeout(cls, reason: str | None = None, *, metadata: Mapping[str, Any] | None = None) -> ApprovalDecision:
        return cls(action=ApprovalAction.TIMEOUT, reason=reason or "", metadata=metadata or {})


@dataclass(frozen=True, kw_only=True)
class ApprovalRequest:
    """A call that waits for a decision. `request_id` is the same in the events, the store and the result."""

    request_id: str
    run_id: str
    trace_id: str
    agent_name: str
    cycle_index: int
    tool_call_id: str
    tool_name: str
    arguments: Mapping[str, Any]
    preview: str
    """`NAME {arguments as JSON}`."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class ApprovalProvider(Protocol):
    """Asks somebody. It is called in the process that started or follows the run, never in a worker.

    `decide` may be asynchronous, and may take as long as it needs; None leaves the decision to `handle.approve`, or to
    `vv-agent runs approve`. What it raises fails the run. An object may also have `should_request(request) -> bool`:
    False lets the call run without asking.
    """

    def decide(self, request: ApprovalRequest) -> ApprovalDecision | Awaitable[ApprovalDecision | None] | None: ...


class ApprovalBroker:
    """The requests that runs of this process wait for, so that another part of the program can decide. One broker may
    serve many runs; it holds a request until somebody decided or its run is over."""

    def __init__(self) -> None:
        self._pending: dict[str, tuple[ApprovalRequest, Callable[[ApprovalDecision], None]]] = {}
        self._lock = threading.Lock()

    def pending(self) -> tuple[ApprovalRequest, ...]:
        """What waits, oldest first."""
        with self._lock:
            return tuple(request for request, _ in self._pending.values())

    def resolve(self, request_id: str, decision: ApprovalDecision) -> None:
        """Decide; `ConfigError` `unknown_approval_request` for an id that does not wait (any more)."""
        with self._lock:
            found = self._pending.get(request_id)
        if found is None:
            raise ConfigError("unknown_approval_request", f"unknown approval request: {request_id}")
        found[1](decision)
        self.discard(request_id)

    def register(self, request: ApprovalRequest, decide: Callable[[ApprovalDecision], None]) -> None:
        """Hold a request; `decide` is called with the decision."""
        with self._lock:
            self._pending[request.request_id] = (request, decide)

    def discard(self, request_id: str) -> None:
        """Let go of a request that was decided elsewhere."""
        with self._lock:
            self._pending.pop(request_id, None)
