"""`create_sub_task` and `sub_task_status`: work given to other agents. What carries it out is the run's `SubTasks`."""

from __future__ import annotations

from typing import Any

from vv_agent.agent import trimmed
from vv_agent.errors import ToolError
from vv_agent.results import ToolExecutionResult
from vv_agent.tool_metadata import ToolIdempotency, ToolMetadata, ToolSideEffect
from vv_agent.tools.base import Arguments, SubTaskQuery, SubTaskRequest, SubTasks, SubTaskSpec, ToolContext
from vv_agent.tools.builtin.base import BuiltinTool

DEFAULT_INTERVAL = 300
MAX_WAIT = 3600
"""Seconds: when to look again if nothing is said, and the longest wait."""
FILE_LIMIT = 20


def _create(context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
    manager = context.sub_tasks
    if manager is None or not manager.agents:
        raise ToolError("Sub-agents are not enabled for this task", "sub_agents_not_enabled")
    agent_id = trimmed(arguments["agent_id"])
    if not agent_id:
        raise ToolError("`agent_id` is required", "agent_id_required")
    request = SubTaskRequest(
        agent_id=agent_id,
        tasks=_tasks(arguments),
        batch="tasks" in arguments,
        include_main_summary=arguments.get("include_main_summary", False),
        exclude_files_pattern=trimmed(arguments.get("exclude_files_pattern", "")) or None,
        wait=arguments.get("wait_for_completion", True),
    )
    return manager.create(context, request)


def _tasks(arguments: Arguments) -> tuple[SubTaskSpec, ...]:
    single, batch = trimmed(arguments.get("task_description", "")), arguments.get("tasks")
    if single and batch is not None:
        raise ToolError("Provide either `task_description` or `tasks`, not both", "sub_task_payload_conflict")
    if single:
        return (SubTaskSpec(single, trimmed(arguments.get("output_requirements", ""))),)
    if batch is None:
        raise ToolError("Provide either `task_description` or `tasks`", "sub_task_payload_missing")
    tasks = tuple(
        SubTaskSpec(trimmed(item["task_description"]), trimmed(item.get("output_requirements", ""))) for item in batch
    )
    if blank := [number for number, task in enumerate(tasks, 1) if not task.description]:
        raise ToolError(f"task {blank[0]} has a blank task_description", "invalid_tasks_payload")
    return tasks


def _status(context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
    manager = _manager(context)
    task_ids = tuple(dict.fromkeys(trimmed(task_id) for task_id in arguments["task_ids"]))
    if not task_ids or "" in task_ids:
        raise ToolError("`task_ids` must name at least one sub-task, and none may be blank", "invalid_task_ids")
    detail_level = arguments.get("detail_level", "basic")
    if detail_level not in ("basic", "snapshot"):
        raise ToolError("`detail_level` must be basic or snapshot", "invalid_detail_level")
    message = arguments.get("message")
    if message is not None and (not trimmed(message) or len(task_ids) != 1):
        raise ToolError("`message` must not be blank, and goes to exactly one sub-task", "invalid_sub_task_message")
    query = SubTaskQuery(
        task_ids=task_ids,
        detail_level=detail_level,
        message=None if message is None else trimmed(message),
        wait_for_response=arguments.get("wait_for_response", False),
        wait=arguments.get("wait_for_completion", False),
        check_interval_seconds=int(arguments.get("check_interval_seconds", DEFAULT_INTERVAL)),
        max_wait_seconds=int(arguments.get("max_wait_seconds") or MAX_WAIT),
        workspace_file_limit=int(arguments.get("workspace_file_limit", FILE_LIMIT)),
    )
    return manager.status(context, query)


def _manager(context: ToolContext) -> SubTasks:
    if context.sub_tasks is None:
        raise ToolError("This run has no sub-tasks to ask about", "sub_task_manager_unavailable")
    return context.sub_tasks


_TASK: dict[str, Any] = {"task_description": {"type": "string"}, "output_requirements": {"type": "string"}}

create_sub_task = BuiltinTool(
    name="create_sub_task",
    description=(
        "Give work to another agent, `agent_id`. It sees nothing of this conversation, so `task_description` must "
        "say all it needs; `output_requirements` says what its answer should look like, and "
        "include_main_summary=true adds a summary of the main task. For several pieces of work at the same time "
        "pass `tasks`, a list of such descriptions, instead. By default the call comes back with the answers; with "
        "wait_for_completion=false it comes back at once with task ids for sub_task_status. "
        "`exclude_files_pattern` is a regular expression for paths the agent should not be shown."
    ),
    parameters={
        "type": "object",
        "properties": {
            "agent_id": {"type": "string"},
            **_TASK,
            "tasks": {
                "type": "array",
                "minItems": 1,
                "items": {"type": "object", "properties": _TASK, "required": ["task_description"]},
            },
            "include_main_summary": {"type": "boolean"},
            "exclude_files_pattern": {"type": "string"},
            "wait_for_completion": {"type": "boolean"},
        },
        "required": ["agent_id"],
    },
    handler=_create,
    tool_metadata=ToolMetadata(ToolSideEffect.NONE, ToolIdempotency.SUPPORTED),
)

sub_task_status = BuiltinTool(
    name="sub_task_status",
    description=(
        "Look at sub-tasks by their ids. With detail_level=snapshot the result also says what each one is doing "
        "and which files it has written (at most `workspace_file_limit`). `message` tells one sub-task something: "
        "one that runs reads it in its next turn, one that is over goes on with it; wait_for_response=true waits "
        "for what it says then. wait_for_completion=true waits until all of them are over, at most "
        "`max_wait_seconds` (60 to 86400, 3600 if not given); otherwise look again after about "
        "`check_interval_seconds`."
    ),
    parameters={
        "type": "object",
        "properties": {
            "task_ids": {"type": "array", "minItems": 1, "items": {"type": "string"}},
            "detail_level": {"type": "string", "enum": ["basic", "snapshot"]},
            "message": {"type": "string"},
            "wait_for_response": {"type": "boolean"},
            "wait_for_completion": {"type": "boolean", "default": False},
            "check_interval_seconds": {
                "type": "integer", "default": DEFAULT_INTERVAL, "minimum": 30, "maximum": 1800,
            },
            "max_wait_seconds": {"type": ["integer", "null"], "default": None, "minimum": 60, "maximum": 86_400},
            "workspace_file_limit": {"type": "integer", "minimum": 1, "maximum": 100},
        },
        "required": ["task_ids"],
    },
    handler=_status,
    tool_metadata=ToolMetadata(ToolSideEffect.NONE, ToolIdempotency.SUPPORTED),
)  # fmt: skip
