"""What somebody else's code may do to a run: its client, its tools, its provider's wishes."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import pytest

from tests.runs import KEY, Host, asks
from vv_agent import ToolContext, function_tool
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.llm.base import ModelResponse
from vv_agent.messages import ToolCall
from vv_agent.runtime.cycle import MAX_RETRY_AFTER, _bounded
from vv_agent.runtime.inbox import cancel_signal
from vv_agent.tools.builtin.writing import write_file


@pytest.mark.parametrize("step", [ZeroDivisionError("division by zero"), SystemExit(3), lambda request: None])
def test_a_client_that_fails_is_a_failed_result(step: Any, tmp_path: Path) -> None:
    outcome = Host(MemoryStore(), tmp_path, checkpoint=None).run([step])
    assert (outcome.ok.status, outcome.ok.error_code) == ("failed", "model_client")


@pytest.mark.parametrize("value", [{1}, datetime.date(2026, 1, 1), 2**70, "\ud800", object(), math.nan, b"x"])
def test_a_state_that_cannot_be_stored_is_the_tools_failure(value: Any, tmp_path: Path) -> None:
    @function_tool(name="write_record")
    def write_record(context: ToolContext) -> str:
        """Write a record."""
        context.shared_state.update(bad=value, good=1)
        return "written"

    outcome = Host(MemoryStore(), tmp_path, [write_record]).run([asks(), "done"])
    (result,) = outcome.ok.cycles[0].tool_results
    assert (outcome.ok.status, result.error_code) == ("completed", "tool_state_invalid")
    assert "bad" in result.content
    assert outcome.ok.raw_result.shared_state == {"good": 1}


@pytest.mark.parametrize(
    ("wish", "seconds"),
    [(None, 0.0), (2.5, 2.5), (1e17, MAX_RETRY_AFTER), (math.inf, MAX_RETRY_AFTER), (math.nan, MAX_RETRY_AFTER)],
)
def test_a_retry_after_is_bounded(wish: float | None, seconds: float) -> None:
    assert _bounded(wish) == seconds


def test_no_call_starts_once_a_cancel_was_read(tmp_path: Path) -> None:
    store, calls = MemoryStore(), []

    @function_tool(name="write_record", idempotency="supported")
    def write_record(context: ToolContext) -> str:
        """Write a record."""
        calls.append(1)
        return "written"

    def cancelled(request: Any) -> Any:
        store.post(KEY, cancel_signal("c"))
        return asks()

    outcome = Host(store, tmp_path, [write_record]).run([cancelled, "done"])
    assert (outcome.ok.completion_reason, calls) == ("cancelled", [])


def test_a_failed_call_leaves_no_state_that_cannot_be_stored(tmp_path: Path) -> None:
    @function_tool(name="write_record", idempotency="supported")
    def write_record(context: ToolContext) -> str:
        """Write a record."""
        context.shared_state.update(bad={1}, good=1)
        raise OSError("after the state was changed")

    outcome = Host(MemoryStore(), tmp_path, [write_record]).run([asks(), "done"])
    assert (outcome.ok.status, outcome.ok.raw_result.shared_state) == ("completed", {"good": 1})


def test_what_the_model_knows_of_files_grows_with_the_log_only(tmp_path: Path) -> None:
    def writes(name: str, text: str) -> ModelResponse:
        arguments = f'{{"path": "{name}", "content": "{text}"}}'
        return ModelResponse("", (ToolCall("1", "write_file", arguments),), finish_reason="tool_calls")

    steps = [writes(f"{n}.txt", "one") for n in range(3)]
    host = Host(MemoryStore(), tmp_path, [write_file], config={"max_cycles": 9})
    outcome = host.run([*steps, writes("0.txt", "two"), "done"])
    assert outcome.ok.status == "completed"
    assert [result.error_code for cycle in outcome.ok.cycles for result in cycle.tool_results] == [None] * 4
    assert not [save.blobs for save in outcome.saves if save.blobs]
