"""`todo_write` and `compress_memory`: what a model writes down for itself, in the run's shared state."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any

from vv_agent.errors import ToolError
from vv_agent.results import ToolExecutionResult
from vv_agent.tool_metadata import ToolIdempotency, ToolMetadata, ToolSideEffect
from vv_agent.tools.base import Arguments, ToolContext
from vv_agent.tools.builtin.base import BuiltinTool
from vv_agent.tools.output import json_text

TODOS, NOTES = "todo_list", "memory_notes"
"""Keys of the shared state. A note is `{cycle_index, core_information}`; what compacts messages reads them there."""
_STATUSES = ("pending", "in_progress", "completed")
_PRIORITIES = ("low", "medium", "high")


def _write(context: ToolContext, arguments: Arguments) -> dict[str, Any]:
    given = arguments.get("todos")
    if not isinstance(given, list):
        raise ToolError("`todos` must be a list", "invalid_todos_payload")
    known = {todo["id"]: todo for todo in _list(context, TODOS) if isinstance(todo, dict) and "id" in todo}
    now = datetime.now(UTC).isoformat()
    todos: list[dict[str, Any]] = []
    for number, item in enumerate(given, 1):
        todo = _todo(item, f"todo {number}")
        todo_id = todo["id"] or secrets.token_hex(4)
        if any(other["id"] == todo_id for other in todos):
            raise ToolError(f"todo {number}: another one has the id {todo_id!r} too", "invalid_todo_item")
        created = known.get(todo_id, {}).get("created_at", now)
        todos.append({**todo, "id": todo_id, "created_at": created, "updated_at": now})
    if sum(todo["status"] == "in_progress" for todo in todos) > 1:
        raise ToolError("Only one todo can be in_progress at a time", "multiple_in_progress_todos")
    context.shared_state[TODOS] = todos
    return {"action": "write", "todos": todos, "count": len(todos), "message": f"The list now has {len(todos)} todos."}


def _todo(item: Any, which: str) -> dict[str, Any]:
    """One entry of the list; the schema has seen to most of it where the runtime called."""
    if not isinstance(item, dict) or not isinstance(item.get("id", ""), str):
        raise ToolError(f"{which} must be an object with title, status and priority", "invalid_todo_item")
    title, status, priority = item.get("title"), item.get("status"), item.get("priority")
    if not isinstance(title, str) or not title.strip():
        raise ToolError(f"{which} needs a title", "todo_title_required")
    if status not in _STATUSES:
        raise ToolError(f"{which}: status must be one of {', '.join(_STATUSES)}", "invalid_todo_status")
    if priority not in _PRIORITIES:
        raise ToolError(f"{which}: priority must be one of {', '.join(_PRIORITIES)}", "invalid_todo_priority")
    return {"id": item.get("id", "").strip(), "title": title.strip(), "status": status, "priority": priority}


def _compress(context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
    text = arguments["core_information"].strip()
    if not text:
        raise ToolError("`core_information` is required", "core_information_required")
    notes = [*_list(context, NOTES), {"cycle_index": context.cycle_index, "core_information": text}]
    context.shared_state[NOTES] = notes
    content = json_text({"ok": True, "saved_notes": len(notes)})
    return ToolExecutionResult(
        tool_call_id=context.tool_call_id, content=content, metadata={"saved_notes": len(notes)}
    )  # fmt: skip


def _list(context: ToolContext, name: str) -> list[Any]:
    value = context.shared_state.get(name)
    return value if isinstance(value, list) else []


todo_write = BuiltinTool(
    name="todo_write",
    description=(
        "Keep the list of steps for a task that takes several. Each call replaces the whole list: send every todo, "
        "also those that are done. A todo has a `title`, a `status` (pending, in_progress, completed) and a "
        "`priority` (low, medium, high); keep its `id` to change it, leave the id out for a new one. At most one "
        "todo is in_progress. Mark a todo as completed as soon as it is."
    ),
    parameters={
        "type": "object",
        "properties": {
            "todos": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string"},
                        "title": {"type": "string"},
                        "status": {"type": "string", "enum": list(_STATUSES)},
                        "priority": {"type": "string", "enum": list(_PRIORITIES)},
                    },
                    "required": ["title", "status", "priority"],
                },
            }
        },
        "required": ["todos"],
    },
    handler=_write,
    tool_metadata=ToolMetadata(ToolSideEffect.NONE, ToolIdempotency.SUPPORTED),
)

compress_memory = BuiltinTool(
    name="compress_memory",
    description=(
        "Write down what must not be forgotten: decisions, facts, names, paths and what is left to do. Older "
        "messages of a long conversation may be summarised; what you put into `core_information` is kept apart "
        "from them. Use it when much has been found out, or when a warning says that the context fills up. Write "
        "so that it can be understood without the rest."
    ),
    parameters={
        "type": "object",
        "properties": {"core_information": {"type": "string"}},
        "required": ["core_information"],
    },
    handler=_compress,
    tool_metadata=ToolMetadata(ToolSideEffect.NONE, ToolIdempotency.SUPPORTED),
)
