"""contract: run_budget.json, all but the cases that need a Runner"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from vv_agent.budget import (
    PRECEDENCE,
    BudgetDimension,
    BudgetEnforcementBoundary,
    BudgetEvaluator,
    BudgetExhaustion,
    BudgetExhaustionReason,
    BudgetUnavailableReason,
    BudgetUsageSnapshot,
    HostCost,
    RunBudgetLimits,
    UnavailableMetricPolicy,
)
from vv_agent.errors import ConfigError
from vv_agent.usage import TokenUsage, normalize_token_usage

DATA = load("run_budget.json")
LISTS = Cases("run_budget.json")
CASES = DATA["evaluator_cases"]
_Boundary = BudgetEnforcementBoundary


class Clock:
    """Monotonic nanoseconds that only move when told."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms * 1_000_000


class Meter:
    """Reads a given cost, or fails."""

    def __init__(self, error: str | None = None) -> None:
        self.cost: HostCost | None = None
        self._error = error

    def read(self) -> HostCost | None:
        if self._error is not None:
            raise RuntimeError(self._error)
        return self.cost


@pytest.mark.parametrize(
    ("kind", "name"),
    [(RunBudgetLimits, "limits"), (BudgetUsageSnapshot, "snapshot"), (BudgetExhaustion, "exhaustion")],
    ids=["limits", "snapshot", "exhaustion"],
)
def test_a_wire_example_survives_a_round_trip(kind: Any, name: str) -> None:
    wire = DATA["wire_examples"][name]
    assert kind.from_wire(wire).to_wire() == wire
    with pytest.raises((ValueError, ConfigError)):
        kind.from_wire({**wire, "future": 1})


@pytest.mark.parametrize("case", DATA["invalid_cases"], ids=lambda case: case["name"])
def test_invalid_limits_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="budget_limits_invalid"):
        RunBudgetLimits(**case["limits"])
    with pytest.raises(ConfigError, match="budget_limits_invalid"):
        RunBudgetLimits.from_wire(case["limits"])


def test_the_enums_have_the_values_of_the_contract() -> None:
    enums = {
        "dimensions": BudgetDimension,
        "boundaries": _Boundary,
        "exhaustion_reasons": BudgetExhaustionReason,
        "unavailable_reasons": BudgetUnavailableReason,
        "unavailable_metric_policies": UnavailableMetricPolicy,
    }
    assert {name: [str(item) for item in enum] for name, enum in enums.items()} == DATA["enums"]
    assert [str(item) for item in PRECEDENCE] == DATA["dimension_precedence"]


def _start(case: dict[str, Any]) -> tuple[BudgetEvaluator, Clock, Meter]:
    """An evaluator with the case's limits, stored usage and meter."""
    usage = BudgetUsageSnapshot.fresh().to_wire()
    usage |= case.get("initial_usage", {}) | case.get("source_usage", {})
    usage["elapsed_ms"] = case.get("initial_elapsed_ms", usage["elapsed_ms"])
    usage["tool_calls"] = case.get("existing_tool_calls", usage["tool_calls"])
    usage["tool_calls_by_name"] = case.get("existing_tool_calls_by_name", usage["tool_calls_by_name"])
    clock = Clock()
    meter = Meter(error=(case.get("host_meter") or {}).get("error"))
    evaluator = BudgetEvaluator(
        RunBudgetLimits(**case.get("limits", {"max_wall_time_ms": 1_000_000})),
        clock=clock,
        meter=None if "host_meter" in case and case["host_meter"] is None else meter,
        usage=BudgetUsageSnapshot.from_wire(usage),
    )
    return evaluator, clock, meter


def _act(case: dict[str, Any]) -> Iterator[BudgetExhaustion | None]:
    """Do what the case describes; the last item is the evaluator's last word."""
    evaluator, clock, meter = case["_started"]
    if "batch_tool_names" in case:
        yield evaluator.admit(case["batch_tool_names"])
    elif "llm_usage" in case:
        yield evaluator.model_called(_usage(case["llm_usage"]))
    elif "observations" in case:
        for item in case["observations"]:
            clock.ms = item["elapsed_ms"]
            meter.cost = HostCost.from_wire(item["host_cost"]) if item["host_cost"] is not None else None
            yield evaluator.check(_Boundary(item["boundary"]))
    elif "worker_segment_elapsed_ms" in case or "resumed_active_ms" in case:
        clock.ms += case.get("worker_segment_elapsed_ms", case.get("resumed_active_ms", 0))
        yield evaluator.check(_Boundary.TERMINAL)
    else:
        yield evaluator.check(_Boundary.RUN_START)
        if "terminal_exhaustion" in case["expected"]:
            yield evaluator.check(_Boundary.TERMINAL)


def _usage(llm: dict[str, Any]) -> TokenUsage:
    return normalize_token_usage(
        {"total_tokens": llm["total_tokens"], "uncached_input_tokens": llm["uncached_input_tokens"]}
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_evaluator_decides_as_the_contract_says(case: dict[str, Any]) -> None:
    started = _start(case)
    evaluator = started[0]
    decisions = list(_act({**case, "_started": started}))
    exhaustion, usage = decisions[-1], evaluator.usage.to_wire()
    assert all(decision is None for decision in decisions[:-1])
    expected = dict(case.get("expected", {}))
    if "terminal_exhaustion" in expected:
        assert expected.pop("terminal_exhaustion") == (exhaustion and exhaustion.to_wire())
    if exhaustion is None and "unavailable_reason" in expected:
        assert [mark["reason"] for mark in usage["unavailable_dimensions"]] == [expected.pop("unavailable_reason")]
    for name, value in expected.items():
        shown = exhaustion.to_wire() if exhaustion is not None and name in BudgetExhaustion.model_fields else usage
        assert shown[name] == value, name
    assert case.get("expected_elapsed_ms", usage["elapsed_ms"]) == usage["elapsed_ms"]
    assert case.get("expected_usage", usage) == usage
