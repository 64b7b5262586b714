"""The registry: names, order, schemas, and one call without a policy."""

from __future__ import annotations

import json
import pickle

import pytest

import vv_agent
from vv_agent.errors import ConfigError, ToolError, ToolNotFoundError
from vv_agent.messages import ToolCall
from vv_agent.tools.base import ToolContext
from vv_agent.tools.function import FunctionTool, function_tool
from vv_agent.tools.registry import RegistryToolExecutor, ToolRegistry


def tool(name: str, exposure: str = "direct") -> FunctionTool:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    handler = lambda context, arguments: {"id": context.tool_call_id, "raw": context.raw_arguments, **arguments}  # noqa: E731
    return FunctionTool(name=name, parameters=schema, handler=handler, exposure=exposure)


@pytest.fixture
def registry() -> ToolRegistry:
    registry = ToolRegistry()
    registry.register_many([tool("b"), tool("a")])
    return registry


def test_tools_are_listed_in_the_order_they_came(registry: ToolRegistry) -> None:
    assert registry.list_tool_names() == ["b", "a"]
    assert [item["function"]["name"] for item in registry.list_openai_schemas()] == ["b", "a"]
    assert [item["function"]["name"] for item in registry.list_openai_schemas(tool_names=["a"])] == ["a"]
    assert registry.has_tool("a")
    assert not registry.has_tool("c")


def test_a_name_is_taken_once(registry: ToolRegistry) -> None:
    with pytest.raises(ConfigError, match="tool already registered: a") as caught:
        registry.register(tool("a"))
    assert caught.value.code == "tool_already_registered"


def test_an_unknown_name_is_an_error_that_crosses_processes(registry: ToolRegistry) -> None:
    for ask in (registry.get, registry.get_schema, lambda name: registry.list_openai_schemas(tool_names=[name])):
        with pytest.raises(ToolNotFoundError) as caught:
            ask("c")
        error = pickle.loads(pickle.dumps(caught.value))
        assert isinstance(error, ToolError)
        assert (error.code, error.message) == ("tool_not_found", "Tool not found: c")


def test_a_registered_schema_replaces_the_tools_own(registry: ToolRegistry) -> None:
    def schema(name: str) -> dict[str, object]:
        parameters = {"type": "object", "properties": {"m": {"type": "string"}}}
        return {"type": "function", "function": {"name": name, "description": "Mine.", "parameters": parameters}}

    registry.register_schemas({"c": schema("c"), "a": schema("a")})
    registry.register(tool("c"))
    for name in ("a", "c"):
        assert registry.get_schema(name) == schema(name)
    registry.get_schema("a").clear()
    assert registry.get_schema("a") == schema("a")
    assert registry.execute(ToolCall("1", "a", '{"m": 3}'), ToolContext()).error_code == "invalid_tool_arguments"
    for wrong in ({}, schema("b"), {"type": "function", "function": []}):
        with pytest.raises(ConfigError):
            registry.register_schema("a", wrong)


def test_hidden_tools_run_but_are_not_shown(registry: ToolRegistry) -> None:
    registry.register(tool("hidden", "hidden"))
    registry.register_executor(tool("quiet"), expose_to_model=False)
    registry.register_executor(tool("extra"), planner_extra=True)
    assert [item["function"]["name"] for item in registry.list_openai_schemas()] == ["b", "a", "extra"]
    assert registry.list_openai_schemas(tool_names=["hidden", "quiet"]) == []
    assert registry.planner_extras() == ["extra"]
    assert registry.execute(ToolCall("1", "quiet"), ToolContext()).status_code == "SUCCESS"


def test_a_call_is_parsed_checked_and_run_in_its_own_context(registry: ToolRegistry) -> None:
    result = registry.execute(ToolCall("1", "a", '{"n": 2}'), ToolContext(tool_call_id="other"))
    assert json.loads(result.content) == {"id": "1", "raw": '{"n": 2}', "n": 2}
    assert result.tool_call_id == "1"
    executor = RegistryToolExecutor(registry, "a")
    assert json.loads(executor.invoke(ToolContext(), {"n": 1}).content)["n"] == 1


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("a", "{", "invalid_arguments_json"),
        ("a", "[]", "invalid_arguments_payload"),
        ("c", "{}", "tool_not_found"),
        ("a", '{"n": "x"}', "invalid_tool_arguments"),
    ],
)
def test_a_wrong_call_is_a_result(registry: ToolRegistry, name: str, arguments: str, code: str) -> None:
    result = registry.execute(ToolCall("1", name, arguments), ToolContext())
    assert (result.status_code, result.error_code, result.tool_call_id) == ("ERROR", code, "1")
    assert json.loads(result.content)["error_code"] == code


def test_the_names_are_at_the_front_door() -> None:
    assert vv_agent.function_tool is function_tool
    assert vv_agent.build_default_registry().list_tool_names()[0] == "task_finish"
    names = "Tool ToolContext ToolExposure ToolOutput FunctionTool ToolRegistry ToolPolicy"
    assert set(names.split()) <= set(vv_agent.__all__)
