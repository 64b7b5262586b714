"""What a model asks and writes down: ask_user, todo_write, compress_memory, with a table of wrong arguments each."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.runs import Host, asks
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.llm.base import ModelResponse
from vv_agent.messages import ToolCall
from vv_agent.results import ToolExecutionResult
from vv_agent.tools.base import CallSafety, ToolContext, safety_of
from vv_agent.tools.builtin import build_default_registry
from vv_agent.tools.builtin.control import ask_user
from vv_agent.tools.builtin.notes import compress_memory, todo_write

REGISTRY = build_default_registry()
TODO = {"title": "write", "status": "pending", "priority": "low"}


@pytest.fixture
def context() -> ToolContext:
    return ToolContext(tool_call_id="c", cycle_index=3)


def run(context: ToolContext, name: str, **arguments: Any) -> ToolExecutionResult:
    return REGISTRY.execute(ToolCall("c", name, json.dumps(arguments)), context)


def content(result: ToolExecutionResult) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(result.content)
    return loaded


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("task_finish", {"message": 1}, "invalid_tool_arguments"),
        ("task_finish", {"exposed_files": "a"}, "invalid_tool_arguments"),
        ("task_finish", {"done": True}, "invalid_tool_arguments"),
        ("ask_user", {}, "invalid_tool_arguments"),
        ("ask_user", {"question": None}, "invalid_tool_arguments"),
        ("ask_user", {"question": "?", "options": "a"}, "invalid_tool_arguments"),
        ("ask_user", {"question": "?", "options": [1]}, "invalid_tool_arguments"),
        ("ask_user", {"question": "?", "selection_type": "many"}, "invalid_tool_arguments"),
        ("ask_user", {"question": "?", "allow_custom_options": "yes"}, "invalid_tool_arguments"),
        ("todo_write", {}, "invalid_tool_arguments"),
        ("todo_write", {"todos": {}}, "invalid_tool_arguments"),
        ("todo_write", {"todos": ["x"]}, "invalid_tool_arguments"),
        ("todo_write", {"todos": [{**TODO, "status": "open"}]}, "invalid_tool_arguments"),
        ("todo_write", {"todos": [{**TODO, "priority": "urgent"}]}, "invalid_tool_arguments"),
        ("todo_write", {"todos": [{**TODO, "id": 1}]}, "invalid_tool_arguments"),
        ("todo_write", {"todos": [{**TODO, "note": "x"}]}, "invalid_tool_arguments"),
        ("todo_write", {"todos": [{**TODO, "title": " \t"}]}, "todo_title_required"),
        ("todo_write", {"todos": [{**TODO, "status": "in_progress"}] * 2}, "multiple_in_progress_todos"),
        ("todo_write", {"todos": [{**TODO, "id": "a"}] * 2}, "invalid_todo_item"),
        ("compress_memory", {}, "invalid_tool_arguments"),
        ("compress_memory", {"core_information": ["x"]}, "invalid_tool_arguments"),
        ("compress_memory", {"core_information": " \n"}, "core_information_required"),
    ],
)
def test_wrong_arguments_have_their_code(context: ToolContext, tool: str, arguments: Any, code: str) -> None:
    before = dict(context.shared_state)
    result = run(context, tool, **arguments)
    assert (result.status_code, result.directive, result.error_code) == ("ERROR", "continue", code)
    assert content(result)["error_code"] == code
    assert (result.metadata or {})["error_code"] == code
    assert context.shared_state == before


@pytest.mark.parametrize(
    ("todos", "code"),
    [
        (None, "invalid_todos_payload"),
        ("x", "invalid_todos_payload"),
        (["x"], "invalid_todo_item"),
        ([{**TODO, "id": 1}], "invalid_todo_item"),
        ([{"status": "pending", "priority": "low"}], "todo_title_required"),
        ([{**TODO, "status": "open"}], "invalid_todo_status"),
        ([{"title": "x", "status": "pending"}], "invalid_todo_priority"),
    ],
)
def test_a_host_that_calls_the_tool_itself_is_told_the_same_way(context: ToolContext, todos: Any, code: str) -> None:
    assert todo_write.invoke(context, {"todos": todos}).error_code == code


def test_they_can_be_repeated() -> None:
    assert {safety_of(tool) for tool in (ask_user, todo_write, compress_memory)} == {CallSafety.REPEATABLE}


def test_a_question_with_options(context: ToolContext) -> None:
    result = run(
        context, "ask_user", question=" Which? ", options=[" a ", "b", "a", " "], selection_type="multi", allow_custom_options=True,
    )  # fmt: skip
    asked = {"question": "Which?", "selection_type": "multi", "allow_custom_options": True, "options": ["a", "b"]}
    assert (content(result), result.metadata, result.directive) == (asked, asked, "wait_user")
    assert "options" not in content(run(context, "ask_user", question="?", options=[" "]))


def test_a_list_of_todos_replaces_the_one_before(context: ToolContext) -> None:
    first = content(run(context, "todo_write", todos=[TODO, {**TODO, "id": "x", "title": " read "}]))
    assert (first["action"], first["count"]) == ("write", 2)
    made, named = first["todos"]
    assert re.fullmatch(r"[0-9a-f]{8}", made["id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\+00:00", made["created_at"])
    assert list(named) == ["id", "title", "status", "priority", "created_at", "updated_at"]
    assert (named["id"], named["title"]) == ("x", "read")
    done = {**TODO, "id": made["id"], "status": "completed"}
    second = content(run(context, "todo_write", todos=[done]))["todos"]
    assert second == context.shared_state["todo_list"]
    assert [(item["status"], item["created_at"]) for item in second] == [("completed", made["created_at"])]
    assert second[0]["updated_at"] >= made["updated_at"]
    assert content(run(context, "todo_write", todos=[]))["todos"] == context.shared_state["todo_list"] == []


def test_notes_are_left_where_memory_looks(context: ToolContext) -> None:
    context.shared_state["memory_notes"] = "garbage"
    run(context, "compress_memory", core_information=" one ")
    result = run(context, "compress_memory", core_information="two")
    assert (content(result), result.metadata) == ({"ok": True, "saved_notes": 2}, {"saved_notes": 2})
    assert context.shared_state["memory_notes"] == [
        {"cycle_index": 3, "core_information": "one"},
        {"cycle_index": 3, "core_information": "two"},
    ]


def test_notes_of_one_batch_are_all_kept(tmp_path: Path) -> None:
    calls = tuple(ToolCall(f"c{n}", "compress_memory", f'{{"core_information": "{n}"}}') for n in range(4))
    outcome = Host(MemoryStore(), tmp_path).run([ModelResponse("", calls, finish_reason="tool_calls"), "done"])
    notes = outcome.ok.raw_result.shared_state["memory_notes"]
    assert [note["core_information"] for note in notes] == ["0", "1", "2", "3"]


def test_open_todos_of_a_run_keep_it_from_finishing(tmp_path: Path) -> None:
    steps = [
        asks("todo_write", arguments={"todos": [TODO]}),
        asks("task_finish", call_id="c2"),
        asks("task_finish", call_id="c3", arguments={"require_all_todos_completed": False, "message": "so be it"}),
    ]
    outcome = Host(MemoryStore(), tmp_path).run(steps)
    refused = outcome.ok.cycles[1].tool_results[0]
    assert (refused.error_code, content(refused)["incomplete_todos"]) == ("todo_incomplete", ["write"])
    assert outcome.ok.final_output == "so be it"
