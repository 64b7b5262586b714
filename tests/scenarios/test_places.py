"""What steers a run works in every place: each backend with each store, Celery included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.conftest import Bench, an_agent
from vv_agent import ApprovalDecision, NoToolPolicy, function_tool
from vv_agent.budget import RunBudgetLimits
from vv_agent.sessions import SqliteSession
from vv_agent.testing import call, calls
from vv_agent.tools.builtin import build_default_registry
from vv_agent.workspace import LocalWorkspaceBackend


@function_tool(idempotency="supported")
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


@function_tool(idempotency="supported", needs_approval=True)
def launch(pad: str) -> str:
    """Launch the rocket."""
    return f"launched from {pad}"


ROCKET = [calls(("look", {"where": "sky"}), ("launch", {"pad": "A"}), ("launch", {"pad": "B"})), "Done."]


def answers(result: Any) -> list[str]:
    return [message.content for message in result.messages if message.role == "tool"]


@pytest.mark.feature("approvals")
def test_a_run_parks_until_both_of_its_calls_are_decided(bench: Bench) -> None:
    waiting = bench.run(an_agent(look, launch), ROCKET, key="k")
    assert (waiting.status, waiting.final_output) == ("wait_user", "Approval required for tool launch.")
    state = waiting.into_state()
    for name in state.pending_approval_ids():
        state.approve(name)
    result = bench.runner(ROCKET).resume(state)
    assert (result.status, result.final_output) == ("completed", "Done.")
    assert answers(result) == ["nothing in sky", "launched from A", "launched from B"]


@pytest.mark.feature("approvals")
def test_the_stream_stays_open_until_whoever_reads_it_has_decided(bench: Bench) -> None:
    handle = bench.start(an_agent(look, launch), ROCKET, key="k")
    for event in handle.events():
        if event.type == "approval_requested":
            pad = event.metadata["arguments"]["pad"]
            handle.approve(event.request_id, ApprovalDecision.allow() if pad == "A" else ApprovalDecision.deny("no"))
    result = handle.result(10)
    assert (result.status, answers(result)[:2]) == ("completed", ["nothing in sky", "launched from A"])
    assert '"no"' in answers(result)[2]


@pytest.mark.feature("budgets")
def test_a_run_out_of_budget_goes_on_once_it_is_raised(bench: Bench) -> None:
    steps = [calls(("look", {"where": "left"}), ("look", {"where": "right"})), "Nothing."]
    first = bench.run(an_agent(look), steps, key="k", budget_limits=RunBudgetLimits(max_tool_calls=1))
    assert (first.status, first.completion_reason, answers(first)) == ("failed", "budget_exhausted", [])
    bench.runner().raise_budget("k", RunBudgetLimits(max_tool_calls=2), store=bench.store)
    second = bench.runner(steps).resume("k", store=bench.store)
    assert (second.status, second.final_output) == ("completed", "Nothing.")
    assert second.budget_usage is not None
    assert second.budget_usage.tool_calls == 2


@pytest.mark.feature("sessions")
def test_each_segment_adds_its_messages_to_the_session_once(bench: Bench, tmp_path: Path) -> None:
    session = SqliteSession(tmp_path / "sessions.db", "t")
    steps = ["Where to?", call("task_finish", {"message": "Booked."})]
    tool = build_default_registry().get("task_finish")
    first = bench.run(an_agent(tool, policy=NoToolPolicy.WAIT_USER), steps, key="k", session=session)
    assert (first.status, [item.role for item in session.get_items()]) == ("wait_user", ["user", "assistant"])
    second = bench.runner(steps).resume("k", input="Ulm", store=bench.store)
    assert second.final_output == "Booked."
    assert [item.role for item in session.get_items()] == ["user", "assistant", "user", "assistant", "tool"]
    same = bench.runner(steps).resume("k", store=bench.store)
    assert (same.final_output, len(session.get_items())) == ("Booked.", 5)


@pytest.mark.feature("workspaces")
def test_files_are_written_and_read_where_the_run_says(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    registry = build_default_registry()
    steps = [
        call("write_file", {"path": "notes/a.txt", "content": "apple\n"}),
        call("read_file", {"path": "notes/a.txt"}),
        "Kept.",
    ]
    agent = an_agent(registry.get("write_file"), registry.get("read_file"))
    result = bench.run(agent, steps, workspace_backend=LocalWorkspaceBackend(tmp_path / "files"))
    assert (result.status, result.final_output) == ("completed", "Kept.")
    assert "apple" in answers(result)[1]
    assert (tmp_path / "files" / "notes" / "a.txt").read_text() == "apple\n"
