"""builtin_tool_behavior.json: what the tools that exist do, and how arguments are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from vv_agent.messages import ToolCall
from vv_agent.results import ToolExecutionResult
from vv_agent.tools.base import ToolContext
from vv_agent.tools.builtin import build_default_registry
from vv_agent.tools.function import FunctionTool
from vv_agent.tools.registry import ToolRegistry

FIXTURE = load("builtin_tool_behavior.json")
ALL = {
    f"{tool}/{name}": case
    for tool, cases in FIXTURE["tools"].items()
    for name, case in cases.items()
    if isinstance(case, dict) and "arguments" in case and tool not in ("find_files", "file_info", "read_image")
}
"""Those of the file tools are in test_file_tools.py."""
CASES = Cases(
    "builtin_tool_behavior.json",
    pending={
        name: ("tools", "the tool is not built yet") for name in ALL if not name.startswith("control/blank_task_finish")
    },
)


def check(result: ToolExecutionResult, expected: dict[str, Any]) -> None:
    wire = result.to_wire()
    wire["content"] = json.loads(wire["content"])
    assert wire == {"tool_call_id": "call", **expected}


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_tool_gives_the_result_of_the_contract(name: str) -> None:
    with CASES.run(name):
        case = ALL[name]
        tool = name.partition("/")[0] if not name.startswith("control/") else name.partition("blank_")[2]
        arguments = json.dumps(case["arguments"])
        result = build_default_registry().execute(ToolCall("call", tool, arguments), ToolContext())
        check(result, case["result"])


def test_arguments_that_break_the_schema_are_refused_before_the_handler() -> None:
    case = FIXTURE["tools"]["schema_validation"]
    called: list[object] = []
    with CASES.run("schema_validation"):
        registry = ToolRegistry()
        registry.register(FunctionTool(name="t", parameters=case["schema"], handler=lambda *call: called.append(call)))
        call = ToolCall("call", "t", json.dumps(case["invalid_arguments"]))
        check(registry.execute(call, ToolContext()), case["result"])
        assert called == []
        assert case["result"]["content"]["error"] == FIXTURE["canonical"]["argument_validation"]["error_message"]


def test_a_hidden_tool_is_not_shown_to_the_model() -> None:
    wanted = FIXTURE["registry"]["hidden_exposure"]
    with CASES.run("registry/hidden_exposure"):
        registry = ToolRegistry()
        registry.register(FunctionTool(name=wanted["tool_name"], exposure="hidden", handler=lambda *_: None))
        assert bool(registry.list_openai_schemas()) is wanted["must_be_model_visible"]
        assert registry.has_tool(wanted["tool_name"])
