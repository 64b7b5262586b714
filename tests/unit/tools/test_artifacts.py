"""Results that are too long for a model: cut, kept in the workspace, and read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.runs import Host, asks
from vv_agent import function_tool
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.errors import ClaimLost
from vv_agent.results import ToolExecutionResult
from vv_agent.tools.artifacts import HEAD, MAX_CHARS, TAIL, shortened
from vv_agent.workspace import LocalWorkspaceBackend


def mine() -> None:
    return


def result(text: str, call_id: str = "c") -> ToolExecutionResult:
    return ToolExecutionResult(tool_call_id=call_id, content=text)


def test_a_long_result_is_cut_and_can_be_read_back(tmp_path: Path) -> None:
    text = "".join(f"line {n}\n" for n in range(20_000)) + "x" * 5_000

    @function_tool(name="write_record")
    def write_record() -> str:
        """Write a record."""
        return text

    steps: list[Any] = [asks(), asks("read_file", arguments={"path": ".memory/tool_results/cycle_1/call_1.txt", "start_line": 19_999, "end_line": 20_002}), "done"]  # fmt: skip
    outcome = Host(MemoryStore(), tmp_path, [write_record], checkpoint=None).run(steps)
    cut = outcome.ok.cycles[0].tool_results[0]
    assert cut.status_code == "SUCCESS"
    assert cut.metadata == {"result_chars": len(text), "result_artifact": ".memory/tool_results/cycle_1/call_1.txt"}
    assert cut.content.startswith(text[:HEAD])
    assert cut.content.endswith(text[-TAIL:])
    assert f"{len(text) - HEAD - TAIL} of {len(text)} characters" in cut.content
    read = json.loads(outcome.ok.cycles[1].tool_results[0].content)
    assert read["content"] == "line 19998\nline 19999\n" + "x" * 2_000 + "\n" + "x" * 2_000 + "\n"


def test_a_result_that_fits_stays_as_it_is(tmp_path: Path) -> None:
    fits = result("x" * MAX_CHARS)
    assert shortened(fits, LocalWorkspaceBackend(tmp_path), 1, mine) is fits


@pytest.mark.parametrize("call_id", ["../../etc/passwd", "", ".hidden", "a/b", "x" * 101])
def test_a_call_id_is_no_path(call_id: str, tmp_path: Path) -> None:
    cut = shortened(result("x" * (MAX_CHARS + 1), call_id), LocalWorkspaceBackend(tmp_path), 3, mine)
    path = (cut.metadata or {})["result_artifact"]
    assert path.startswith(".memory/tool_results/cycle_3/tool_result_")
    assert (tmp_path / path).is_file()


def test_a_result_that_cannot_be_kept_is_cut_all_the_same(tmp_path: Path) -> None:
    (tmp_path / ".memory").write_text("no folder")
    for workspace in (None, LocalWorkspaceBackend(tmp_path)):
        cut = shortened(result("x" * (MAX_CHARS + 1)), workspace, 1, mine)
        assert len(cut.content) < MAX_CHARS
        assert "could not be kept" in cut.content
        assert cut.metadata == {"result_chars": MAX_CHARS + 1}


def test_nothing_is_written_once_the_claim_is_over(tmp_path: Path) -> None:
    def lost() -> None:
        raise ClaimLost("gone")

    with pytest.raises(ClaimLost):
        shortened(result("x" * (MAX_CHARS + 1)), LocalWorkspaceBackend(tmp_path), 1, lost)
    assert not (tmp_path / ".memory").exists()
