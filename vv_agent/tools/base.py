"""What a tool is: its declarations, what it is called with, and how a call may be made again after a crash."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol, runtime_checkable

from vv_agent.cancellation import CancellationToken
from vv_agent.results import ToolExecutionResult
from vv_agent.tool_metadata import ToolIdempotency, ToolMetadata
from vv_agent.workspace.base import WorkspaceBackend

Arguments = dict[str, Any]
"""The parsed arguments of a call: a JSON object."""

Intent = dict[str, str | None]
"""What a decidable call is about to do: `path`, and the SHA-256 of the file `before` and `after` (None: no file)."""


class ToolExposure(StrEnum):
    """Whether the model is shown a tool. A hidden tool can be called by the host only; the others act alike today."""

    DIRECT = "direct"
    DEFERRED = "deferred"
    DIRECT_MODEL_ONLY = "direct_model_only"
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class SubTaskSpec:
    """One piece of work for another agent; blank requirements are none."""

    description: str
    output_requirements: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubTaskRequest:
    """What `create_sub_task` asks for. `batch` says that the work came as a list, also if it has one entry."""

    agent_id: str
    tasks: tuple[SubTaskSpec, ...]
    batch: bool
    include_main_summary: bool
    exclude_files_pattern: str | None
    wait: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SubTaskQuery:
    """What `sub_task_status` asks for. `message` goes to the only task there is then. Times are in seconds."""

    task_ids: tuple[str, ...]
    detail_level: Literal["basic", "snapshot"]
    message: str | None
    wait_for_response: bool
    wait: bool
    check_interval_seconds: int
    max_wait_seconds: int
    workspace_file_limit: int


class SubTasks(Protocol):
    """The sub-tasks of a run, as the two built-in tools ask for them.

    `agents` are the ids that may be given work. What goes wrong is raised as `ToolError` with the codes of spec/23 and
    spec/26; a pattern that is not portable raises `invalid_exclude_files_pattern` when its filter is made.
    """

    @property
    def agents(self) -> Collection[str]: ...

    def create(self, context: ToolContext, request: SubTaskRequest) -> ToolExecutionResult:
        """Start the work; with `wait`, the result is that of the work."""
        ...

    def status(self, context: ToolContext, query: SubTaskQuery) -> ToolExecutionResult:
        """How the tasks stand."""
        ...

    def delegate(self, context: ToolContext, task: SubTaskSpec, *, summary: bool, wait: bool) -> ToolExecutionResult:
        """Give a task to the agent that the called tool stands for; `summary`: with one of the main task."""
        ...


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """One call of a tool, as its handler sees it.

    `idempotency_key` is the same in every attempt of the call; `attempt` counts from 1. `shared_state` is a copy that
    may be changed: what the call changed is merged into the run's and saved with the result. So is `file_baselines`
    (path -> SHA-256 of a file the model has seen whole).
    `metadata` is the run's, `context` the host's own object. A handler that works for long watches `cancellation`;
    right before an effect it calls `check_claim`, which raises when this worker may not act for the run any more: let
    that pass through.
    """

    run_id: str = ""
    run_key: str | None = None
    agent_name: str = ""
    cycle_index: int = 1
    tool_call_id: str = ""
    tool_name: str = ""
    raw_arguments: str = "{}"
    idempotency_key: str = ""
    attempt: int = 1
    workspace: WorkspaceBackend | None = None
    sub_tasks: SubTasks | None = None
    shared_state: dict[str, Any] = field(default_factory=dict)
    file_baselines: dict[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    context: Any = None
    cancellation: CancellationToken = field(default_factory=CancellationToken)
    check_claim: Callable[[], None] = lambda: None


NeedsApproval = bool | Callable[[ToolContext, Arguments], bool]
IsEnabled = bool | Callable[[Any], bool]


@runtime_checkable
class Tool(Protocol):
    """What the runtime asks of a tool. `FunctionTool` is the usual one; any object with these members serves.

    `timeout_seconds` is None for no limit. `is_enabled` as a callable is asked once, when the run starts, with its
    `vv_agent.RunContext`: a tool that is not enabled is no tool of the run.
    """

    name: str
    description: str
    params_json_schema: dict[str, Any]
    exposure: ToolExposure
    timeout_seconds: float | None
    needs_approval: NeedsApproval
    is_enabled: IsEnabled
    metadata: dict[str, Any]
    tool_metadata: ToolMetadata | None

    def to_openai_schema(self) -> dict[str, Any]:
        """The function schema as the model sees it."""
        ...

    def invoke(self, context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
        """Carry out one call. A failure of the tool is a result with status ERROR; only the end of the worker's claim
        is raised."""
        ...


@runtime_checkable
class Decidable(Protocol):
    """A tool whose effect is one file, so that a crashed call can be judged by looking at the file.

    The runtime stores what `intend` gave together with the durable `started` of the call. After a crash it calls
    `examine` before anything else: `done` is answered with `replayed`, `not_done` is invoked again, and `ambiguous`
    (the file is neither as before nor as after) needs a decision.
    """

    def intend(self, context: ToolContext, arguments: Arguments) -> Intent:
        """The images of the file before and after the call; changes nothing, raises nothing."""
        ...

    def examine(
        self, context: ToolContext, arguments: Arguments, intent: Intent
    ) -> Literal["done", "not_done", "ambiguous"]:
        """Which of the two images the file has now."""
        ...

    def replayed(self, context: ToolContext, arguments: Arguments, intent: Intent) -> ToolExecutionResult:
        """The result of the call that was found done, with its traces in `context` (the baseline) made up for."""
        ...


class CallSafety(StrEnum):
    """What recovery may do with a call that was started and has no result."""

    REPEATABLE = "repeatable"
    """Call it again with the same key: the tool promises one effect."""

    DECIDABLE = "decidable"
    """Look whether it was done (`Decidable`)."""

    UNSAFE = "unsafe"
    """Nobody can tell: a person or a reconciliation provider decides."""


def safety_of(tool: Tool) -> CallSafety:
    """The class of a tool's calls: `supported` idempotency comes first, then `Decidable`."""
    declared = tool.tool_metadata
    if declared is not None and declared.idempotency is ToolIdempotency.SUPPORTED:
        return CallSafety.REPEATABLE
    return CallSafety.DECIDABLE if isinstance(tool, Decidable) else CallSafety.UNSAFE
