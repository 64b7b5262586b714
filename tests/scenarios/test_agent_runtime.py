"""The low-level runtime: a task, a client, a result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fake_openai import FakeOpenAI
from tests.shell import Shell
from vv_agent import (
    AgentRuntime,
    AgentTask,
    NoToolPolicy,
    RuntimeRunControls,
    ToolRegistry,
    build_default_registry,
    function_tool,
)
from vv_agent.config import build_vv_llm_from_local_settings
from vv_agent.errors import ConfigError
from vv_agent.events import RunEvent
from vv_agent.messages import Message
from vv_agent.testing import ScriptedModel, call


@function_tool(idempotency="supported")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def task(**more: object) -> AgentTask:
    fields = {"task_id": "demo", "model": "demo-model", "system_prompt": "Work.", "user_prompt": "Go."}
    return AgentTask(**{**fields, **more})  # type: ignore[arg-type]


def test_a_task_runs_on_a_client(tmp_path: Path) -> None:
    registry = build_default_registry()
    registry.register(add)
    events: list[RunEvent] = []
    model = ScriptedModel([call("add", {"a": 1, "b": 2}), call("task_finish", {"message": "3"})])
    controls = RuntimeRunControls(
        workspace=tmp_path,
        stream=events.append,
        before_cycle_messages=lambda n, _m, _s: [Message("user", f"cycle {n}")],
    )
    result = AgentRuntime(model, tool_registry=registry).run(task(), controls)
    assert (result.status, result.final_answer, len(result.cycles)) == ("completed", "3", 2)
    assert [m.content for m in result.messages if m.role == "user"] == ["Go.", "cycle 1", "cycle 2"]
    assert events[-1].type == "run_completed"


def test_the_limits_of_a_task(tmp_path: Path) -> None:
    controls = RuntimeRunControls(workspace=tmp_path)
    result = AgentRuntime(ScriptedModel(["hm"] * 9)).run(task(), controls)
    assert (result.status, len(result.cycles)) == ("max_cycles", 8)
    result = AgentRuntime(ScriptedModel(["hm"])).run(task(no_tool_policy=NoToolPolicy.WAIT_USER), controls)
    assert (result.status, result.wait_reason) == ("wait_user", "hm")
    seen: list[list[str]] = []

    def tools(request: object) -> str:
        seen.append([tool["function"]["name"] for tool in request.tools])  # type: ignore[attr-defined]
        return "Done."

    registry = ToolRegistry()
    registry.register(add)
    runtime = AgentRuntime(ScriptedModel([tools]), tool_registry=registry)
    finish = task(no_tool_policy=NoToolPolicy.FINISH, initial_shared_state={"n": 1})
    assert runtime.run(finish, controls).shared_state == {"n": 1}
    runtime.run(task(no_tool_policy=NoToolPolicy.FINISH, exclude_tools=["add"]), controls)
    assert seen == [["add"], []]


def test_the_client_of_a_settings_file(tmp_path: Path) -> None:
    with FakeOpenAI() as server:
        Shell(tmp_path).write_settings(server.url)
        llm, resolved = build_vv_llm_from_local_settings(tmp_path / "local_settings.json", "local", "stream")
        wanted = task(model=resolved.model_id, no_tool_policy=NoToolPolicy.FINISH)
        result = AgentRuntime(llm).run(wanted, RuntimeRunControls(workspace=tmp_path))
        assert result.status == "completed"
        assert json.loads(json.dumps(server.requests[0].body))["model"] == resolved.model_id
        with pytest.raises(ConfigError, match="the client serves"):
            AgentRuntime(llm).run(task(model="other"), RuntimeRunControls(workspace=tmp_path))
