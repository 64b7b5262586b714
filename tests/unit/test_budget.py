from __future__ import annotations

from typing import Any

import pytest

from vv_agent._json import MAX_WIRE
from vv_agent.budget import (
    BudgetDimension,
    BudgetEnforcementBoundary,
    BudgetEvaluator,
    BudgetExhaustion,
    BudgetUsageSnapshot,
    HostCost,
    RunBudgetLimits,
    UnavailableMetricPolicy,
)
from vv_agent.errors import ConfigError
from vv_agent.usage import TokenUsage, normalize_token_usage

Boundary = BudgetEnforcementBoundary


class Meter:
    """Gives its readings in order, then the last again."""

    def __init__(self, *readings: Any) -> None:
        self._readings = list(readings)

    def read(self) -> Any:
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]


def evaluator(meter: Meter | None = None, usage: BudgetUsageSnapshot | None = None, **limits: Any) -> BudgetEvaluator:
    return BudgetEvaluator(RunBudgetLimits(**limits), clock=lambda: 0, meter=meter, usage=usage)


def tokens(total: int, uncached: int | None = None) -> TokenUsage:
    return normalize_token_usage({"total_tokens": total, "uncached_input_tokens": uncached})


def numbers(exhaustion: BudgetExhaustion | None) -> tuple[Any, ...]:
    assert exhaustion is not None
    return (str(exhaustion.dimension), str(exhaustion.reason), exhaustion.observed, exhaustion.overshoot)


def test_limits_write_all_seven_fields_with_ascending_names() -> None:
    wire = RunBudgetLimits(max_tool_calls_by_name={"search": 3, "fetch": 2}).to_wire()
    assert list(wire["max_tool_calls_by_name"]) == ["fetch", "search"]
    assert (len(wire), wire["max_total_tokens"], wire["unavailable_metric_policy"]) == (7, None, "continue_and_mark")


@pytest.mark.parametrize(
    "limits", [{"max_tool_calls": True}, {"max_tool_calls": "1"}, {"max_host_cost": 5}, {"max_cycles": 1}]
)
def test_limits_convert_nothing_and_know_no_other_field(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        RunBudgetLimits(**limits)
    assert caught.value.code == "budget_limits_invalid"


def test_a_policy_alone_limits_nothing() -> None:
    assert RunBudgetLimits(unavailable_metric_policy=UnavailableMetricPolicy.STOP).unlimited
    assert not RunBudgetLimits(max_tool_calls=0).unlimited
    assert not RunBudgetLimits(max_tool_calls_by_name={"search": 0}).unlimited


def test_a_limit_that_is_reached_stops_the_next_cycle_but_not_the_end() -> None:
    budget = evaluator(max_total_tokens=10)
    assert budget.model_called(tokens(10, 4)) is None
    assert budget.check(Boundary.TERMINAL) is None
    assert numbers(budget.check(Boundary.CYCLE_START)) == ("total_tokens", "limit_reached", 10, 0)


def test_a_model_call_may_overshoot_once() -> None:
    assert numbers(evaluator(max_total_tokens=10).model_called(tokens(12))) == ("total_tokens", "limit_exceeded", 12, 2)


def test_both_token_dimensions_are_marked_though_only_one_is_limited() -> None:
    budget = evaluator(max_total_tokens=10, unavailable_metric_policy="stop")
    assert budget.model_called(tokens(3)) is None
    assert budget.usage.uncached_input_tokens is None
    assert [str(mark.dimension) for mark in budget.usage.unavailable_dimensions] == ["uncached_input_tokens"]
    assert budget.model_called(tokens(3, 1)) is None
    assert (budget.usage.total_tokens, budget.usage.uncached_input_tokens) == (6, None)


def test_a_refused_batch_counts_nothing() -> None:
    budget = evaluator(max_tool_calls_by_name={"search": 1})
    assert budget.admit(["search", "read"]) is None
    exhaustion = budget.admit(["read", "search", "search"])
    assert numbers(exhaustion) == ("tool_calls_by_name", "limit_reached", 1, 2)
    assert exhaustion is not None
    assert (exhaustion.tool_name, exhaustion.attempted_increment) == ("search", 2)
    assert (budget.usage.tool_calls, budget.usage.tool_calls_by_name) == (2, {"read": 1, "search": 1})


def test_wall_time_is_named_before_tokens() -> None:
    budget = evaluator(max_wall_time_ms=0, max_total_tokens=0)
    assert numbers(budget.check(Boundary.CYCLE_START))[0] == "wall_time"


@pytest.mark.parametrize(
    ("readings", "reason"),
    [
        ([None], "meter_unavailable"),
        (["5"], "meter_error"),
        ([HostCost(unit="other", currency=None, amount_microunits=1)], "unit_mismatch"),
        ([HostCost(unit="credits", currency="USD", amount_microunits=1)], "currency_mismatch"),
    ],
)
def test_a_reading_that_cannot_be_compared_marks_the_dimension(readings: list[Any], reason: str) -> None:
    limit = HostCost(unit="credits", currency=None, amount_microunits=100)
    budget = evaluator(Meter(*readings), max_host_cost=limit)
    assert budget.check(Boundary.RUN_START) is None
    assert [str(mark.reason) for mark in budget.usage.unavailable_dimensions] == [reason]


def test_a_clock_that_goes_back_takes_no_time_away() -> None:
    now = [5_000_000]
    budget = BudgetEvaluator(RunBudgetLimits(max_wall_time_ms=100), clock=lambda: now[0])
    now[0] += 7_999_999
    budget.check(Boundary.RUN_START)
    now[0] = 0
    budget.check(Boundary.CYCLE_START)
    assert budget.usage.elapsed_ms == 7


def test_a_call_count_that_no_reader_keeps_stays_at_the_largest_and_is_marked() -> None:
    usage = BudgetUsageSnapshot.fresh().model_copy(update={"tool_calls": MAX_WIRE})
    budget = evaluator(usage=usage, max_tool_calls_by_name={"search": 5})
    assert budget.admit(["search"]) is None
    assert budget.usage.tool_calls == MAX_WIRE
    assert budget.usage.latched(BudgetDimension.TOOL_CALLS) is not None
    assert BudgetUsageSnapshot.from_wire(budget.usage.to_wire()) == budget.usage
