from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from vv_agent.errors import ConfigError, VVAgentError
from vv_agent.messages import Message
from vv_agent.result import RunResult
from vv_agent.results import (
    MAX_CYCLES_ANSWER,
    AgentResult,
    AgentStatus,
    CompletionReason,
    CycleRecord,
    CycleToolCall,
    ResumeObservation,
    ToolDirective,
    ToolExecutionResult,
    ToolStatus,
)
from vv_agent.usage import TokenUsage, aggregate


def agent_result(status: str, reason: str | None, **changes: Any) -> AgentResult:
    """A result with every text set, so that the normal form has something to drop."""
    values: dict[str, Any] = {
        "status": status,
        "completion_reason": reason,
        "completion_tool_name": "tool",
        "partial_output": None,
        "messages": (Message("assistant", "draft"), Message("assistant", " "), Message("user", "go on")),
        "cycles": (),
        "final_answer": "answer",
        "wait_reason": "why",
        "error": "broken",
        "shared_state": {},
        "token_usage": aggregate([]),
        "checkpoint_key": None,
        "resume_observation": None,
    }
    return AgentResult(**{**values, **changes})


FORMS = {
    ("completed", "tool_finish"): ("tool", None, "answer", None, None),
    ("wait_user", "wait_user"): ("tool", "draft", None, "why", None),
    ("max_cycles", "max_cycles"): (None, "draft", MAX_CYCLES_ANSWER, None, "broken"),
    ("failed", "failed"): (None, "draft", None, None, "broken"),
    ("failed", "cancelled"): (None, "draft", None, None, "broken"),
    ("failed", "budget_exhausted"): (None, "draft", None, None, "broken"),
    ("reconciliation_required", None): (None, "draft", None, None, None),
}
"""(status, reason) -> (tool name, partial output, final answer, wait reason, error)"""


@pytest.mark.parametrize(("status", "reason"), FORMS)
def test_the_normal_form_of_each_status(status: str, reason: str | None) -> None:
    result = agent_result(status, reason).normalized()
    shown = (result.completion_tool_name, result.partial_output, result.final_answer, result.wait_reason, result.error)
    assert shown == FORMS[status, reason]
    assert result.normalized() == result
    assert AgentResult.from_wire(result.to_wire()) == result


def test_a_given_partial_output_stands_and_a_missing_text_is_empty() -> None:
    assert agent_result("failed", "failed", partial_output="given").normalized().partial_output == "given"
    assert agent_result("completed", "no_tool_finish", final_answer=None).normalized().final_answer == ""


@pytest.mark.parametrize(
    ("status", "reason"), [("completed", "failed"), ("wait_user", None), ("failed", "tool_finish"), ("failed", None)]
)
def test_a_reason_that_does_not_fit_the_status_is_refused(status: str, reason: str | None) -> None:
    with pytest.raises(ValueError, match="completion reason"):
        agent_result(status, reason).normalized()


def test_a_tool_result_writes_only_what_is_set_and_reads_null() -> None:
    wire = {"tool_call_id": "c", "content": "", "status_code": "SUCCESS", "directive": "continue"}
    assert ToolExecutionResult(tool_call_id="c", content="").to_wire() == wire
    assert ToolExecutionResult.from_wire({**wire, "error_code": None, "metadata": None}).to_wire() == wire
    full = {**wire, "error_code": "e", "metadata": {"a": 1}, "image_url": "u", "image_path": "p"}
    assert ToolExecutionResult.from_wire(full).to_wire() == full
    for name in wire:
        with pytest.raises(ValueError, match=name):
            ToolExecutionResult.from_wire({key: value for key, value in wire.items() if key != name})
    with pytest.raises(ValueError, match="future"):
        ToolExecutionResult.from_wire({**wire, "future": 1})


def test_a_cycle_survives_a_round_trip_inside_a_result() -> None:
    cycle = CycleRecord(
        index=1,
        assistant_message="",
        tool_calls=(CycleToolCall(id="c", name="n", arguments={"a": [1]}),),
        tool_results=(
            ToolExecutionResult(
                tool_call_id="c", content="x", status_code=ToolStatus.ERROR, directive=ToolDirective.FINISH
            ),
        ),
        memory_compacted=True,
        token_usage=TokenUsage.empty(),
    )
    result = agent_result("completed", "tool_finish", cycles=(cycle,))
    wire = result.to_wire()
    assert AgentResult.from_wire(wire) == result
    assert type(wire["cycles"][0]["tool_results"][0]["status_code"]) is str
    del wire["cycles"][0]["tool_results"][0]["directive"]
    with pytest.raises(ValueError, match="directive"):
        AgentResult.from_wire(wire)


@pytest.mark.parametrize(("kind", "support"), [("model", "unknown"), ("tool", None), ("other", "unknown")])
def test_only_tools_declare_idempotency(kind: str, support: str | None) -> None:
    wire = {
        "operation_id": "o", "operation_kind": kind, "cycle_index": 1, "state": "ambiguous", "risk": "r",
        "idempotency_support": support,
    }  # fmt: skip
    with pytest.raises(ValueError, match="operation_kind"):
        ResumeObservation.from_wire(wire)


def run_result(raw: AgentResult) -> RunResult:
    return RunResult.of(raw, input="hi", run_id="r", trace_id="t", agent_name="a")


def test_the_output_is_the_answer_else_the_wait_else_the_error() -> None:
    assert run_result(agent_result("completed", "tool_finish").normalized()).final_output == "answer"
    assert run_result(agent_result("wait_user", "wait_user").normalized()).final_output == "why"
    failed = run_result(agent_result("failed", "failed").normalized())
    assert (failed.final_output, failed.status, failed.completion_reason) == (
        "broken",
        AgentStatus.FAILED,
        CompletionReason.FAILED,
    )


class Answer(BaseModel):
    value: int


def test_a_typed_output_is_read_strictly() -> None:
    def output(text: str) -> RunResult:
        return run_result(agent_result("completed", "tool_finish", final_answer=text))

    assert output('{"value": 3}').final_output_as(Answer) == Answer(value=3)
    assert output("[1, 2]").final_output_as(list[int]) == [1, 2]
    assert output("plain").final_output_as(str) == "plain"
    for text in ("plain", '{"value": "3"}', "[]"):
        with pytest.raises(VVAgentError, match="failed to validate final output for agent 'a' as Answer") as caught:
            output(text).final_output_as(Answer)
        assert caught.value.code == "output_type_invalid"


def test_only_a_waiting_result_has_a_state_and_knows_its_requests() -> None:
    with pytest.raises(ConfigError, match="run_not_waiting"):
        run_result(agent_result("completed", "tool_finish")).into_state()
    with pytest.raises(ConfigError, match="unknown approval request: nobody"):
        run_result(agent_result("wait_user", "wait_user")).into_state().approve("nobody")
