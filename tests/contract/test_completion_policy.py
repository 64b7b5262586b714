"""completion_policy.json: when a run ends, why, and what comes before what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.runs import QueueProvider, asks, response
from vv_agent import (
    Agent,
    CancellationToken,
    CompletionReason,
    GuardrailResult,
    InputGuardrail,
    NoToolPolicy,
    OutputGuardrail,
    RunConfig,
    Runner,
    ToolRegistry,
    function_tool,
)
from vv_agent.errors import ConfigError, LlmError
from vv_agent.launch import open_approvals
from vv_agent.llm.base import ModelRequest
from vv_agent.result import RunResult
from vv_agent.results import AgentResult
from vv_agent.runtime.output import HINT
from vv_agent.tools.builtin.control import ask_user, task_finish

FIXTURE = load("completion_policy.json")
CASES = Cases("completion_policy.json")
PRECEDENCE = {case["name"]: case for case in FIXTURE["terminal_precedence_cases"]}
RESUMES = {case["name"]: case for case in FIXTURE["approval_resume"]["cases"]}


def registry() -> ToolRegistry:
    found = ToolRegistry()
    found.register_many([task_finish, ask_user])
    return found


def agent(*tools: Any, **more: Any) -> Agent:
    return Agent(**{"name": "policy", "instructions": "Work.", "model": "scripted", "tools": tools, **more})


class Seeing:
    """Runs steps and keeps what the model was sent."""

    def __init__(self, folder: Path, *steps: Any, default: RunConfig | None = None) -> None:
        self.models = QueueProvider(steps)
        self.runner = Runner(model_provider=self.models, workspace=folder, default_run_config=default)

    def run(self, who: Agent, **config: Any) -> RunResult:
        config = {"tool_registry_factory": registry, **config}
        return self.runner.run_sync(who, "Go.", run_config=RunConfig(**config))

    @property
    def requests(self) -> list[ModelRequest]:
        return self.models.model.requests


@pytest.mark.parametrize("case", FIXTURE["cases"], ids=lambda case: case["name"])
def test_a_case_through_the_runner(case: dict[str, Any], tmp_path: Path) -> None:
    with CASES.run(case["name"]):
        results = {r["tool_call_id"]: r["content"] for step in case["steps"] for r in step.get("tool_results", ())}

        @function_tool
        def lookup() -> str:
            """Look something up."""
            return next(iter(results.values()))

        steps = [{"content": s["assistant_output"], "tool_calls": s["tool_calls"]} for s in case["steps"]]
        default = RunConfig(no_tool_policy=case["runner_default_policy"])
        seeing = Seeing(tmp_path, *steps, default=default)
        who = agent(
            lookup, no_tool_policy=case["agent_policy"], tool_use_behavior=case["tool_use_behavior"],
            stop_at_tool_names=case.get("stop_at_tool_names", ()),
        )  # fmt: skip
        raw = seeing.run(who, no_tool_policy=case["run_policy"], max_cycles=case["max_cycles"]).raw_result
        layers = (case["run_policy"], case["runner_default_policy"], case["agent_policy"], FIXTURE["framework_default"])
        hinted = any(m.content == HINT for request in seeing.requests for m in request.messages)
        seen = {
            "effective_policy": next(layer for layer in layers if layer is not None),
            "status": raw.status,
            "completion_reason": raw.completion_reason,
            "completion_tool_name": raw.completion_tool_name,
            "final_answer": raw.final_answer,
            "wait_reason": raw.wait_reason,
            "partial_output": raw.partial_output,
            "cycles": len(raw.cycles),
            "continuation_hint_emitted": hinted,
        }
        assert seen == case["expected"]
        tools = {tuple(t["function"]["name"] for t in request.tools) for request in seeing.requests}
        assert tools == {("task_finish", "ask_user", "lookup")}, "a policy changes no tool"


def test_the_values(tmp_path: Path) -> None:
    with CASES.run("policy_values"), CASES.run("completion_reason_values"):
        assert [*NoToolPolicy] == FIXTURE["policy_values"]
        assert [*CompletionReason] == FIXTURE["completion_reason_values"]


class Blocks(OutputGuardrail):
    def check(self, context: Any, result: AgentResult) -> GuardrailResult:
        return GuardrailResult.block("blocked final output")


class Refuses(InputGuardrail):
    def check(self, context: Any, input: str) -> GuardrailResult:  # noqa: A002
        return GuardrailResult.block("not this input")


def ends_as(case: dict[str, Any], result: RunResult) -> None:
    raw = result.raw_result
    assert (raw.status, raw.completion_reason, raw.partial_output) == (
        case["expected_status"], case["expected_reason"], case["expected_partial_output"],
    )  # fmt: skip


def test_a_guardrail_comes_before_success(tmp_path: Path) -> None:
    case = PRECEDENCE["output_guardrail_overrides_natural_finish"]
    with CASES.run(case["name"]):
        seeing = Seeing(tmp_path, case["candidate_output"])
        result = seeing.run(agent(output_guardrails=[Blocks()]), no_tool_policy="finish")
        ends_as(case, result)
        assert (result.raw_result.error, result.raw_result.final_answer) == ("blocked final output", None)


def test_a_cancel_comes_before_a_failure(tmp_path: Path) -> None:
    case = PRECEDENCE["cancellation_overrides_generic_failure"]
    with CASES.run(case["name"]):
        token = CancellationToken()

        def fails(request: ModelRequest) -> Exception:
            token.cancel("enough")
            return LlmError("invalid_request", "no such model", definite=True)

        result = Seeing(tmp_path, case["candidate_output"], fails).run(agent(), cancellation_token=token)
        ends_as(case, result)
        assert result.raw_result.error == "enough"


def test_a_blocked_input_calls_no_model(tmp_path: Path) -> None:
    case = PRECEDENCE["input_guardrail_fails_before_llm"]
    with CASES.run(case["name"]):
        seeing = Seeing(tmp_path, "never")
        result = seeing.run(agent(input_guardrails=[Refuses()], model=None))
        ends_as(case, result)
        assert (result.raw_result.error, seeing.requests) == ("not this input", [])
        assert [event.type for event in result.events].count("run_failed") == 1
        nobody = Runner(workspace=tmp_path).run_sync(agent(input_guardrails=[Refuses()]), "Go.")
        assert nobody.raw_result.error == "not this input", "no model is looked for"


def test_a_failed_model_is_a_failed_result(tmp_path: Path) -> None:
    wanted = FIXTURE["ordinary_llm_failure"]
    with CASES.run("ordinary_llm_failure"):
        result = Seeing(tmp_path, LlmError("invalid_request", "no such model", definite=True)).run(agent())
        raw = result.raw_result
        assert (raw.status, raw.completion_reason, raw.completion_tool_name, raw.partial_output) == (
            wanted["status"], wanted["completion_reason"], wanted["completion_tool_name"], wanted["partial_output"],
        )  # fmt: skip
        assert [event.type for event in result.events].count(wanted["terminal_event"]) == wanted["terminal_count"]


def test_a_guardrail_that_allows_may_rewrite_the_output_only(tmp_path: Path) -> None:
    case = FIXTURE["output_guardrail_allow"]["case"]
    with CASES.run(case["name"]):

        class Redacts(OutputGuardrail):
            async def check(self, context: Any, result: AgentResult) -> GuardrailResult:
                assert result.wait_reason == case["candidate_output"]
                return GuardrailResult.allow(case["guardrail_rewrite_output"])

        step = {
            **asks("ask_user", arguments={"question": case["candidate_output"]}),
            "content": case["candidate_observation"]["partial_output"],
        }
        result = Seeing(tmp_path, step).run(agent(output_guardrails=[Redacts()]))
        assert result.final_output == case["expected_output"]
        seen = {name: getattr(result.raw_result, name) for name in case["expected_observation"]}
        assert seen == case["expected_observation"]
        assert set(FIXTURE["output_guardrail_allow"]["preserved_fields"]) == set(seen)


# Resuming an approval.

RAN: list[str] = []
CHECKED: list[str] = []


@function_tool(needs_approval=True)
def risky() -> str:
    """Do it."""
    RAN.append("risky")
    return "did it"


class Counts(OutputGuardrail):
    def check(self, context: Any, result: AgentResult) -> None:
        CHECKED.append(str(result.status))


@pytest.fixture(autouse=True)
def forget() -> None:
    RAN.clear()
    CHECKED.clear()


def waiting(folder: Path, case: dict[str, Any], **more: Any) -> tuple[Seeing, RunResult, CancellationToken]:
    token = CancellationToken()
    step = {**asks("risky"), "content": case.get("candidate_output", "")}
    seeing = Seeing(folder, step, response(asks("task_finish", arguments={"message": "ok"})))
    first = seeing.run(
        agent(risky, output_guardrails=[Counts()]), cancellation_token=token,
        max_cycles=case.get("configured_max_cycles", 3), **more,
    )  # fmt: skip
    assert first.status == "wait_user"
    return seeing, first, token


def approved(first: RunResult) -> Any:
    state = first.into_state()
    for name in state.pending_approval_ids():
        state.approve(name)
    return state


def unclaimed(first: RunResult) -> bool:
    assert first.home is not None
    return bool(open_approvals(first.home.store, first.home.key))


def test_an_approved_run_has_its_cycles_again(tmp_path: Path) -> None:
    case = RESUMES["approved_continue_uses_full_fresh_cycle_budget"]
    with CASES.run(f"approval_resume/{case['name']}"):
        seeing, first, _ = waiting(tmp_path, case)
        assert len(first.cycles) == case["source_cycles"]
        second, expected = seeing.runner.resume(approved(first)), case["expected"]
        assert second.run_id != first.run_id
        assert second.trace_id == first.trace_id
        assert (second.status, second.completion_reason) == (expected["status"], expected["completion_reason"])
        assert len(seeing.requests) == 1 + case["resumed_model_cycles"]
        assert len(second.cycles) == expected["cycles"]


@pytest.mark.parametrize(
    "name",
    [
        "approved_resume_rejects_input_before_claim",
        "pre_cancelled_approved_resume_with_input_rejects_before_cancellation",
    ],
)
def test_input_with_an_approval_is_refused_first(name: str, tmp_path: Path) -> None:
    case = RESUMES[name]
    with CASES.run(f"approval_resume/{name}"):
        seeing, first, token = waiting(tmp_path, case)
        if "cancellation_reason" in case:
            token.cancel(case["cancellation_reason"])
        with pytest.raises(ConfigError, match=case["expected"]["error"]):
            seeing.runner.resume(approved(first), input=case["resume_input"])
        assert unclaimed(first)
        assert (RAN, CHECKED) == ([], [])


def test_a_cancelled_approval_does_nothing(tmp_path: Path) -> None:
    case = RESUMES["pre_cancelled_approved_resume_has_no_side_effects"]
    with CASES.run(f"approval_resume/{case['name']}"):
        seeing, first, token = waiting(tmp_path, case)
        token.cancel(case["cancellation_reason"])
        second, expected = seeing.runner.resume(approved(first)), case["expected"]
        raw = second.raw_result
        seen = {
            "fresh_run_id": second.run_id != first.run_id,
            "status": raw.status,
            "completion_reason": raw.completion_reason,
            "completion_tool_name": raw.completion_tool_name,
            "partial_output": raw.partial_output,
            "final_output": second.final_output,
            "approval_claim_consumed": not unclaimed(first) and "approval_resolved" in [e.type for e in second.events],
            "tool_execution_count": len(RAN),
            "output_guardrail_count": len(CHECKED),
        }
        assert seen == {name: expected[name] for name in seen}
        assert second.trace_id == first.trace_id
