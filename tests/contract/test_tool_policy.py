"""tool_metadata.json policy_cases and approval_tool_policy.json policy: who may call what, and what a denial looks like."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from vv_agent.messages import ToolCall
from vv_agent.results import ToolExecutionResult
from vv_agent.tool_metadata import ToolMetadata
from vv_agent.tools.function import FunctionTool
from vv_agent.tools.orchestrator import RefusedCall, ToolOrchestrator
from vv_agent.tools.policy import CHECKS, ToolPolicy, merge_policies

METADATA = load("tool_metadata.json")
APPROVAL = load("approval_tool_policy.json")
METADATA_CASES = Cases("tool_metadata.json")
APPROVAL_CASES = Cases("approval_tool_policy.json")


def refused(policy: ToolPolicy, metadata: ToolMetadata | None, name: str, arguments: Any, advertised: list[str]) -> Any:
    tool = FunctionTool(name=name, handler=lambda *_: None, tool_metadata=metadata)
    orchestrator = ToolOrchestrator({name: tool}, policy, planned_tools=advertised, parameters={})
    checked = orchestrator.check(ToolCall("call", name, json.dumps(arguments)))
    return tool, checked.result if isinstance(checked, RefusedCall) else None


@pytest.mark.parametrize("case", METADATA["policy_cases"], ids=lambda case: case["name"])
def test_a_policy_of_declarations(case: dict[str, Any]) -> None:
    with METADATA_CASES.run(f"policy_cases/{case['name']}"):
        metadata = None if case["metadata"] is None else ToolMetadata.from_wire(case["metadata"])
        named = [] if case.get("existing_name_policy_allows", True) else ["t"]
        policy = ToolPolicy(disallowed_tools=named, **case["policy"])
        tool, result = refused(policy, metadata, "t", {}, ["t"])
        assert (result is None) is case["allowed"]
        assert policy.advertises(tool) is case["allowed"]
        assert (result and result.metadata["policy_source"]) == case["policy_source"]


@pytest.mark.parametrize("case", APPROVAL["policy"]["cases"], ids=lambda case: case["id"])
def test_a_denial_has_the_shape_of_the_contract(case: dict[str, Any]) -> None:
    wanted, call = APPROVAL["policy"], APPROVAL["tool_call"]
    with APPROVAL_CASES.run(f"policy/{case['id']}"):
        policy = ToolPolicy(
            allowed_tools=case["allowed_tools"],
            disallowed_tools=case["disallowed_tools"],
            can_use_tool=lambda name, arguments: case["can_use_tool"],
        )
        _, result = refused(policy, None, call["name"], call["arguments"], case["planned_tools"])
        assert isinstance(result, ToolExecutionResult)
        content = json.loads(result.content)
        shape = wanted["result_shape"]
        assert (result.status_code, result.directive) == (shape["status_code"], shape["directive"])
        assert list(content) == shape["content_keys"]
        assert list(result.metadata or {}) == shape["metadata_keys"]
        assert result.metadata == {
            "mode": shape["mode"],
            "policy_source": case["policy_source"],
            "tool_name": call["name"],
            "arguments": call["arguments"],
            "message": wanted["message"],
        }
        assert (content["error"], content["error_code"]) == (wanted["message"], wanted["error_code"])
        assert result.error_code == wanted["error_code"]


def test_the_checks_stand_in_the_order_of_the_contract() -> None:
    names = [check.__name__.removeprefix("_") for check in CHECKS]
    declarations = [name.removeprefix("metadata.") for name in METADATA["policy_contract"]["denial_precedence"]]
    assert names == ["schema", *APPROVAL["policy"]["precedence"], "exists", *declarations]


def test_denials_of_every_layer_are_united() -> None:
    fields = METADATA["policy_contract"]["fields"]
    assert METADATA["policy_contract"]["boolean_merge"] == "logical_or"
    merged = merge_policies(
        ToolPolicy(denied_side_effects=["write"], denied_capability_tags=["\ue000", "a"]),
        ToolPolicy(deny_terminal_tools=True, denied_cost_dimensions=["z"]),
        ToolPolicy(denied_side_effects=["read", "write"], denied_capability_tags=["\U0001f600"]),
    )
    values = [getattr(merged, name) for name in fields]
    assert values == [("read", "write"), ("a", "\U0001f600", "\ue000"), True, ("z",)]
    empty = METADATA["policy_contract"]["missing_field_defaults"]
    assert {name: getattr(ToolPolicy(), name) or empty[name] for name in fields} == empty
