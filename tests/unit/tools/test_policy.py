"""Tool policies: one of three layers, and the checks of a call."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from vv_agent.errors import ConfigError
from vv_agent.tool_metadata import ToolMetadata, ToolSideEffect
from vv_agent.tools.base import Tool
from vv_agent.tools.function import FunctionTool
from vv_agent.tools.policy import AllOf, ApprovalPolicy, PlannedCall, ToolPolicy, merge_policies, refusal

WRITES = ToolMetadata(ToolSideEffect.WRITE, terminal=True, capability_tags=("fs",), cost_dimensions=("io",))


def tool(metadata: ToolMetadata | None = None, exposure: str = "direct") -> FunctionTool:
    return FunctionTool(name="t", handler=lambda *_: None, tool_metadata=metadata, exposure=exposure)


def source(policy: ToolPolicy, **changes: Any) -> str | None:
    handler: Tool | None = changes.pop("tool", tool(WRITES))
    call = PlannedCall(
        "c", "t", {"a": 1}, policy, changes.pop("advertised", ["t"]), handler, changes.pop("schema", None)
    )
    result = refusal(call)
    if result is None:
        return None
    content = json.loads(result.content)
    assert (content["ok"], result.status_code, result.directive) == (False, "ERROR", "continue")
    return (result.metadata or {}).get("policy_source") or result.error_code


def test_each_method_adds_one_rule_to_a_new_policy() -> None:
    empty = ToolPolicy()
    policy = (
        empty.deny_side_effect("write")
        .deny_side_effect(ToolSideEffect.READ)
        .deny_capability_tag(" b ")
        .deny_capability_tag("a")
        .denying_terminal_tools()
        .deny_cost_dimension("x")
    )
    assert policy.denied_side_effects == (ToolSideEffect.READ, ToolSideEffect.WRITE)
    assert (policy.denied_capability_tags, policy.denied_cost_dimensions) == (("a", "b"), ("x",))
    assert policy.deny_terminal_tools is True
    assert empty == ToolPolicy()


@pytest.mark.parametrize(
    "options",
    [
        {"allowed_tools": "read_file"},
        {"disallowed_tools": [3]},
        {"approval": "sometimes"},
        {"denied_side_effects": ["explode"]},
        {"denied_capability_tags": [" "]},
        {"denied_cost_dimensions": "io"},
    ],
    ids=str,
)
def test_a_wrong_policy_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ToolPolicy(**options)


def test_the_first_check_that_objects_is_the_one_reported() -> None:
    everything = ToolPolicy(
        allowed_tools=[],
        disallowed_tools=["t"],
        can_use_tool=lambda name, arguments: False,
        denied_side_effects=["write"],
        denied_capability_tags=["fs"],
        deny_terminal_tools=True,
        denied_cost_dimensions=["io"],
    )
    integer = {"type": "object", "properties": {"a": {"type": "string"}}}
    context: dict[str, Any] = {"schema": integer, "advertised": [], "tool": None}
    assert source(everything, **context) == "invalid_tool_arguments"
    del context["schema"]
    loosened: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({}, {}, "allowed_tools"),
        ({"allowed_tools": ["t"]}, {}, "disallowed_tools"),
        ({"disallowed_tools": []}, {}, "can_use_tool"),
        ({"can_use_tool": lambda name, arguments: arguments == {"a": 1}}, {}, "planned_name"),
        ({}, {"advertised": ["t"]}, "tool_not_found"),
        ({}, {"tool": tool(WRITES)}, "metadata.side_effect"),
        ({"denied_side_effects": []}, {}, "metadata.terminal"),
        ({"deny_terminal_tools": False}, {}, "metadata.capability_tag"),
        ({"denied_capability_tags": []}, {}, "metadata.cost_dimension"),
    ]
    policy = everything
    for rules, facts, expected in loosened:
        policy = dataclasses.replace(policy, **rules)
        context |= facts
        assert source(policy, **context) == expected
    assert source(dataclasses.replace(policy, denied_cost_dimensions=[]), **context) is None


def test_a_tool_that_declares_nothing_matches_no_denial() -> None:
    policy = ToolPolicy(denied_side_effects=["unknown"], deny_terminal_tools=True)
    assert source(policy, tool=tool()) is None
    assert source(policy, tool=tool(ToolMetadata())) == "metadata.side_effect"


def test_a_predicate_that_fails_does_not_let_the_call_run() -> None:
    def broken(name: str, arguments: dict[str, Any]) -> bool:
        raise RuntimeError("boom")

    assert source(ToolPolicy(can_use_tool=broken)) == "tool_orchestrator_error"


def test_layers_are_merged_by_their_rules() -> None:
    first, second = (lambda name, arguments: True), (lambda name, arguments: name == "t")
    merged = merge_policies(
        ToolPolicy(allowed_tools=["a"], disallowed_tools=["x", "y"], approval="on_request", can_use_tool=first),
        ToolPolicy(allowed_tools=[], disallowed_tools=["y", "z"], approval="always"),
        ToolPolicy(can_use_tool=second),
    )
    assert merged.allowed_tools == ()
    assert merged.disallowed_tools == ("x", "y", "z")
    assert merged.approval is ApprovalPolicy.ON_REQUEST
    assert merged.can_use_tool == AllOf((first, second))
    assert AllOf((first, second))("t", {})
    assert not AllOf((first, second))("u", {})
    assert merge_policies(None, ToolPolicy(can_use_tool=first), None).can_use_tool is first
    assert merge_policies(None, None, None) == ToolPolicy()


def test_the_model_is_not_shown_what_it_may_not_call() -> None:
    assert ToolPolicy().advertises(tool())
    assert not ToolPolicy().advertises(tool(exposure="hidden"))
    assert not ToolPolicy(allowed_tools=[]).advertises(tool())
    assert not ToolPolicy(disallowed_tools=["t"]).advertises(tool())
    assert not ToolPolicy().deny_cost_dimension("io").advertises(tool(WRITES))
    assert ToolPolicy(can_use_tool=lambda name, arguments: False).advertises(tool())
