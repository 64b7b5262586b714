"""`task_finish` and `ask_user`: the model says that it is done, or that it cannot go on alone."""

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
    description=(
        "Finish the task. Call it once, when the work is done and checked. `message` is the answer the user reads: "
        "what was done and what came of it. `exposed_files` lists the files of the workspace the user should look "
        "at. While todos are open the call is refused; complete them, or pass require_all_todos_completed=false if "
        "they no longer matter."
    ),
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


def _ask(context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
    asked: dict[str, Any] = {
        "question": arguments["question"].strip() or "Need user input",
        "selection_type": arguments.get("selection_type", "single"),
        "allow_custom_options": arguments.get("allow_custom_options", False),
    }
    if options := list(dict.fromkeys(filter(None, (option.strip() for option in arguments.get("options", []))))):
        asked["options"] = options
    return ToolExecutionResult(
        tool_call_id=context.tool_call_id, content=json_text(asked), directive=ToolDirective.WAIT_USER, metadata=asked
    )


ask_user = BuiltinTool(
    name="ask_user",
    description=(
        "Ask the user and wait for the answer, which comes as the next message. Use it when something you need is "
        "missing or a decision is the user's to make, not for what you can find out yourself. Put everything you "
        "need to know into one `question`. `options` are answers to choose from, one (`single`) or several "
        "(`multi`) of them by `selection_type`; allow_custom_options=true lets the user write another one. Calls "
        "after it in the same turn are skipped."
    ),
    parameters={
        "type": "object",
        "properties": {
            "question": {"type": "string"},
            "options": {"type": "array", "items": {"type": "string"}},
            "selection_type": {"type": "string", "enum": ["single", "multi"]},
            "allow_custom_options": {"type": "boolean"},
        },
        "required": ["question"],
    },
    handler=_ask,
    tool_metadata=ToolMetadata(ToolSideEffect.NONE, ToolIdempotency.SUPPORTED, terminal=True),
)
