"""The wire of the App Server (spec/30): one pydantic model for each object, from which parsing, writing, JSON Schema
and TypeScript come.

Names are camelCase on the wire. A field without a default is always written, also as null; one with a default is left
out while it is None. Objects are closed. Token and budget usage keep their own snake_case names inside.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
)
from pydantic.alias_generators import to_camel

from vv_agent._wire import Count, Text, Wire
from vv_agent.checkpoint.config import MAX_KEY_BYTES

PROTOCOL_VERSION = "v1"
ThreadStatus: TypeAlias = Literal["idle", "running", "archived", "closed"]
TurnStatus: TypeAlias = Literal["queued", "running", "completed", "failed", "interrupted"]
ItemStatus: TypeAlias = Literal["started", "inProgress", "completed", "failed"]
ItemType: TypeAlias = Literal[
    "userMessage", "agentMessage", "toolCall", "approval", "error", "memoryCompact", "subRun", "handoff", "runStatus"
]
Decision: TypeAlias = Literal["allow", "allow_session", "deny", "timeout"]
Seconds: TypeAlias = int | float
Json: TypeAlias = dict[str, Any]


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain NUL")
    return text


Id = Annotated[str, AfterValidator(_without_nul)]
"""Of something that a store looks for."""
Seq = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""A number of a change; no store counts further."""
Limit = Annotated[int, Field(ge=1, le=10_000)]


class Part(Wire):
    """An object of the wire."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_alias=True, validate_by_name=True, serialize_by_alias=True
    )

    @model_serializer(mode="wrap")
    def _leave_out(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        always = {to_camel(name) for name, field in type(self).model_fields.items() if field.is_required()}
        return {name: value for name, value in write(self).items() if value is not None or name in always}

    @classmethod
    def from_wire(cls, wire: Any) -> Self:
        return cls.model_validate(wire, by_alias=True, by_name=False)


# Connections.


class ClientInfo(Part):
    name: Text
    title: str | None = None
    version: str | None = None


class ClientCapabilities(Part):
    experimental_api: bool = False
    opt_out_notification_methods: list[str] = Field(default_factory=list)


class InitializeParams(Part):
    client_info: ClientInfo
    capabilities: ClientCapabilities | None = None


class ServerCapabilities(Part):
    model_list: bool
    thread_lifecycle: bool
    """False while no runtime is attached."""
    notification_opt_out: bool
    schema_export: bool
    approval_resolve: bool


class InitializeResponse(Part):
    user_agent: str
    protocol_version: str
    capabilities: ServerCapabilities


# Threads, turns, items.


class AppThread(Part):
    thread_id: str
    agent_key: str
    cwd: str | None
    created_at: Seconds
    updated_at: Seconds
    archived_at: Seconds | None
    status: ThreadStatus
    metadata: Json = Field(default_factory=dict)


class CheckpointSummary(Part):
    """`status` is the run's own (an AgentStatus), not that of the turn."""

    key: str
    resume_attempt: int
    cycle_index: int
    status: str
    terminal_acknowledged: bool


class InterruptionSummary(Part):
    reason: str
    operation_id: str
    operation_kind: Literal["model", "tool"]
    cycle_index: int
    risk: str
    idempotency_support: str | None = None


class Ending(Part):
    """How a turn ended, without what it used."""

    final_output: Any = None
    completion_reason: str | None = None
    completion_tool_name: str | None = None
    partial_output: str | None = None
    error: str | None = None
    checkpoint: CheckpointSummary | None = None
    interruption: InterruptionSummary | None = None


class Outcome(Ending):
    """How a turn ended, and what it used."""

    token_usage: Json | None = None
    budget_usage: Json | None = None
    budget_exhaustion: Json | None = None


class AppTurn(Part):
    turn_id: str
    thread_id: str
    run_id: str | None
    status: TurnStatus
    started_at: Seconds
    completed_at: Seconds | None
    input: list[Json]
    result: Outcome | None = None


class AppItem(Part):
    """`seq` is the thread's number of the item (additive: a v1 client may ignore it); what is not kept has none."""

    item_id: str
    thread_id: str
    turn_id: str
    type: ItemType
    status: ItemStatus
    payload: Json
    created_at: Seconds
    updated_at: Seconds
    seq: int | None = None


class AgentMessageDelta(AppItem):
    delta: str


class ToolCallDelta(AppItem):
    delta: Any


class ThreadStartParams(Part):
    agent_key: Text = "default"
    cwd: str | None = None
    metadata: Json | None = None


class ThreadStartResponse(Part):
    thread_id: str
    agent_key: str
    cwd: str | None
    status: ThreadStatus


class ThreadIdParams(Part):
    thread_id: Id


class ThreadResumeParams(Part):
    """Additive: `afterSeq`, `limit` (items, and turns, of one page)."""

    thread_id: Id
    subscribe: bool = True
    after_seq: Seq | None = None
    limit: Limit | None = None


class ThreadReadParams(Part):
    thread_id: Id
    after_item_id: Id | None = None
    after_seq: Seq | None = None
    limit: Limit | None = None


class ThreadReadResponse(Part):
    """Additive: `lastSeq`, the number of the thread's last change; `nextAfterSeq`, where the next page begins, if there
    is one."""

    thread: AppThread
    turns: list[AppTurn]
    items: list[AppItem]
    last_seq: int
    next_after_seq: int | None = None


class ThreadResumeResponse(ThreadReadResponse):
    pass


class ThreadListParams(Part):
    include_archived: bool = False
    archived: bool | None = None
    offset: Count | None = None
    limit: Limit | None = None


class ThreadListResponse(Part):
    threads: list[AppThread]
    next_offset: int | None = None


class ThreadArchived(Part):
    thread_id: str
    archived: Literal[True]


class ThreadUnsubscribeResponse(Part):
    thread_id: str
    subscribed: Literal[False]
    closed: bool


class ThreadStatusChanged(Part):
    thread_id: str
    status: ThreadStatus


Input = Annotated[list[Json], Field(min_length=1)]


class TurnStartParams(Part):
    thread_id: Id
    input: Input
    metadata: Json | None = None


class TurnStartResponse(Part):
    thread_id: str
    turn_id: str
    status: TurnStatus


class TurnResumeParams(Part):
    thread_id: Id
    turn_id: Id
    checkpoint_key: Annotated[str, StringConstraints(min_length=1, max_length=MAX_KEY_BYTES)]


class TurnResumeResponse(Ending):
    thread_id: str
    turn_id: str
    run_id: str
    status: TurnStatus


class TurnInterruptParams(Part):
    thread_id: Id
    expected_turn_id: str | None = None
    reason: str | None = None


class TurnInterruptResponse(Part):
    thread_id: str
    turn_id: str
    cancelled: Literal[True]


class TurnMessageParams(Part):
    thread_id: Id
    expected_turn_id: str | None = None
    input: Input


class TurnQueuedResponse(Part):
    """Additive: `followUpTurnId`, the turn that a follow-up will be."""

    thread_id: str
    turn_id: str
    queued: Literal[True]
    follow_up_turn_id: str | None = None


class TurnStarted(Part):
    thread_id: str
    turn_id: str
    run_id: str | None = None
    status: TurnStatus | None = None


class TurnCompleted(Outcome):
    thread_id: str
    turn_id: str
    run_id: str | None = None
    status: TurnStatus


# Approvals, models, schema.


class ApprovalDecision(Part):
    """The answer to `approval/request`."""

    decision: Decision
    reason: str | None = None
    metadata: Json | None = None


class ApprovalRequestParams(Part):
    request_id: str
    thread_id: str
    turn_id: str
    tool_call_id: str
    tool_name: str
    preview: str
    arguments: Json


class ApprovalResolveParams(ApprovalDecision):
    thread_id: str
    turn_id: str
    request_id: str


class Nothing(Part):
    pass


class ModelListParams(Part):
    agent_key: str | None = None
    provider: str | None = None


class ModelInfo(Part):
    id: str
    provider: str | None = None
    display_name: str | None = None
    context_length: int | None = None
    supports_tools: bool
    metadata: Json | None = None


class ModelListResponse(Part):
    models: list[ModelInfo]


class SchemaExportResponse(Part):
    json_schema: dict[str, str]
    """Name (without suffix) -> JSON Schema text."""
    typescript: dict[str, str]
    """File name -> TypeScript text."""


class Warned(Part):
    message: str
    code: str | None = None


class Method(NamedTuple):
    """What a request takes and gives. Requests of one lane are answered in order; those of a thread have its own. Those
    of the lane "connection" are answered before the next line is read."""

    params: type[Part]
    result: type[Part]
    lane: str = "thread"
    bare: bool = False
    """`params` may be left out."""


METHODS: dict[str, Method] = {
    "initialize": Method(InitializeParams, InitializeResponse, "connection"),
    "thread/start": Method(ThreadStartParams, ThreadStartResponse, "connection", bare=True),
    "thread/resume": Method(ThreadResumeParams, ThreadResumeResponse),
    "thread/read": Method(ThreadReadParams, ThreadReadResponse),
    "thread/list": Method(ThreadListParams, ThreadListResponse, "threads", bare=True),
    "thread/archive": Method(ThreadIdParams, ThreadArchived),
    "thread/unsubscribe": Method(ThreadIdParams, ThreadUnsubscribeResponse),
    "turn/start": Method(TurnStartParams, TurnStartResponse),
    "turn/resume": Method(TurnResumeParams, TurnResumeResponse),
    "turn/interrupt": Method(TurnInterruptParams, TurnInterruptResponse),
    "turn/steer": Method(TurnMessageParams, TurnQueuedResponse),
    "turn/followUp": Method(TurnMessageParams, TurnQueuedResponse),
    "approval/resolve": Method(ApprovalResolveParams, Nothing),
    "model/list": Method(ModelListParams, ModelListResponse, "models", bare=True),
    "schema/export": Method(Nothing, SchemaExportResponse, "models", bare=True),
}
NOTIFICATIONS: dict[str, type[Part]] = {
    "thread/started": ThreadStartResponse,
    "thread/archived": ThreadArchived,
    "thread/closed": ThreadIdParams,
    "thread/status/changed": ThreadStatusChanged,
    "turn/started": TurnStarted,
    "turn/completed": TurnCompleted,
    "item/started": AppItem,
    "item/completed": AppItem,
    "item/agentMessage/delta": AgentMessageDelta,
    "item/toolCall/delta": ToolCallDelta,
    "approval/requested": ApprovalRequestParams,
    "approval/resolved": ApprovalResolveParams,
    "error/warning": Warned,
}
SERVER_REQUESTS: dict[str, type[Part]] = {"approval/request": ApprovalRequestParams}
