"""`task_finish`: the model says that it is done."""

from __future__ import annotations

from typing import Any

from vv_agent.errors import ToolError
from vv_agent.results import ToolDirective, ToolExecutionResult
from vv_agent.tool_metadata import ToolIdempotency, ToolMetadata, ToolSideEffect
from vv_agent.tools.base import Arguments, ToolContext
from vv_agent.tools.builtin.base import BuiltinTool
from vv_agent.tools.output import json_text

_DONE = frozenset({"completed", "done", "finished"})


def _finish(context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
    if arguments.get("require_all_todos_completed", True) and (open_titles := _open_todos(context.shared_state)):
        raise ToolError("Some todos are not completed", "todo_incomplete", incomplete_todos=open_titles)
    message = arguments.get("message", "").strip() or "Task completed"
    metadata: dict[str, Any] = {"final_message": message}
    if exposed := [path.strip() for path in arguments.get("exposed_files", []) if path.strip()]:
        metadata["exposed_files"] = exposed
    return ToolExecutionResult(
        tool_call_id=context.tool_call_id,
        content=json_text({"ok": True, "message": message}),
        directive=ToolDirective.FINISH,
        metadata=metadata,
    )


def _open_todos(shared_state: dict[str, Any]) -> list[str]:
    """Titles of the entries of `todo_list` that are not done; what is no object there is passed over."""
    todos = shared_state.get("todo_list")
    entries = [todo for todo in todos if isinstance(todo, dict)] if isinstance(todos, list) else []
    return [str(todo.get("title", "")) for todo in entries if todo.get("status") not in _DONE]


task_finish = BuiltinTool(
    name="task_finish",
    description="Finish the task.",
    parameters={
        "type": "object",
        "properties": {
            "message": {"type": "string"},
            "exposed_files": {"type": "array", "items": {"type": "string"}},
            "require_all_todos_completed": {"type": "boolean"},
        },
        "required": [],
    },
    handler=_finish,
    tool_metadata=ToolMetadata(ToolSideEffect.NONE, ToolIdempotency.SUPPORTED, terminal=True),
)
