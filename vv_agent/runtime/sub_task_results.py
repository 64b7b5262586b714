"""The results of the calls about runs below, in the words of spec/26."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vv_agent.results import AgentStatus, ToolExecutionResult, ToolStatus
from vv_agent.runtime.children import RUNNING
from vv_agent.runtime.sub_runs import SubRun
from vv_agent.tools.base import SubTaskQuery, SubTaskRequest
from vv_agent.tools.output import error_result, json_text

if TYPE_CHECKING:
    from vv_agent.runtime.run import Run

_PREVIEW = 240
"""Characters of a text that a snapshot shows."""


def begun(
    call_id: str, request: SubTaskRequest, begun: list[str | dict[str, Any]], agent: str, *, tool: bool
) -> ToolExecutionResult:
    """The result of a call that does not wait: of each task its id, or the outcome of one that never began."""
    rows = [
        one if isinstance(one, dict) else
        {"task_id": one, "session_id": one, "agent_name": agent, "status": RUNNING,
         "task_description": task.description}
        for one, task in zip(begun, request.tasks, strict=True)
    ]  # fmt: skip
    if tool:
        content: dict[str, Any] = {
            "agent_name": agent, "status": "background_task_started",
            "task_description": request.tasks[0].description, "task_id": rows[0]["task_id"],
        }  # fmt: skip
    elif not request.batch:
        content = {**rows[0], "wait_for_completion": False}
    else:
        ids = [one for one in begun if isinstance(one, str)]
        counts = {"total": len(rows), "accepted": len(ids), "failed": len(rows) - len(ids)}
        numbered = [{**row, "index": index} for index, row in enumerate(rows)]
        content = {"summary": counts, "task_ids": ids, "results": numbered, "wait_for_completion": False}
        if not ids:
            return _none_succeeded(call_id, "None of the sub-tasks could begin.", content)
    return ToolExecutionResult(tool_call_id=call_id, content=json_text(content))


def outcomes(call_id: str, kind: str, outcomes: list[dict[str, Any]]) -> ToolExecutionResult:
    """The result of a call whose work is over."""
    first = outcomes[0]
    good = [one for one in outcomes if one["status"] == AgentStatus.COMPLETED]
    if kind == "tool" and good:
        return ToolExecutionResult(tool_call_id=call_id, content=first["final_answer"] or "")
    if kind == "tool":
        text = first["error"] or first["wait_reason"] or f"The agent ended as {first['status']}."
        return error_result(call_id, text, first["error_code"], {"task_id": first["task_id"]})
    if kind == "single":
        return _enveloped(call_id, first, None if good else first["error_code"])
    counts = {"total": len(outcomes), "completed": len(good), "failed": len(outcomes) - len(good)}
    rows = [{**one, "index": index} for index, one in enumerate(outcomes)]
    content = {"summary": counts, "results": rows, "wait_for_completion": True}
    if not good:
        return _none_succeeded(call_id, "None of the sub-tasks was completed.", content)
    return _enveloped(call_id, content, None)


def _none_succeeded(call_id: str, text: str, content: Mapping[str, Any]) -> ToolExecutionResult:
    return error_result(call_id, text, "create_sub_task_batch_failed", {"details": content})


def _enveloped(call_id: str, content: Mapping[str, Any], code: str | None) -> ToolExecutionResult:
    return ToolExecutionResult(
        tool_call_id=call_id, content=json_text(content), error_code=code,
        status_code=ToolStatus.SUCCESS if code is None else ToolStatus.ERROR,
        metadata=None if code is None else {"error_code": code},
    )  # fmt: skip


def standing(
    run: Run, call_id: str, query: SubTaskQuery, interaction: Any, *, exceeded: bool = False
) -> ToolExecutionResult:
    """How tasks stand."""
    rows = [_row(run, name, query) for name in query.task_ids]
    running = [row["task_id"] for row in rows if row["status"] == RUNNING]
    content: dict[str, Any] = {
        "tasks": rows, "detail_level": query.detail_level,
        "suggested_next_check_after_seconds": query.check_interval_seconds,
    }  # fmt: skip
    if running:
        content["running_task_ids"] = running
    if interaction is not None:
        content["interaction"] = interaction
    if query.wait:
        text = "Some sub-tasks are still running." if running else "All sub-tasks are over."
        content |= {
            "wait_for_completion": True, "wait_exceeded": exceeded, "max_wait_seconds": query.max_wait_seconds,
            "message": text,
        }  # fmt: skip
    return ToolExecutionResult(tool_call_id=call_id, content=json_text(content))


def _row(run: Run, name: str, query: SubTaskQuery) -> dict[str, Any]:
    task = run.children.tasks.get(name)
    child = SubRun(run.engine.store, task["key"]) if task is not None else None
    if task is None or child is None or (not child.exists and not _unsaved(run, task)):
        return {"task_id": name, "status": "missing", "error": f"Sub-task {name} not found."}
    row = {"task_id": name, "session_id": name, "agent_name": task["agent"], "status": task["status"]}
    if not child.exists:
        return row
    parent = child.body.parent or {}
    row |= {"task_description": child.task, "parent_run_id": parent["run_id"], "parent_tool_call_id": parent["call_id"]}
    if task["status"] != RUNNING:
        outcome = child.outcome()
        row |= {key: value for key, value in outcome.items() if value is not None and key not in (*row, "resolved")}
        if outcome["status"] == AgentStatus.WAIT_USER:
            row.pop("error_code", None)
    if query.detail_level == "snapshot":
        row["snapshot"] = _snapshot(run, child, query.workspace_file_limit)
    return row


def _unsaved(run: Run, task: Mapping[str, Any]) -> bool:
    return any(new.key == task["key"] for new in run.children.new)


def _snapshot(run: Run, child: SubRun, limit: int) -> dict[str, Any]:
    turns = child.transcript.turns
    latest = turns.get(max(turns, default=0))
    program = run.program
    files = program.workspace.list_files(".", "**/*") if program.workspace is not None else []
    found: dict[str, Any] = {
        "current_cycle_index": child.body.index(child.head.cycle), "updated_at": child.head.updated_at / 1000,
        "workspace_files": files[:limit], "workspace_file_count": len(files),
        "workspace_files_truncated": len(files) > limit, "task_title": _preview(child.task),
    }  # fmt: skip
    if latest is not None:
        found["latest_cycle"] = {
            "cycle_index": child.body.index(latest.cycle), "assistant_message": _preview(latest.message.content),
        }  # fmt: skip
        if latest.calls:
            found["latest_tool_call"] = {
                "name": latest.calls[-1].name, "arguments": _preview(latest.calls[-1].arguments),
            }  # fmt: skip
    return found


def _preview(text: str) -> str:
    return text if len(text) <= _PREVIEW else text[:_PREVIEW] + "..."
