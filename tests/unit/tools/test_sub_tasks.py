"""create_sub_task and sub_task_status: what reaches the run's sub-tasks, and what does not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from vv_agent.errors import ToolError
from vv_agent.messages import ToolCall
from vv_agent.results import ToolExecutionResult
from vv_agent.tools.base import CallSafety, SubTaskQuery, SubTaskRequest, SubTaskSpec, ToolContext, safety_of
from vv_agent.tools.builtin import build_default_registry, create_sub_task, sub_task_status, withheld

REGISTRY = build_default_registry()


@dataclass
class Recorder:
    """Sub-tasks that only note what is asked of them."""

    agents: tuple[str, ...] = ("researcher",)
    asked: list[Any] = field(default_factory=list)

    def create(self, context: ToolContext, request: SubTaskRequest) -> ToolExecutionResult:
        self.asked.append(request)
        if request.agent_id == "broken":
            raise ToolError("It could not be started", "sub_task_submit_failed")
        return ToolExecutionResult(tool_call_id=context.tool_call_id, content='{"status": "completed"}')

    def status(self, context: ToolContext, query: SubTaskQuery) -> ToolExecutionResult:
        self.asked.append(query)
        return ToolExecutionResult(tool_call_id=context.tool_call_id, content='{"tasks": []}')


def run(manager: Any, name: str, arguments: Any) -> ToolExecutionResult:
    return REGISTRY.execute(ToolCall("c", name, json.dumps(arguments)), ToolContext(sub_tasks=manager))


WORK = {"agent_id": "researcher", "task_description": "Look."}


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("create_sub_task", {}, "invalid_tool_arguments"),
        ("create_sub_task", {"agent_id": 1}, "invalid_tool_arguments"),
        ("create_sub_task", {**WORK, "tasks": []}, "invalid_tool_arguments"),
        ("create_sub_task", {"agent_id": "researcher", "tasks": [{}]}, "invalid_tool_arguments"),
        ("create_sub_task", {"agent_id": "researcher", "tasks": ["x"]}, "invalid_tool_arguments"),
        ("create_sub_task", {**WORK, "wait_for_completion": "no"}, "invalid_tool_arguments"),
        ("create_sub_task", {**WORK, "surplus": 1}, "invalid_tool_arguments"),
        ("create_sub_task", {**WORK, "agent_id": "\x1c \x1f"}, "agent_id_required"),
        ("create_sub_task", {"agent_id": "researcher"}, "sub_task_payload_missing"),
        ("create_sub_task", {"agent_id": "researcher", "task_description": " "}, "sub_task_payload_missing"),
        ("create_sub_task", {**WORK, "tasks": [{"task_description": "x"}]}, "sub_task_payload_conflict"),
        ("create_sub_task", {"agent_id": "researcher", "tasks": [{"task_description": " "}]}, "invalid_tasks_payload"),
        ("create_sub_task", {**WORK, "agent_id": "broken"}, "sub_task_submit_failed"),
        ("sub_task_status", {}, "invalid_tool_arguments"),
        ("sub_task_status", {"task_ids": []}, "invalid_tool_arguments"),
        ("sub_task_status", {"task_ids": "a"}, "invalid_tool_arguments"),
        ("sub_task_status", {"task_ids": ["a"], "detail_level": "all"}, "invalid_tool_arguments"),
        ("sub_task_status", {"task_ids": ["a"], "check_interval_seconds": 29}, "invalid_tool_arguments"),
        ("sub_task_status", {"task_ids": ["a"], "check_interval_seconds": 1801}, "invalid_tool_arguments"),
        ("sub_task_status", {"task_ids": ["a"], "max_wait_seconds": 59}, "invalid_tool_arguments"),
        ("sub_task_status", {"task_ids": ["a"], "max_wait_seconds": 86_401}, "invalid_tool_arguments"),
        ("sub_task_status", {"task_ids": ["a"], "workspace_file_limit": 0}, "invalid_tool_arguments"),
        ("sub_task_status", {"task_ids": ["a"], "workspace_file_limit": 101}, "invalid_tool_arguments"),
        ("sub_task_status", {"task_ids": ["a", " \x1d"]}, "invalid_task_ids"),
        ("sub_task_status", {"task_ids": ["a"], "message": " "}, "invalid_sub_task_message"),
        ("sub_task_status", {"task_ids": ["a", "b"], "message": "go on"}, "invalid_sub_task_message"),
    ],
)
def test_wrong_arguments_have_their_code(tool: str, arguments: Any, code: str) -> None:
    manager = Recorder()
    result = run(manager, tool, arguments)
    assert (result.status_code, result.error_code) == ("ERROR", code)
    assert json.loads(result.content)["error_code"] == code
    assert (result.metadata or {})["error_code"] == code
    assert len(manager.asked) == (arguments.get("agent_id") == "broken")


def test_a_run_without_sub_agents_says_so_before_anything_else() -> None:
    for manager in (None, Recorder(agents=())):
        assert run(manager, "create_sub_task", {"agent_id": " "}).error_code == "sub_agents_not_enabled"
    assert run(None, "sub_task_status", {"task_ids": [" "]}).error_code == "sub_task_manager_unavailable"
    direct = sub_task_status.invoke(ToolContext(sub_tasks=Recorder()), {"task_ids": ["a"], "detail_level": "all"})
    assert direct.error_code == "invalid_detail_level"


def test_what_is_asked_for_arrives() -> None:
    manager = Recorder()
    run(manager, "create_sub_task", {**WORK, "agent_id": " researcher\x1e", "output_requirements": " short "})
    tasks = [{"task_description": "a", "output_requirements": "b"}, {"task_description": "c"}]
    run(manager, "create_sub_task", {
        "agent_id": "researcher", "tasks": tasks, "output_requirements": "for the single form only",
        "exclude_files_pattern": "^logs/", "include_main_summary": True, "wait_for_completion": False,
    })  # fmt: skip
    run(manager, "sub_task_status", {"task_ids": ["b", " a", "b"]})
    run(manager, "sub_task_status", {
        "task_ids": ["a"], "detail_level": "snapshot", "message": " on ", "wait_for_response": True,
        "wait_for_completion": True, "check_interval_seconds": 30, "max_wait_seconds": 60, "workspace_file_limit": 5,
    })  # fmt: skip
    assert manager.asked == [
        SubTaskRequest(
            agent_id="researcher", tasks=(SubTaskSpec("Look.", "short"),), batch=False, include_main_summary=False,
            exclude_files_pattern=None, wait=True,
        ),
        SubTaskRequest(
            agent_id="researcher", tasks=(SubTaskSpec("a", "b"), SubTaskSpec("c")), batch=True,
            include_main_summary=True, exclude_files_pattern="^logs/", wait=False,
        ),
        SubTaskQuery(
            task_ids=("b", "a"), detail_level="basic", message=None, wait_for_response=False, wait=False,
            check_interval_seconds=300, max_wait_seconds=3600, workspace_file_limit=20,
        ),
        SubTaskQuery(
            task_ids=("a",), detail_level="snapshot", message="on", wait_for_response=True, wait=True,
            check_interval_seconds=30, max_wait_seconds=60, workspace_file_limit=5,
        ),
    ]  # fmt: skip


def test_they_can_be_repeated() -> None:
    assert {safety_of(tool) for tool in (create_sub_task, sub_task_status)} == {CallSafety.REPEATABLE}


def test_what_an_agent_is_not_offered() -> None:
    shell, work = {"bash", "check_background_command"}, {"create_sub_task", "sub_task_status"}
    assert withheld() == shell | work | {"read_image"}
    assert withheld(agent_type="computer") == work | {"read_image"}
    assert withheld(agent_type="computer", sub_agents=True, multimodal=True) == frozenset()
