"""The examples do what they say, on every kind of workspace."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.repair.run import main, repair
from vv_agent.workspace import LocalWorkspaceBackend, MemoryWorkspaceBackend, WorkspaceBackend


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_an_agent_repairs_a_repository(kind: str, tmp_path: Path) -> None:
    workspace: WorkspaceBackend = LocalWorkspaceBackend(tmp_path) if kind == "local" else MemoryWorkspaceBackend()
    result = repair(workspace)
    assert result.status == "completed"
    outputs = [r.content for c in result.cycles for r in c.tool_results if r.content.startswith("exit code")]
    assert [text.split()[2] for text in outputs] == ["1", "0"]
    assert workspace.read_text("shop/prices.py") == "def total(prices):\n    return sum(prices)\n"


def test_it_prints_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    main("memory")
    assert capsys.readouterr().out.splitlines()[-1].startswith("completed: total() was one too low")
