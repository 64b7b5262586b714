"""builtin_tool_behavior.json: what the tools that exist do, and how arguments are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from vv_agent.messages import ToolCall
from vv_agent.results import ToolExecutionResult
from vv_agent.tools.base import ToolContext
from vv_agent.tools.builtin import bash, build_default_registry
from vv_agent.tools.function import FunctionTool
from vv_agent.tools.registry import ToolRegistry
from vv_agent.workspace import LocalWorkspaceBackend

FIXTURE = load("builtin_tool_behavior.json")
ALL = {
    f"{tool}/{name}": case
    for tool, cases in FIXTURE["tools"].items()
    for name, case in cases.items()
    if isinstance(case, dict) and "arguments" in case and tool not in ("find_files", "file_info", "read_image")
}
"""Those of the file tools are in test_file_tools.py."""
CASES = Cases("builtin_tool_behavior.json")


@pytest.fixture(autouse=True)
def _no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login shell reads what its user has set up, which may take long."""
    monkeypatch.setenv("HOME", str(tmp_path))


def check(result: ToolExecutionResult, expected: dict[str, Any]) -> None:
    wire = result.to_wire()
    wire["content"] = json.loads(wire["content"])
    assert wire == {"tool_call_id": "call", **expected}


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_tool_gives_the_result_of_the_contract(name: str, tmp_path: Path) -> None:
    with CASES.run(name):
        case = ALL[name]
        tool = name.partition("/")[0] if not name.startswith("control/") else name.partition("blank_")[2]
        arguments = json.dumps(case["arguments"])
        skills = {"available_skills": case["available_skills"]} if "available_skills" in case else {}
        context = ToolContext(
            workspace=LocalWorkspaceBackend(tmp_path), shared_state=skills, metadata=case.get("context_metadata", {})
        )
        result = build_default_registry().execute(ToolCall("call", tool, arguments), context)
        expected = case["result"]
        if "content_subset" not in expected:
            check(result, expected)
            return
        content = json.loads(result.content)
        assert content.items() >= expected["content_subset"].items()
        assert (result.metadata or {}).items() >= expected["metadata_subset"].items()
        assert content.keys() >= set(expected["required_dynamic_fields"])
        assert (result.status_code, result.directive) == (expected["status_code"], expected["directive"])


def test_the_metadata_of_a_result_holds_no_text_of_the_command(tmp_path: Path) -> None:
    context = ToolContext(workspace=LocalWorkspaceBackend(tmp_path))
    for tool in ("bash", "compress_memory", "todo_write"):
        arguments = {"command": "echo x", "core_information": "x", "todos": []}
        known = build_default_registry().get(tool).params_json_schema["properties"]
        text = json.dumps({name: value for name, value in arguments.items() if name in known})
        result = build_default_registry().execute(ToolCall("call", tool, text), context)
        assert result.status_code == "SUCCESS"
        assert not (result.metadata or {}).keys() & set(FIXTURE["canonical"]["metadata_policy"]["forbidden_large_keys"])


def test_a_shell_that_cannot_be_is_told_to_the_model() -> None:
    wanted = FIXTURE["dynamic_bash_description"]["non_string_bash_shell"]
    with CASES.run("dynamic_bash_description"):
        described = bash.for_run({"bash_shell": wanted["bash_shell"]}).description
        assert described == f"{bash.description}\n{wanted['expected_hint']}"
        assert bash.for_run({}).description.endswith("\nRuntime shell hint: commands run as `bash -lc <command>`.")


def test_a_description_is_not_empty() -> None:
    with CASES.run("registry/builtin_description"):
        for tool in build_default_registry().list_tool_names():
            assert len(build_default_registry().get(tool).description) > 100 or tool in ("read_file", "write_file")


def test_skills_that_only_the_metadata_list_cannot_be_activated() -> None:
    case, name = FIXTURE["tools"]["activate_skill"]["metadata_only_source"], "fixture-skill"
    with CASES.run("activate_skill/metadata_only_source"):
        context = ToolContext(metadata={"available_skills": [{"name": name, "description": "d", "instructions": "i"}]})
        call = ToolCall("call", "activate_skill", json.dumps({"skill_name": name}))
        check(build_default_registry().execute(call, context), case["result"])


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
