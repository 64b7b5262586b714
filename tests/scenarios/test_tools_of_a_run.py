"""Which tools a run has: those of the registry, of the agent, and what decides about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.runs import Host, asks
from vv_agent import ConfigError, RunContext, Runner, ToolRegistry, build_default_registry, function_tool
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.cli.arguments import parse
from vv_agent.cli.task import agent_of
from vv_agent.llm.reference import ResolvedModelConfig
from vv_agent.testing import ScriptedProvider
from vv_agent.tools.function import FunctionTool


@function_tool(idempotency="supported")
def extra(n: int) -> str:
    """Of the registry."""
    return f"extra {n}"


def offered(tmp_path: Path, *tools: Any, **config: Any) -> dict[str, Any]:
    seen: list[Any] = []

    def look(request: Any) -> str:
        seen.append(request)
        return "done"

    outcome = Host(MemoryStore(), tmp_path, tools, checkpoint=None, config=config).run([look])
    assert outcome.ok.status == "completed"
    return {tool["function"]["name"]: tool["function"] for tool in seen[0].tools}


def test_a_registry_of_ones_own_stands_before_the_agents_tools(tmp_path: Path) -> None:
    made: list[ToolRegistry] = []

    def factory() -> ToolRegistry:
        registry = build_default_registry()
        registry.register(extra)
        registry.register_executor(FunctionTool(name="secret", handler=lambda *_: "x"), expose_to_model=False)
        parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        function = {"name": "extra", "description": "Shown instead.", "parameters": parameters}
        registry.register_schema("extra", {"type": "function", "function": function})
        made.append(registry)
        return registry

    @function_tool
    def own() -> str:
        """Of the agent."""
        return "own"

    found = offered(tmp_path, own, tool_registry_factory=factory)
    assert list(found)[-2:] == ["extra", "own"]
    assert found["extra"]["description"] == "Shown instead."
    assert "secret" not in found
    assert len(made) == 1
    outcome = Host(MemoryStore(), tmp_path, config={"tool_registry_factory": factory}).run(
        [asks("extra", arguments={"n": 4}), asks("secret", call_id="c2"), "done"]
    )
    told = [result for cycle in outcome.ok.cycles for result in cycle.tool_results]
    assert (told[0].content, told[1].error_code) == ("extra 4", "tool_not_allowed")


def test_a_factory_that_gives_no_registry_is_refused(tmp_path: Path) -> None:
    outcome = Host(MemoryStore(), tmp_path, config={"tool_registry_factory": lambda: None}).run(["done"])
    assert isinstance(outcome.error, ConfigError)
    assert outcome.error.code == "run_config_invalid"


@pytest.mark.parametrize("wanted", [True, False])
def test_a_tool_is_asked_once_whether_it_is_enabled(wanted: bool, tmp_path: Path) -> None:
    contexts: list[RunContext] = []

    def enabled(context: RunContext) -> bool:
        contexts.append(context)
        return bool(context.context["wanted"])

    @function_tool(is_enabled=enabled)
    def perhaps() -> str:
        """Perhaps."""
        return "yes"

    assert ("perhaps" in offered(tmp_path, perhaps, context={"wanted": wanted})) is wanted
    (context,) = contexts
    assert context.agent_name == "checkpoint-agent"
    assert context.run_id.startswith("run_")


@pytest.mark.parametrize("kind", ["computer", None])
def test_the_command_line_offers_the_shell_to_agents_of_type_computer(kind: str | None, tmp_path: Path) -> None:
    seen: list[Any] = []

    def look(request: Any) -> str:
        seen.extend(tool["function"]["name"] for tool in request.tools)
        return "done"

    task = parse(["--prompt", "x", *(["--agent-type", kind] if kind else [])])
    agent = agent_of(task, ResolvedModelConfig("b", "m", "m", "m"))
    Runner(model_provider=ScriptedProvider([look]), workspace=tmp_path).run_sync(agent, "x")
    assert {"task_finish", "ask_user", "todo_write", "read_file", "write_file"} <= set(seen)
    assert ("bash" in seen) is (kind == "computer")
    assert "create_sub_task" not in seen
