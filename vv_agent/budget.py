"""Budgets of a run: limits, what was used, and the pure rules that admit or stop work.

Limits are optional and say nothing about the quality of an answer. A run without limits has no evaluator, no events and
no snapshot. Units: tokens, calls, milliseconds of active time, or the host's own cost unit in millionths.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Protocol, cast, runtime_checkable

from pydantic import AfterValidator, Field, ValidationError

from vv_agent._json import MAX_WIRE
from vv_agent._wire import LAX, Count, Text, Wire
from vv_agent.errors import ConfigError
from vv_agent.usage import CacheUsageStatus, TokenUsage, UsageSource

BUDGET_EXHAUSTED_ERROR = "Run budget exhausted."
"""The `error` of a result that a budget stopped."""


class BudgetDimension(StrEnum):
    """What can be limited."""

    TOTAL_TOKENS = "total_tokens"
    UNCACHED_INPUT_TOKENS = "uncached_input_tokens"
    TOOL_CALLS = "tool_calls"
    TOOL_CALLS_BY_NAME = "tool_calls_by_name"
    WALL_TIME = "wall_time"
    HOST_COST = "host_cost"


PRECEDENCE = (
    BudgetDimension.WALL_TIME,
    BudgetDimension.TOTAL_TOKENS,
    BudgetDimension.UNCACHED_INPUT_TOKENS,
    BudgetDimension.HOST_COST,
    BudgetDimension.TOOL_CALLS,
    BudgetDimension.TOOL_CALLS_BY_NAME,
)
"""Which dimension is named when several are over at the same boundary: the first one here."""


class BudgetEnforcementBoundary(StrEnum):
    """Where in a run the limits are looked at."""

    RUN_START = "run_start"
    CYCLE_START = "cycle_start"
    LLM_COMPLETE = "llm_complete"
    TOOL_BATCH_PREFLIGHT = "tool_batch_preflight"
    TOOL_BATCH_COMPLETE = "tool_batch_complete"
    TERMINAL = "terminal"


class BudgetExhaustionReason(StrEnum):
    """Why a budget stopped the run."""

    LIMIT_REACHED = "limit_reached"
    LIMIT_EXCEEDED = "limit_exceeded"
    METRIC_UNAVAILABLE = "metric_unavailable"


class BudgetUnavailableReason(StrEnum):
    """Why a dimension cannot be measured any more in this run."""

    USAGE_MISSING = "usage_missing"
    METER_MISSING = "meter_missing"
    METER_UNAVAILABLE = "meter_unavailable"
    METER_ERROR = "meter_error"
    UNIT_MISMATCH = "unit_mismatch"
    CURRENCY_MISMATCH = "currency_mismatch"
    NON_MONOTONIC = "non_monotonic"
    INTEGER_OVERFLOW = "integer_overflow"


class UnavailableMetricPolicy(StrEnum):
    """What to do when a limited dimension cannot be measured: go on and say so, or stop the run."""

    CONTINUE_AND_MARK = "continue_and_mark"
    STOP = "stop"


def _ascending(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))


CallsByName = Annotated[dict[Text, Count], AfterValidator(_ascending)]


class HostCost(Wire):
    """A cost in the host's unit, for example `HostCost(unit="currency", currency="USD", amount_microunits=250_000)`."""

    unit: Text
    currency: Text | None
    amount_microunits: Count


@runtime_checkable
class HostCostMeter(Protocol):
    """The host's own account of what the run has cost so far."""

    def read(self) -> HostCost | None:
        """The total so far, never falling; None when it is not known now. May raise: that marks the dimension."""
        ...


class RunBudgetLimits(Wire):
    """Optional limits of a run; wrong values raise `ConfigError` with code `budget_limits_invalid`.

    Without any limit (a policy alone is none) the run is unlimited. The wire form always has all seven fields.
    """

    max_total_tokens: Count | None = None
    max_uncached_input_tokens: Count | None = None
    max_tool_calls: Count | None = None
    max_tool_calls_by_name: CallsByName = Field(default_factory=dict)
    max_wall_time_ms: Count | None = None
    max_host_cost: HostCost | None = None
    unavailable_metric_policy: Annotated[UnavailableMetricPolicy, LAX] = UnavailableMetricPolicy.CONTINUE_AND_MARK

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError("budget_limits_invalid", f"RunBudgetLimits: {error}") from error

    @property
    def unlimited(self) -> bool:
        """No dimension is limited."""
        return all(self.limit(dimension) is None for dimension in BudgetDimension)

    def limit(self, dimension: BudgetDimension) -> int | None:
        """The limit of a dimension in its unit; for the calls by name the smallest of them."""
        match dimension:
            case BudgetDimension.TOOL_CALLS_BY_NAME:
                return min(self.max_tool_calls_by_name.values(), default=None)
            case BudgetDimension.WALL_TIME:
                return self.max_wall_time_ms
            case BudgetDimension.HOST_COST:
                return self.max_host_cost.amount_microunits if self.max_host_cost else None
            case _:
                return cast("int | None", getattr(self, f"max_{dimension}"))

    def exceed(self, held: RunBudgetLimits) -> bool:
        """Some dimension has a higher limit than `held` gives it, or none any more."""
        mine, theirs = (
            {**{d: limits.limit(d) for d in BudgetDimension if d is not BudgetDimension.TOOL_CALLS_BY_NAME},
             **limits.max_tool_calls_by_name}
            for limits in (self, held)
        )  # fmt: skip
        return any(old is not None and ((new := mine.get(name)) is None or new > old) for name, old in theirs.items())

    def unit(self, dimension: BudgetDimension) -> str:
        """tokens, calls, milliseconds, or the unit of the host cost."""
        if dimension is BudgetDimension.HOST_COST and self.max_host_cost is not None:
            return self.max_host_cost.unit
        return _UNITS[dimension]

    def currency(self, dimension: BudgetDimension) -> str | None:
        """The currency of the host cost; None for every other dimension."""
        is_cost = dimension is BudgetDimension.HOST_COST
        return self.max_host_cost.currency if is_cost and self.max_host_cost is not None else None


_UNITS = {
    BudgetDimension.TOTAL_TOKENS: "tokens",
    BudgetDimension.UNCACHED_INPUT_TOKENS: "tokens",
    BudgetDimension.TOOL_CALLS: "calls",
    BudgetDimension.TOOL_CALLS_BY_NAME: "calls",
    BudgetDimension.WALL_TIME: "milliseconds",
    BudgetDimension.HOST_COST: "microunits",
}


class BudgetUnavailableDimension(Wire):
    """A dimension that could not be measured at some point of the run, latched from then on."""

    dimension: Annotated[BudgetDimension, LAX]
    reason: Annotated[BudgetUnavailableReason, LAX]
    expected_unit: str | None
    observed_unit: str | None
    expected_currency: str | None
    observed_currency: str | None


class BudgetUsageSnapshot(Wire):
    """What a run has used: stored with its record, shown on its result, continued after a resume.

    Token sums are None once a part of them was not reported, `host_cost` is None when not limited or not known.
    """

    cycles: Count
    total_tokens: Count | None
    uncached_input_tokens: Count | None
    tool_calls: Count
    tool_calls_by_name: CallsByName
    elapsed_ms: Count
    host_cost: HostCost | None
    unavailable_dimensions: Annotated[tuple[BudgetUnavailableDimension, ...], LAX]

    @classmethod
    def fresh(cls) -> BudgetUsageSnapshot:
        """Nothing used yet."""
        return cls(
            cycles=0,
            total_tokens=0,
            uncached_input_tokens=0,
            tool_calls=0,
            tool_calls_by_name={},
            elapsed_ms=0,
            host_cost=None,
            unavailable_dimensions=(),
        )

    def beyond(self, before: BudgetUsageSnapshot) -> BudgetUsageSnapshot:
        """What was used of tokens, calls and time since an earlier snapshot of the same run."""

        def more(name: str) -> int | None:
            now, then = getattr(self, name), getattr(before, name)
            return None if now is None or then is None else max(0, now - then)

        amounts = {name: more(name) for name in ("total_tokens", "uncached_input_tokens", "elapsed_ms", "tool_calls")}
        calls = Counter(self.tool_calls_by_name) - Counter(before.tool_calls_by_name)
        return self.model_copy(update={**amounts, "tool_calls_by_name": dict(calls)})

    def latched(self, dimension: BudgetDimension) -> BudgetUnavailableDimension | None:
        """The mark of a dimension that is not measured any more."""
        return next((mark for mark in self.unavailable_dimensions if mark.dimension is dimension), None)

    def observed(self, dimension: BudgetDimension) -> int | None:
        """The used amount; the calls by name have one each and give None here."""
        match dimension:
            case BudgetDimension.TOOL_CALLS_BY_NAME:
                return None
            case BudgetDimension.WALL_TIME:
                return self.elapsed_ms
            case BudgetDimension.HOST_COST:
                return self.host_cost.amount_microunits if self.host_cost else None
            case _:
                return cast("int | None", getattr(self, dimension))


class BudgetExhaustion(Wire):
    """Which limit stopped the run, where, and by how much."""

    dimension: Annotated[BudgetDimension, LAX]
    tool_name: Text | None
    reason: Annotated[BudgetExhaustionReason, LAX]
    limit: Count
    observed: Count | None
    attempted_increment: Count | None
    overshoot: Count | None
    unit: Text
    currency: Text | None
    enforcement_boundary: Annotated[BudgetEnforcementBoundary, LAX]
    unavailable_reason: Annotated[BudgetUnavailableReason, LAX] | None


_B, _D = BudgetEnforcementBoundary, BudgetDimension
_REACHED, _EXCEEDED = BudgetExhaustionReason.LIMIT_REACHED, BudgetExhaustionReason.LIMIT_EXCEEDED

_CHECKS: dict[BudgetEnforcementBoundary, tuple[BudgetExhaustionReason, tuple[BudgetDimension, ...]]] = {
    _B.RUN_START: (_REACHED, (_D.WALL_TIME, _D.HOST_COST)),
    _B.CYCLE_START: (_REACHED, (_D.WALL_TIME, _D.TOTAL_TOKENS, _D.UNCACHED_INPUT_TOKENS, _D.HOST_COST)),
    _B.LLM_COMPLETE: (_EXCEEDED, (_D.WALL_TIME, _D.TOTAL_TOKENS, _D.UNCACHED_INPUT_TOKENS, _D.HOST_COST)),
    _B.TOOL_BATCH_PREFLIGHT: (_REACHED, (_D.WALL_TIME, _D.HOST_COST)),
    _B.TOOL_BATCH_COMPLETE: (_EXCEEDED, (_D.WALL_TIME, _D.HOST_COST)),
    _B.TERMINAL: (_EXCEEDED, PRECEDENCE),
}
"""Boundary -> (comparison, dimensions in order of precedence). Reached is observed >= limit, exceeded is >."""

_COMPARE = {_REACHED: operator.ge, _EXCEEDED: operator.gt}


def _cost_problem(cost: Any, limit: HostCost, last: HostCost | None) -> BudgetUnavailableReason | None:
    """Why a reading of the meter cannot be compared with the limit and the last reading."""
    if cost is None:
        return BudgetUnavailableReason.METER_UNAVAILABLE
    if not isinstance(cost, HostCost):
        return BudgetUnavailableReason.METER_ERROR
    if cost.unit != limit.unit:
        return BudgetUnavailableReason.UNIT_MISMATCH
    if cost.currency != limit.currency:
        return BudgetUnavailableReason.CURRENCY_MISMATCH
    if last is not None and cost.amount_microunits < last.amount_microunits:
        return BudgetUnavailableReason.NON_MONOTONIC
    return None


class BudgetEvaluator:
    """Accounts for one active stretch of a limited run and says when it must stop.

    `clock` reads monotonic nanoseconds; the time since construction is added to the stored `elapsed_ms`, so waits and
    down-time between two evaluators are not counted. `usage` is the present snapshot, replaced at each boundary. Each
    verb observes first, then gives the exhaustion that stops the run, or None. One thread at a time.
    """

    def __init__(
        self,
        limits: RunBudgetLimits,
        *,
        clock: Callable[[], int],
        meter: HostCostMeter | None = None,
        usage: BudgetUsageSnapshot | None = None,
    ) -> None:
        self.limits = limits
        self.usage = usage or BudgetUsageSnapshot.fresh()
        self._clock = clock
        self._meter = meter
        self._started_ns = clock()
        self._elapsed_before_ms = self.usage.elapsed_ms

    def check(self, boundary: BudgetEnforcementBoundary) -> BudgetExhaustion | None:
        """run_start, cycle_start, tool_batch_complete and terminal; the other two have verbs of their own."""
        self.observe()
        return self._unavailable(boundary) or self._over(boundary)

    def model_called(self, usage: TokenUsage) -> BudgetExhaustion | None:
        """llm_complete: one more cycle, and its tokens. A call is atomic, so it may overshoot once."""
        self._replace(cycles=self.usage.cycles + 1)
        return self.tokens_used(usage)

    def tokens_used(self, usage: TokenUsage) -> BudgetExhaustion | None:
        """The tokens of a model call that is no cycle of its own: a summary, an extraction."""
        reported = usage.usage_source is not UsageSource.ACCOUNTING_MISSING
        self._add_tokens(_D.TOTAL_TOKENS, usage.total_tokens if reported else None)
        cached = usage.cache_usage.status is CacheUsageStatus.PROVIDER_REPORTED
        self._add_tokens(_D.UNCACHED_INPUT_TOKENS, usage.cache_usage.uncached_input_tokens if cached else None)
        return self.check(_B.LLM_COMPLETE)

    def admit(self, tool_names: Sequence[str]) -> BudgetExhaustion | None:
        """tool_batch_preflight: all calls of the batch are counted, or (when it must stop) none of them."""
        exhaustion = self.check(_B.TOOL_BATCH_PREFLIGHT) or self._refused(tool_names)
        if exhaustion is None:
            self._add_calls(tool_names)
        return exhaustion

    def left(self) -> RunBudgetLimits:
        """Limits of what is left, for a run below: no host cost, whose meter is this run's alone."""
        limits, usage = self.limits, self.usage
        used = {
            "max_total_tokens": usage.total_tokens, "max_uncached_input_tokens": usage.uncached_input_tokens,
            "max_tool_calls": usage.tool_calls, "max_wall_time_ms": usage.elapsed_ms,
        }  # fmt: skip
        rest = {
            name: max(0, limit - (amount or 0))
            for name, amount in used.items()
            if (limit := getattr(limits, name)) is not None
        }
        by_name = {
            name: max(0, limit - usage.tool_calls_by_name.get(name, 0))
            for name, limit in limits.max_tool_calls_by_name.items()
        }
        return RunBudgetLimits(
            **rest, max_tool_calls_by_name=by_name, unavailable_metric_policy=limits.unavailable_metric_policy
        )

    def absorb(self, other: BudgetUsageSnapshot) -> None:
        """Add what a run below has used."""
        self.observe()
        for dimension in (_D.TOTAL_TOKENS, _D.UNCACHED_INPUT_TOKENS):
            self._add_tokens(dimension, other.observed(dimension))
        self._add_calls(list(Counter(other.tool_calls_by_name).elements()))
        if not self.usage.latched(_D.WALL_TIME):
            self._elapsed_before_ms = min(self._elapsed_before_ms + other.elapsed_ms, MAX_WIRE)
            self.observe()

    def observe(self) -> None:
        """Bring `elapsed_ms` and the host cost up to now."""
        if not self.usage.latched(_D.WALL_TIME):
            active = (self._clock() - self._started_ns) // 1_000_000
            elapsed = max(self.usage.elapsed_ms, self._elapsed_before_ms + active)
            if elapsed > MAX_WIRE:
                self._latch(_D.WALL_TIME, BudgetUnavailableReason.INTEGER_OVERFLOW)
            else:
                self._replace(elapsed_ms=elapsed)
        if self.limits.max_host_cost is not None and not self.usage.latched(_D.HOST_COST):
            self._observe_cost(self.limits.max_host_cost)

    def _observe_cost(self, limit: HostCost) -> None:
        """Look at the meter once. The text of its errors is not copied: it may hold secrets of the host."""
        cost: HostCost | None = None
        if self._meter is None:
            reason: BudgetUnavailableReason | None = BudgetUnavailableReason.METER_MISSING
        else:
            try:
                cost = self._meter.read()
            except Exception:
                reason = BudgetUnavailableReason.METER_ERROR
            else:
                reason = _cost_problem(cost, limit, self.usage.host_cost)
        if reason is None:
            self._replace(host_cost=cost)
        else:
            self._replace(host_cost=None)
            self._latch(_D.HOST_COST, reason, cost if isinstance(cost, HostCost) else None)

    def _add_tokens(self, dimension: BudgetDimension, tokens: int | None) -> None:
        if self.usage.latched(dimension):
            return
        total = None if tokens is None else (self.usage.observed(dimension) or 0) + tokens
        if total is None:
            self._latch(dimension, BudgetUnavailableReason.USAGE_MISSING)
        elif total > MAX_WIRE:
            total = None
            self._latch(dimension, BudgetUnavailableReason.INTEGER_OVERFLOW)
        self._replace(**{dimension.value: total})

    def _add_calls(self, tool_names: Sequence[str]) -> None:
        """Count admitted calls. Counts have no unknown value: one that no reader keeps exactly stays at the largest."""
        by_name = Counter(self.usage.tool_calls_by_name)
        by_name.update(tool_names)
        total = self.usage.tool_calls + len(tool_names)
        if total > MAX_WIRE:
            self._latch(_D.TOOL_CALLS, BudgetUnavailableReason.INTEGER_OVERFLOW)
        if any(count > MAX_WIRE for count in by_name.values()):
            self._latch(_D.TOOL_CALLS_BY_NAME, BudgetUnavailableReason.INTEGER_OVERFLOW)
        self._replace(
            tool_calls=min(total, MAX_WIRE),
            tool_calls_by_name=_ascending({name: min(count, MAX_WIRE) for name, count in by_name.items()}),
        )

    def _latch(self, dimension: BudgetDimension, reason: BudgetUnavailableReason, cost: HostCost | None = None) -> None:
        if self.usage.latched(dimension):
            return
        mark = BudgetUnavailableDimension(
            dimension=dimension,
            reason=reason,
            expected_unit=self.limits.unit(dimension),
            observed_unit=cost.unit if cost else None,
            expected_currency=self.limits.currency(dimension),
            observed_currency=cost.currency if cost else None,
        )
        marks = sorted((*self.usage.unavailable_dimensions, mark), key=lambda item: PRECEDENCE.index(item.dimension))
        self._replace(unavailable_dimensions=tuple(marks))

    def _replace(self, **changes: Any) -> None:
        self.usage = self.usage.model_copy(update=changes)

    def _unavailable(self, boundary: BudgetEnforcementBoundary) -> BudgetExhaustion | None:
        if self.limits.unavailable_metric_policy is UnavailableMetricPolicy.CONTINUE_AND_MARK:
            return None
        for mark in self.usage.unavailable_dimensions:
            if (limit := self.limits.limit(mark.dimension)) is not None:
                return self._exhaustion(
                    boundary,
                    mark.dimension,
                    BudgetExhaustionReason.METRIC_UNAVAILABLE,
                    limit=limit,
                    observed=None,
                    overshoot=None,
                    unavailable_reason=mark.reason,
                )
        return None

    def _over(self, boundary: BudgetEnforcementBoundary) -> BudgetExhaustion | None:
        reason, dimensions = _CHECKS[boundary]
        for dimension in dimensions:
            for tool_name, limit, observed in self._amounts(dimension):
                if _COMPARE[reason](observed, limit):
                    overshoot = 0 if reason is _REACHED else observed - limit
                    return self._exhaustion(
                        boundary, dimension, reason, tool_name, limit=limit, observed=observed, overshoot=overshoot
                    )
        return None

    def _amounts(self, dimension: BudgetDimension) -> Iterable[tuple[str | None, int, int]]:
        """(tool name, limit, observed) of what is limited and known in a dimension."""
        if dimension is _D.TOOL_CALLS_BY_NAME:
            used = self.usage.tool_calls_by_name
            return [(name, limit, used.get(name, 0)) for name, limit in self.limits.max_tool_calls_by_name.items()]
        limit, observed = self.limits.limit(dimension), self.usage.observed(dimension)
        return [] if limit is None or observed is None else [(None, limit, observed)]

    def _refused(self, tool_names: Sequence[str]) -> BudgetExhaustion | None:
        """The call limit that the batch would pass: the total one first, then by name in ascending order."""
        batch = Counter(tool_names)
        for dimension in (_D.TOOL_CALLS, _D.TOOL_CALLS_BY_NAME):
            for tool_name, limit, observed in self._amounts(dimension):
                increment = len(tool_names) if tool_name is None else batch[tool_name]
                if increment and observed + increment > limit:
                    return self._exhaustion(
                        _B.TOOL_BATCH_PREFLIGHT,
                        dimension,
                        _REACHED,
                        tool_name,
                        limit=limit,
                        observed=observed,
                        attempted_increment=increment,
                        overshoot=observed + increment - limit,
                    )
        return None

    def _exhaustion(
        self,
        boundary: BudgetEnforcementBoundary,
        dimension: BudgetDimension,
        reason: BudgetExhaustionReason,
        tool_name: str | None = None,
        *,
        limit: int,
        observed: int | None,
        overshoot: int | None,
        attempted_increment: int | None = None,
        unavailable_reason: BudgetUnavailableReason | None = None,
    ) -> BudgetExhaustion:
        return BudgetExhaustion(
            dimension=dimension,
            tool_name=tool_name,
            reason=reason,
            limit=limit,
            observed=observed,
            attempted_increment=attempted_increment,
            overshoot=overshoot,
            unit=self.limits.unit(dimension),
            currency=self.limits.currency(dimension),
            enforcement_boundary=boundary,
            unavailable_reason=unavailable_reason,
        )
