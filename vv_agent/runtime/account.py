"""The account of a limited run: what it has used, checked at the boundaries of spec 16 and kept with its record."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from vv_agent.budget import (
    BudgetEnforcementBoundary,
    BudgetEvaluator,
    BudgetExhaustion,
    BudgetUsageSnapshot,
    HostCostMeter,
    RunBudgetLimits,
)
from vv_agent.results import AgentStatus, CompletionReason
from vv_agent.runtime.output import Stop, usage_of

if TYPE_CHECKING:
    from vv_agent.runtime.run import Run
    from vv_agent.usage import TokenUsage

_B = BudgetEnforcementBoundary
_ALWAYS = frozenset({_B.RUN_START, _B.LLM_COMPLETE, _B.TOOL_BATCH_PREFLIGHT})
"""Boundaries that show a snapshot even when nothing changed."""
EXHAUSTED = Stop(AgentStatus.FAILED, CompletionReason.BUDGET_EXHAUSTED, error="Run budget exhausted.")


class Exhausted(Exception):
    """A limit stops the run. Leaves no cycle."""


class Account:
    """What a run has used, over all its claims; time between two claims is not counted.

    `cycle` is the last one whose model call was counted, `admitted` the last one whose batch of calls was.
    """

    def __init__(self, limits: RunBudgetLimits, stored: Mapping[str, Any], meter: HostCostMeter | None) -> None:
        if "limits" in stored:
            limits = RunBudgetLimits.from_wire(stored["limits"])
        usage = BudgetUsageSnapshot.from_wire(stored["usage"]) if "usage" in stored else None
        self._meter = meter
        self._evaluator = BudgetEvaluator(limits, clock=monotonic_ns, meter=meter, usage=usage)
        self._raised = "limits" in stored
        self._fresh = usage is None
        self._cycle: int = stored.get("cycle", 0)
        self._admitted: int = stored.get("admitted", 0)
        self.exhaustion: dict[str, Any] | None = stored.get("exhaustion")
        self._waiting: dict[str, dict[str, Any]] = dict(stored.get("waiting", {}))
        """What runs below that wait for somebody have used, by key."""

    @property
    def usage(self) -> dict[str, Any]:
        """The snapshot on the wire."""
        return self._evaluator.usage.to_wire()

    def stored(self) -> dict[str, Any]:
        self._evaluator.observe()
        kept: dict[str, Any] = {"usage": self.usage, "cycle": self._cycle, "admitted": self._admitted}
        if self._raised:
            kept["limits"] = self._evaluator.limits.to_wire()
        if self._waiting:
            kept["waiting"] = self._waiting
        return kept if self.exhaustion is None else {**kept, "exhaustion": self.exhaustion}

    def raise_to(self, limits: RunBudgetLimits) -> None:
        """Go on under other limits, with what was used."""
        self._evaluator.observe()
        usage = self._evaluator.usage
        self._evaluator = BudgetEvaluator(limits, clock=monotonic_ns, meter=self._meter, usage=usage)
        self._raised, self.exhaustion = True, None

    def for_child(self) -> dict[str, Any]:
        """What a run below begins with: limits of what is left."""
        self._evaluator.observe()
        return {"limits": self._evaluator.left().to_wire()}

    def add_child(self, key: str, usage: Mapping[str, Any], *, goes_on: bool) -> None:
        """Count what a run below has used beyond what it told before: one that waits for somebody may go on."""
        used, before = BudgetUsageSnapshot.from_wire(usage), self._waiting.pop(key, None)
        self._evaluator.absorb(used if before is None else used.beyond(BudgetUsageSnapshot.from_wire(before)))
        if goes_on:
            self._waiting[key] = dict(usage)

    # The boundaries, in the order of a cycle. Each may raise `Exhausted`.

    def begin(self, run: Run) -> None:
        if self._fresh:
            self._fresh = False
            self._pass(run, _B.RUN_START)

    def before_model(self, run: Run) -> None:
        self._pass(run, _B.CYCLE_START)

    def after_model(self, run: Run) -> None:
        """Count the open cycle's model call, once."""
        if run.turn is not None and self._cycle < run.cycle:
            self._cycle = run.cycle
            before, usage = self._evaluator.usage, usage_of(run.turn)
            self._show(run, _B.LLM_COMPLETE, before, self._evaluator.model_called(usage))

    def after_aside(self, run: Run, usage: TokenUsage) -> None:
        """Count a model call beside the turn, when its receipt is logged."""
        before = self._evaluator.usage
        self._show(run, _B.LLM_COMPLETE, before, self._evaluator.tokens_used(usage))

    def before_tools(self, run: Run) -> None:
        """Admit the whole batch of the open cycle, or none of it; once."""
        if run.turn is not None and run.turn.calls and self._admitted < run.cycle:
            before = self._evaluator.usage
            self._show(run, _B.TOOL_BATCH_PREFLIGHT, before, self._evaluator.admit([c.name for c in run.turn.calls]))
            self._admitted = run.cycle

    def after_tools(self, run: Run) -> None:
        if run.turn is not None and run.turn.calls:
            self._pass(run, _B.TOOL_BATCH_COMPLETE)

    def at_end(self, run: Run) -> None:
        self._pass(run, _B.TERMINAL)

    def _pass(self, run: Run, boundary: BudgetEnforcementBoundary) -> None:
        before = self._evaluator.usage
        self._show(run, boundary, before, self._evaluator.check(boundary))

    def _show(
        self, run: Run, boundary: BudgetEnforcementBoundary, before: BudgetUsageSnapshot, over: BudgetExhaustion | None
    ) -> None:
        fields: dict[str, Any] = {"enforcement_boundary": boundary.value, "budget_usage": self.usage}
        if over is not None:
            self.exhaustion = over.to_wire()
            run.emit("budget_exhausted", **fields, budget_exhaustion=self.exhaustion)
            raise Exhausted
        if boundary in _ALWAYS or self._evaluator.usage != before:
            run.emit("budget_snapshot", **fields)
