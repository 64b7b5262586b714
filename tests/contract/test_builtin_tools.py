"""builtin_tools.json: names, parameters and declared traits of the built-in tools, in their order."""

from __future__ import annotations

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from vv_agent.tools.arguments import check_schema
from vv_agent.tools.builtin import build_default_registry

FIXTURE = load("builtin_tools.json")
NAMES = [tool["name"] for tool in FIXTURE["tools"]]
CASES = Cases("builtin_tools.json")


@pytest.mark.parametrize("expected", FIXTURE["tools"], ids=NAMES)
def test_a_built_in_tool_is_as_the_contract_says(expected: dict[str, object]) -> None:
    with CASES.run(str(expected["name"])):
        tool = build_default_registry().get(str(expected["name"]))
        check_schema(tool.params_json_schema)
        function = tool.to_openai_schema()["function"]
        projected = {
            "name": tool.name,
            "parameters": tool.params_json_schema,
            "type": tool.to_openai_schema()["type"],
            "kind": "function",
            "approval": "not_required" if tool.needs_approval is False else "required",
            "exposure": tool.exposure.value,
            "strict": function["strict"],
            "timeout_seconds": tool.timeout_seconds,
            "model_visible": function in [item["function"] for item in build_default_registry().list_openai_schemas()],
        }
        # The wording of descriptions is ours, and declarations are truthful (DESIGN 10), which the fixture's are not.
        assert projected == {name: value for name, value in expected.items() if name not in ("description", "metadata")}
        assert tool.metadata == {}


def test_the_default_registry_has_them_in_the_order_of_the_contract() -> None:
    assert build_default_registry().list_tool_names() == NAMES
