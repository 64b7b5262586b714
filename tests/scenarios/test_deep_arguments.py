"""Tool arguments that no JSON parser can take apart: the model is told, and the run stays readable."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs import Host
from vv_agent import Runner, function_tool
from vv_agent.checkpoint import open_store
from vv_agent.llm import ModelResponse
from vv_agent.messages import ToolCall


@function_tool
def write_record(a: dict[str, object]) -> str:
    """Write a record."""
    return "ok"


@pytest.mark.parametrize("levels", [1_100, 50_000])
def test_a_run_whose_model_nested_its_arguments_too_deeply_has_a_result(levels: int, tmp_path: Path) -> None:
    text = '{"a":' * levels + "1" + "}" * levels
    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    host = Host(store, tmp_path, [write_record])
    call = ToolCall("c1", "write_record", text)
    result = host.run([ModelResponse(content="", tool_calls=(call,)), "done"]).ok
    again = Runner.resume(host.key or "", store=store)
    for seen in (result, again):
        assert seen.status == "completed"
        (cycle, _) = seen.cycles
        assert cycle.tool_calls[0].arguments == {}
        assert cycle.tool_results[0].error_code == "invalid_arguments_json"
    store.close()
