"""What clients see of a run: its events as items, its result as the end of a turn. Pure functions (spec/30)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic.alias_generators import to_camel

from vv_agent.app_server import protocol as wire
from vv_agent.checkpoint.record import Head, State
from vv_agent.events import (
    ApprovalRequestedEvent,
    ApprovalResolvedEvent,
    AssistantDeltaEvent,
    ModelToolCallProgressEvent,
    RunCompletedEvent,
    RunEvent,
    RunFailedEvent,
    RunStartedEvent,
    ToolCallCompletedEvent,
    ToolCallStartedEvent,
)
from vv_agent.result import RunResult
from vv_agent.results import AgentStatus
from vv_agent.runtime.body import Body


@dataclass(frozen=True)
class Shown:
    """An event as clients see it: an item with its notifications, and what is said besides."""

    item: wire.AppItem
    notes: Sequence[tuple[str, wire.Json]] = ()
    """Methods with what their parameters have beside the item."""
    besides: Sequence[tuple[str, wire.Part]] = ()
    kept: bool = True
    """The item is stored. Progress of a model that writes a call is not: it says nothing that lasts."""


@dataclass
class Projection:
    """The view of one turn's run. It remembers the arguments of planned calls, for those who must approve them."""

    thread_id: str
    turn_id: str
    arguments: dict[str, wire.Json] = field(default_factory=dict)

    def show(self, event: RunEvent) -> Shown | None:
        """None for an event that clients do not see. Of runs below the turn's, they see what somebody must decide."""
        if event.parent_run_id is not None and not isinstance(event, ApprovalRequestedEvent | ApprovalResolvedEvent):
            return None
        match event:
            case RunStartedEvent():
                return self._completed(event, "userMessage", {"text": event.input})
            case AssistantDeltaEvent():
                item = self.item(event, "agentMessage", "inProgress", {"delta": event.delta})
                return Shown(item, [("item/agentMessage/delta", {"delta": event.delta})])
            case ModelToolCallProgressEvent():
                return self._progress(event)
            case ToolCallStartedEvent():
                return self._tool_started(event)
            case ToolCallCompletedEvent():
                return self._tool_completed(event)
            case ApprovalRequestedEvent():
                asked = self._asked(event)
                payload = {k: v for k, v in asked.to_wire().items() if k not in ("threadId", "turnId")}
                item = self.item(event, "approval", "started", payload)
                return Shown(item, [("item/started", {})], [("approval/requested", asked)])
            case ApprovalResolvedEvent():
                decided = event.metadata
                return self.resolved(event, str(decided.get("reason") or ""), decided.get("decision_metadata") or {})
            case RunCompletedEvent() if event.final_output:
                return self._completed(event, "agentMessage", {"text": event.final_output})
            case RunFailedEvent():
                item = self.item(event, "error", "completed", {"message": event.error})
                warned = wire.Warned(message=event.error, code="run_failed")
                return Shown(item, [("item/completed", {})], [("error/warning", warned)])
        if event.type == "tool_call_planned":
            self.arguments[event.tool_call_id] = event.arguments
        return None

    def item(self, event: RunEvent, kind: wire.ItemType, status: wire.ItemStatus, payload: wire.Json) -> wire.AppItem:
        return wire.AppItem(
            item_id=f"item_{event.event_id}", thread_id=self.thread_id, turn_id=self.turn_id, type=kind, status=status,
            payload=payload, created_at=event.created_at, updated_at=event.created_at,
        )  # fmt: skip

    def resolved(self, event: ApprovalResolvedEvent, reason: str, metadata: Mapping[str, Any]) -> Shown:
        """A decision on an approval."""
        payload = {
            "requestId": event.request_id, "toolCallId": event.tool_call_id, "toolName": event.tool_name,
            "action": event.action, "approved": event.action in ("allow", "allow_session"), "reason": reason,
            "decisionMetadata": dict(metadata),
        }  # fmt: skip
        told = self.decision(event.request_id, event.action, reason, metadata)
        item = self.item(event, "approval", "completed", payload)
        return Shown(item, [("item/completed", {})], [("approval/resolved", told)])

    def decision(
        self, request_id: str, decision: wire.Decision, reason: str, metadata: Mapping[str, Any]
    ) -> wire.ApprovalResolveParams:
        return wire.ApprovalResolveParams(
            thread_id=self.thread_id, turn_id=self.turn_id, request_id=request_id, decision=decision,
            reason=reason or None, metadata=dict(metadata) or None,
        )  # fmt: skip

    def _completed(self, event: RunEvent, kind: wire.ItemType, payload: wire.Json) -> Shown:
        return Shown(self.item(event, kind, "completed", payload), [("item/completed", {})])

    def _progress(self, event: ModelToolCallProgressEvent) -> Shown:
        known = {"toolCallId": event.tool_call_id, "toolName": event.tool_name}
        counted = {"toolCallIndex": event.tool_call_index, "argumentsChars": event.arguments_chars}
        delta = known | {name: value for name, value in counted.items() if value is not None}
        item = self.item(event, "toolCall", "inProgress", known)
        return Shown(item, [("item/toolCall/delta", {"delta": delta})], kept=False)

    def _tool_started(self, event: ToolCallStartedEvent) -> Shown:
        self.arguments[event.tool_call_id] = event.arguments
        item = self.item(event, "toolCall", "started", _call(event))
        return Shown(item, [("item/started", {}), ("item/toolCall/delta", {"delta": event.arguments})])

    def _tool_completed(self, event: ToolCallCompletedEvent) -> Shown:
        payload = _call(event) | {
            "status": event.status, "directive": event.directive.value, "errorCode": event.error_code,
            "executionStarted": event.execution_started, "durationMs": event.duration_ms,
        }  # fmt: skip
        ended: dict[str, wire.ItemStatus] = {"success": "completed", "error": "failed"}
        item = self.item(event, "toolCall", ended.get(event.status, "inProgress"), payload)
        return Shown(item, [("item/completed", {})])

    def _asked(self, event: ApprovalRequestedEvent) -> wire.ApprovalRequestParams:
        arguments = event.metadata.get("arguments", self.arguments.get(event.tool_call_id, {}))
        return wire.ApprovalRequestParams(
            request_id=event.request_id, thread_id=self.thread_id, turn_id=self.turn_id, preview=event.message,
            tool_call_id=event.tool_call_id, tool_name=event.tool_name, arguments=arguments,
        )  # fmt: skip


def _call(event: ToolCallStartedEvent | ToolCallCompletedEvent) -> wire.Json:
    payload: wire.Json = {"toolName": event.tool_name, "toolCallId": event.tool_call_id}
    if event.tool_metadata is not None:
        payload["toolMetadata"] = {to_camel(name): value for name, value in event.tool_metadata.to_wire().items()}
    return payload


# Turns.

_TURN: dict[AgentStatus, wire.TurnStatus] = {
    AgentStatus.COMPLETED: "completed",
    AgentStatus.WAIT_USER: "interrupted",
    AgentStatus.RECONCILIATION_REQUIRED: "interrupted",
    AgentStatus.FAILED: "failed",
    AgentStatus.MAX_CYCLES: "failed",
}


def text_of(parts: Sequence[wire.Json]) -> str:
    """The input of a turn as text: text parts as they are, other objects as JSON, one below the other."""
    return "\n".join(
        part["text"]
        if part.get("type") == "text" and isinstance(part.get("text"), str)
        else json.dumps(part, ensure_ascii=False)
        for part in parts
    )


def checkpoint_of(head: Head) -> wire.CheckpointSummary:
    """Where a stored run stands: no definition, digest, argument, response or key of an operation."""
    over = head.state is State.ENDED
    committed = head.cycle - (0 if over else 1)
    first = Body.unpack(head.body, head.key).first_cycle
    return wire.CheckpointSummary(
        key=head.key, resume_attempt=head.attempt, cycle_index=max(0, committed - first + 1), status=head.status,
        terminal_acknowledged=over,
    )  # fmt: skip


def outcome_of(result: RunResult, head: Head | None) -> tuple[wire.TurnStatus, wire.Outcome]:
    """How a turn ended; `head` is the record of a checkpointed run."""
    raw, waits = result.raw_result, result.status in (AgentStatus.WAIT_USER, AgentStatus.RECONCILIATION_REQUIRED)
    doubt = result.resume_observation
    completed = result.status is AgentStatus.COMPLETED
    error = None if completed or waits else raw.error or raw.final_answer or str(result.status)
    interruption = None if doubt is None else wire.InterruptionSummary(
        reason="resume_requires_reconciliation", operation_id=doubt.operation_id, operation_kind=doubt.operation_kind,
        cycle_index=doubt.cycle_index, risk=doubt.risk,
        idempotency_support=None if doubt.idempotency_support is None else str(doubt.idempotency_support),
    )  # fmt: skip
    return _TURN[result.status], wire.Outcome(
        final_output=result.to_dict()["final_output"] if completed else None,
        completion_reason=None if result.completion_reason is None else str(result.completion_reason),
        completion_tool_name=result.completion_tool_name, partial_output=result.partial_output, error=error,
        token_usage=result.token_usage.to_wire(),
        budget_usage=None if result.budget_usage is None else result.budget_usage.to_wire(),
        budget_exhaustion=None if result.budget_exhaustion is None else result.budget_exhaustion.to_wire(),
        checkpoint=None if head is None else checkpoint_of(head), interruption=interruption,
    )  # fmt: skip
