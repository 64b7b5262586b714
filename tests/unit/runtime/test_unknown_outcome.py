"""What a run does when a call failed in a way that does not say whether it had its effect."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runs import MODEL, TOOL, Host, asks
from vv_agent import CancellationToken, LlmError, ReconciliationDecision, ToolContext, ToolOutput, function_tool
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.errors import RetryLater
from vv_agent.results import ResumeObservation

BY_ITSELF = {
    "ambiguous_model_policy": "retry_with_duplicate_risk",
    "ambiguous_tool_policy": "retry_idempotent_only",
}


def failing(act: Callable[[ToolContext], Any], support: str = "unknown", **options: Any) -> Any:
    @function_tool(name="write_record", idempotency=support, **options)
    def write_record(context: ToolContext) -> Any:
        """Write a record."""
        return act(context)

    return write_record


def breaks(context: ToolContext) -> Any:
    raise OSError("the disk is full")


def host(folder: Path, *tools: Any, **options: Any) -> Host:
    return Host(MemoryStore(), folder, tools, **options)


@pytest.mark.parametrize(
    "tool",
    [
        failing(breaks),
        failing(lambda context: time.sleep(0.3), timeout_seconds=0.02),
        failing(lambda context: ToolOutput.error("connection reset", "tool_connection_lost")),
    ],
    ids=["raised", "timed out", "lost"],
)
def test_a_strict_run_waits_for_a_decision_about_a_tool_that_failed_after_its_start(tool: Any, tmp_path: Path) -> None:
    run = host(tmp_path, tool)
    outcome = run.run([asks()])
    assert outcome.ok.status == "reconciliation_required"
    assert outcome.ok.resume_observation is not None
    assert outcome.ok.resume_observation.operation_id == TOOL
    assert run.journal()[TOOL]["state"] == "ambiguous"


@pytest.mark.parametrize(
    ("tool", "policies"),
    [
        (failing(breaks, "supported"), {}),
        (failing(breaks), BY_ITSELF),
        (failing(lambda context: ToolOutput.error("no such record", "record_unknown")), {}),
    ],
    ids=["repeatable", "resumes by itself", "own code"],
)
def test_else_the_model_reads_the_failure(tool: Any, policies: dict[str, str], tmp_path: Path) -> None:
    outcome = host(tmp_path, tool, checkpoint=policies).run([asks(), "done"])
    assert (outcome.ok.status, outcome.ok.final_output) == ("completed", "done")
    assert outcome.ok.cycles[0].tool_results[0].status_code == "ERROR"


class OneFile:
    """A decidable tool whose write always fails, and whose file is as before."""

    def __init__(self, tool: Any) -> None:
        self._tool = tool
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)

    def invoke(self, context: ToolContext, arguments: Any) -> Any:
        self.calls += 1
        return self._tool.invoke(context, arguments)

    def intend(self, context: ToolContext, arguments: Any) -> Any:
        return {"before": "a", "after": "b"}

    def examine(self, context: ToolContext, arguments: Any, intent: Any) -> Any:
        return "not_done"

    def replayed(self, context: ToolContext, arguments: Any, intent: Any) -> Any:
        raise AssertionError("it was not done")


def test_a_failed_file_tool_is_looked_at_when_the_run_is_resumed_not_at_once(tmp_path: Path) -> None:
    tool = OneFile(failing(breaks))
    run = host(tmp_path, tool)
    assert run.run([asks()]).ok.status == "reconciliation_required"
    assert tool.calls == 1
    assert run.run().ok.status == "reconciliation_required"
    assert tool.calls == 2, "the file is as before, so it is made again"


class Decides:
    def __init__(self, *decisions: ReconciliationDecision) -> None:
        self.left = list(decisions)

    def reconcile(self, observation: ResumeObservation) -> ReconciliationDecision:
        return self.left.pop(0)


def test_a_provider_decides_in_the_same_claim_and_the_call_is_made_again_with_its_key(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []

    def act(context: ToolContext) -> Any:
        seen.append((context.idempotency_key, context.attempt))
        if len(seen) == 1:
            raise OSError("lost")
        return ToolOutput.text("ok")

    provider = Decides(ReconciliationDecision.retry())
    outcome = host(tmp_path, failing(act), config={"reconciliation_provider": provider}).run([asks(), "done"])
    assert outcome.ok.status == "completed"
    assert [attempt for _, attempt in seen] == [1, 2]
    assert seen[0][0] == seen[1][0]


def test_an_operator_may_give_up_in_the_same_claim(tmp_path: Path) -> None:
    provider = Decides(ReconciliationDecision.abort("gave_up", "nobody knows"))
    run = host(tmp_path, failing(breaks), config={"reconciliation_provider": provider})
    result = run.run([asks()]).ok
    assert (result.status, result.error_code) == ("failed", "operator_abort_with_unknown_outcome")
    assert str(result.raw_result.error).endswith(": nobody knows")
    assert run.journal()[TOOL]["state"] == "ambiguous"


def test_a_strict_run_waits_for_a_decision_about_a_model_call_that_was_lost(tmp_path: Path) -> None:
    run = host(tmp_path)
    outcome = run.run([LlmError("network", "connection reset", retryable=True)])
    assert (outcome.ok.status, outcome.model_calls) == ("reconciliation_required", 1)
    provider = Decides(ReconciliationDecision.retry())
    again = host(tmp_path, config={"reconciliation_provider": provider})
    outcome = again.run([LlmError("network", "connection reset", retryable=True), "done"])
    assert (outcome.ok.final_output, outcome.model_calls) == ("done", 2)


def test_a_provider_that_asks_to_come_back_leaves_no_doubt(tmp_path: Path) -> None:
    run = host(tmp_path)
    outcome = run.run([RetryLater("too many requests", 0.05), "done"])
    assert (outcome.ok.final_output, outcome.types("operation_ambiguous")) == ("done", [])


def test_a_strict_run_that_died_before_its_model_call_shows_no_risk(tmp_path: Path) -> None:
    run = host(tmp_path)
    run.run(["done"], die_at=("store.save.progress", "before", 1))
    assert run.run(["done"]).types("model_retry_duplicate_risk", "operation_ambiguous") == []
    relaxed = host(tmp_path, checkpoint=BY_ITSELF)
    relaxed.run(["done"], die_at=("store.save.end", "before", 1))
    assert relaxed.run(["done"]).types("model_retry_duplicate_risk") == ["model_retry_duplicate_risk"]


def test_a_cancelled_run_keeps_what_is_known_of_the_call_that_ran(tmp_path: Path) -> None:
    """It does not stop within its grace of five seconds, so nobody knows whether it had its effect."""
    token, over = CancellationToken(), threading.Event()

    def act(context: ToolContext) -> Any:
        token.cancel("enough")
        over.wait(30)

    result = host(tmp_path, failing(act)).run([asks()], cancellation_token=token).ok
    over.set()
    assert result.completion_reason == "cancelled"
    assert result.resume_observation is not None
    assert result.resume_observation.operation_id == TOOL


def test_a_model_call_that_was_recorded_for_another_request_is_refused_before_any_claim(tmp_path: Path) -> None:
    run = host(tmp_path)
    run.seed(journal={MODEL: {"state": "started", "attempt": 1, "digest": "f" * 64}})
    before = run.head()
    outcome = run.run(["never"])
    assert (outcome.code, outcome.model_calls) == ("checkpoint_journal_integrity_mismatch", 0)
    assert run.head() == before


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, BaseException])
def test_a_run_goes_on_after_a_tool_that_raised_what_is_no_exception(kind: type[BaseException], tmp_path: Path) -> None:
    def act(context: ToolContext) -> Any:
        raise kind

    result = host(tmp_path, failing(act, "supported")).run([asks(), "done"]).ok
    assert result.status == "completed"
    assert f"(write_record): {kind.__name__}" in result.cycles[0].tool_results[0].content
