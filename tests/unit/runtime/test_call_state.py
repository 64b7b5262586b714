"""What a call may change of its run: copies of its own, taken over with its result and never afterwards."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness import until
from tests.runs import Host, asks
from vv_agent import ToolContext, ToolExposure, function_tool
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.llm.base import ModelResponse
from vv_agent.messages import ToolCall
from vv_agent.runtime.tool_context import merged
from vv_agent.tool_metadata import ToolMetadata
from vv_agent.tools.base import Tool

SIDE_BY_SIDE = threading.Barrier(3, timeout=10)


def batch(name: str, *arguments: str) -> ModelResponse:
    calls = tuple(ToolCall(f"c{n}", name, text) for n, text in enumerate(arguments))
    return ModelResponse("", calls, finish_reason="tool_calls")


@pytest.mark.parametrize(
    ("before", "mine", "now", "expected"),
    [
        ({}, {"a": 1}, {"b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, {"a": 2}, {"a": 1}, {"a": 2}),
        ({"a": 1}, {"a": 1}, {"a": 2}, {"a": 2}),
        ({"a": 1}, {}, {"a": 1, "b": 2}, {"b": 2}),
        ({"a": 1}, {"a": True}, {"a": 1}, {"a": True}),
        ({"n": [1]}, {"n": [1, 2]}, {"n": [1, 3]}, {"n": [1, 3, 2]}),
        ({"n": [1, 2]}, {"n": [2]}, {"n": [1, 2, 3]}, {"n": [2]}),
        ({}, {"n": [2]}, {"n": [1]}, {"n": [1, 2]}),
        ({"o": {"x": 1}}, {"o": {"x": 1, "y": 2}}, {"o": {"x": 1, "z": 3}}, {"o": {"x": 1, "z": 3, "y": 2}}),
        ({"a": 1}, {"a": 2}, {}, {"a": 2}),
        ({"a": 1}, {"a": 2}, {"a": 3}, {"a": 2}),
    ],
)
def test_changes_are_merged(before: Any, mine: Any, now: Any, expected: Any) -> None:
    assert merged(before, mine, now) == expected
    assert str(merged(before, mine, now)) == str(expected)


def test_calls_side_by_side_do_not_meet_in_the_shared_state(tmp_path: Path) -> None:
    seen = []

    @function_tool(name="write_record", idempotency="supported")
    def write_record(word: str, context: ToolContext) -> str:
        """Write a record."""
        context.shared_state.setdefault("words", []).append(word)
        context.shared_state["last"] = word
        SIDE_BY_SIDE.wait()
        seen.append(context.shared_state["words"])
        return "written"

    steps = [batch("write_record", *(f'{{"word": "{word}"}}' for word in "abc")), "done"]
    outcome = Host(MemoryStore(), tmp_path, [write_record]).run(steps)
    assert sorted(seen) == [["a"], ["b"], ["c"]]
    assert outcome.ok.raw_result.shared_state == {"words": ["a", "b", "c"], "last": "c"}


def test_a_call_that_was_given_up_changes_nothing_afterwards(tmp_path: Path) -> None:
    go, changed = threading.Event(), threading.Event()

    @function_tool(name="write_record", idempotency="supported", timeout_seconds=0.05)
    def write_record(context: ToolContext) -> str:
        """Write a record."""
        context.shared_state["early"] = 1
        go.wait(10)
        context.shared_state["late"] = 1
        context.file_baselines["late.txt"] = "0" * 64
        changed.set()
        return "written"

    def later(request: Any) -> Any:
        go.set()
        assert changed.wait(10)
        return "done"

    host = Host(MemoryStore(), tmp_path, [write_record])
    outcome = host.run([asks(), later])
    (result,) = outcome.ok.cycles[0].tool_results
    assert result.error_code == "tool_timeout"
    assert outcome.ok.raw_result.shared_state == {}
    until(changed.is_set, "the tool went on")


def test_the_metadata_of_the_run_is_each_calls_own(tmp_path: Path) -> None:
    @function_tool(name="write_record")
    def write_record(context: ToolContext) -> list[str]:
        """Write a record."""
        context.metadata["names"].append("more")
        return list(context.metadata["names"])

    config = {"metadata": {"names": ["one"]}}
    steps = [asks(), asks(call_id="call_2"), "done"]
    outcome = Host(MemoryStore(), tmp_path, [write_record], checkpoint=None, config=config).run(steps)
    assert [r.content for cycle in outcome.ok.cycles for r in cycle.tool_results] == ['["one", "more"]'] * 2


def foreign(act: Any, idempotency: str) -> Any:
    """A tool that is no FunctionTool."""
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    function = {"name": "write_record", "description": "Write.", "parameters": schema}
    tool = SimpleNamespace(
        name="write_record", description="Write.", params_json_schema=schema, exposure=ToolExposure.DIRECT,
        timeout_seconds=None, needs_approval=False, is_enabled=True, metadata={},
        tool_metadata=ToolMetadata(idempotency=idempotency),  # type: ignore[arg-type]
        to_openai_schema=lambda: {"type": "function", "function": function},
        invoke=act,
    )  # fmt: skip
    assert isinstance(tool, Tool)
    return tool


@pytest.mark.parametrize("idempotency", ["supported", "unknown"])
@pytest.mark.parametrize("checkpoint", [None, {"ambiguous_tool_policy": "retry_idempotent_only"}], ids=str)
@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), KeyboardInterrupt(), OSError("x"), 7])
def test_a_tool_of_any_kind_cannot_end_the_worker(
    error: Any, checkpoint: Any, idempotency: str, tmp_path: Path
) -> None:
    def act(context: ToolContext, arguments: Any) -> Any:
        if isinstance(error, BaseException):
            raise error
        return error

    outcome = None

    def work() -> None:
        nonlocal outcome
        outcome = Host(MemoryStore(), tmp_path, [foreign(act, idempotency)], checkpoint=checkpoint).run([asks(), "ok"])

    thread = threading.Thread(target=work)  # an interrupt in the main thread is one
    thread.start()
    thread.join(20)
    assert outcome is not None
    (result,) = outcome.ok.cycles[0].tool_results
    assert (outcome.ok.status, result.error_code) == ("completed", None if error == 7 else "tool_execution_failed")
