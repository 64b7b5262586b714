"""run_budget.json: the cases that need a Runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from vv_agent import Agent, CancellationToken, CheckpointConfig, NoToolPolicy, RunConfig, Runner, function_tool
from vv_agent.budget import HostCost, RunBudgetLimits
from vv_agent.checkpoint.store import open_store
from vv_agent.errors import LlmError
from vv_agent.llm.base import ModelResponse, UsageReport
from vv_agent.messages import ToolCall
from vv_agent.result import RunResult
from vv_agent.runtime import account
from vv_agent.settings import Settings
from vv_agent.testing import ScriptedProvider

DATA = load("run_budget.json")
CASES = Cases("run_budget.json runs")
SNAPSHOT = frozenset({"usage", "unavailable_dimensions", "uncached_input_tokens", "tool_calls"})


class Counted:
    """The tools of the cases, and how often one ran."""

    def __init__(self) -> None:
        self.calls = 0
        self.tools = [self._tool(name) for name in ("alpha", "beta", "search", "lookup_records")]

    def _tool(self, name: str) -> Any:
        @function_tool(name=name)
        def run() -> str:
            """Do it."""
            self.calls += 1
            return "done"

        return run


class Meter:
    """Gives the readings in order, and the last one again."""

    def __init__(self, readings: list[dict[str, Any]]) -> None:
        self._readings = [HostCost(**reading) for reading in readings]

    def read(self) -> HostCost | None:
        if not self._readings:
            return None
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]


def step(wire: dict[str, Any]) -> ModelResponse:
    calls = tuple(ToolCall(c["id"], c["name"]) for c in wire["tool_calls"])
    return ModelResponse(wire["assistant_output"], calls, usage=report(wire["usage"]))


def report(usage: dict[str, Any] | None) -> UsageReport:
    """All tokens are prompt tokens; what is not uncached was cached."""
    if usage is None:
        return UsageReport(None)
    total, uncached = usage["total_tokens"], usage["uncached_input_tokens"]
    raw = {"prompt_tokens": total, "completion_tokens": 0, "total_tokens": total}
    if uncached is None:
        return UsageReport(raw)
    return UsageReport(raw | {"prompt_tokens_details": {"cached_tokens": total - uncached}})


def run_case(case: dict[str, Any], folder: Path) -> tuple[RunResult, ScriptedProvider, Counted]:
    counted, provider = Counted(), ScriptedProvider([step(wire) for wire in case["steps"]])
    token = CancellationToken()
    if case["pre_cancelled"]:
        token.cancel("cancelled by fixture")
    config = RunConfig(
        budget_limits=RunBudgetLimits(**case["limits"]) if case["limits"] else None,
        host_cost_meter=Meter(case["host_cost_readings"]), cancellation_token=token,
    )  # fmt: skip
    policy = NoToolPolicy(case["no_tool_policy"])
    agent = Agent(name="budgeted", instructions="Work.", tools=counted.tools, no_tool_policy=policy)
    return (
        Runner(model_provider=provider, workspace=folder).run_sync(agent, "Go.", run_config=config),
        provider,
        counted,
    )


@pytest.mark.parametrize("case", DATA["runner_cases"], ids=lambda case: case["name"])
def test_a_limited_run_ends_as_the_contract_says(case: dict[str, Any], tmp_path: Path) -> None:
    result, _, counted = run_case(case, tmp_path)
    expected = case["expected"]
    raw = result.raw_result.to_wire()
    usage = result.budget_usage.to_wire() if result.budget_usage else None
    events = [event.type for event in result.events]
    with CASES.run(case["name"]):
        assert (raw["status"], raw["completion_reason"]) == (expected["status"], expected["completion_reason"])
        assert raw["error"] == expected.get("error", raw["error"])
        assert raw["partial_output"] == expected.get("partial_output", raw["partial_output"])
        assert events.count("llm_started") == expected["model_calls"]
        assert counted.calls == expected["tool_execution_count"]
        exhaustion = result.budget_exhaustion
        assert (exhaustion.to_wire() if exhaustion else None) == expected["budget_exhaustion"]
        if "budget_usage" in expected:
            assert usage == expected["budget_usage"]
        if "usage" in expected:
            assert usage is not None
            assert {name: value for name, value in usage.items() if name != "elapsed_ms"} == expected["usage"]
        for name in SNAPSHOT & expected.keys() - {"usage"}:
            assert usage is not None
            assert usage[name] == expected[name]
        if "budget_event_types" in expected:
            assert [name for name in events if name.startswith("budget")] == expected["budget_event_types"]


PRECEDENCE = {case["name"]: case for case in DATA["terminal_precedence_cases"]}
OVER = {"assistant_output": "over", "usage": {"total_tokens": 12, "uncached_input_tokens": 12}, "tool_calls": []}


def limited(steps: list[Any], folder: Path, limits: RunBudgetLimits, **config: Any) -> RunResult:
    agent = Agent(name="budgeted", instructions="Work.")
    runner = Runner(model_provider=ScriptedProvider(steps), workspace=folder)
    return runner.run_sync(agent, "Go.", run_config=RunConfig(budget_limits=limits, **config))


@pytest.mark.parametrize("name", PRECEDENCE)
def test_what_a_budget_comes_before(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, tokens = PRECEDENCE[name], RunBudgetLimits(max_total_tokens=10)
    with CASES.run(name):
        match case["conditions"]:
            case ["operation_failed", "budget_limit_exceeded"]:
                now = [0]
                monkeypatch.setattr(account, "monotonic_ns", lambda: now[0])

                def fail(request: Any) -> Any:
                    now[0] = 10_000_000
                    raise LlmError("refused", "no", definite=True)

                result = limited([fail], tmp_path, RunBudgetLimits(max_wall_time_ms=5))
            case ["budget_limit_exceeded", "tool_finish"]:
                finish = {"id": "f", "name": "task_finish", "arguments": {"message": "done"}}
                result = limited([step({**OVER, "tool_calls": [finish]})], tmp_path, tokens)
            case conditions:
                assert conditions == ["budget_limit_exceeded", "max_cycles"]
                result = limited([step(OVER)], tmp_path, tokens, max_cycles=1)
        assert result.completion_reason == case["expected_completion_reason"]


NOW = [0]


def thinks(request: Any) -> Any:
    NOW[0] += 30_000_000
    return ModelResponse("Well?", usage=UsageReport({"prompt_tokens": 3, "total_tokens": 3}))


THINKING = ScriptedProvider([thinks, thinks])


def test_what_a_resumed_run_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two active stretches of 30 ms with an hour between them, in which the run waits for its user."""
    rules = DATA["resume_semantics"]
    monkeypatch.setattr(account, "monotonic_ns", lambda: NOW[0])
    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    config = RunConfig(
        budget_limits=RunBudgetLimits(max_wall_time_ms=1000), checkpoint_config=CheckpointConfig(key="k", store=store)
    )
    runner = Runner(model_provider=THINKING, workspace=tmp_path, settings=Settings(imports=(__name__,)))
    agent = Agent(name="budgeted", instructions="Work.", no_tool_policy=NoToolPolicy.WAIT_USER)
    with CASES.run("resume_semantics"):
        first = runner.run_sync(agent, "Go.", run_config=config)
        assert first.budget_usage is not None
        assert first.budget_usage.elapsed_ms == 30
        NOW[0] += 3_600_000_000_000
        second = runner.resume("k", input="Go on.", store=store)
        assert second.budget_usage is not None
        assert (second.budget_usage.elapsed_ms, second.budget_usage.total_tokens) == (60, 6)
        assert rules["snapshot_persisted_at_operation_progress"] is True
        assert rules["cumulative_elapsed_ms_continues"] is True
        assert not any(rules[name] for name in rules if name.endswith(("_counted", "_guessed")))
    store.close()
