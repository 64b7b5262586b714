"""runner_terminal.json: the last events of a run, and its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.runs import Host, Outcome, QueueProvider, asks
from vv_agent import (
    CancellationToken,
    CapabilityRef,
    GuardrailResult,
    MemorySession,
    OutputGuardrail,
    RunBudgetLimits,
    Runner,
    SqliteSession,
    function_tool,
)
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.errors import LlmError
from vv_agent.llm.base import ModelRequest, ModelResponse, UsageReport

FIXTURE = load("runner_terminal.json")
CASES = Cases("runner_terminal.json")
TERMINAL = ("run_completed", "run_failed", "run_cancelled")


def host(folder: Path, **more: Any) -> Host:
    return Host(MemoryStore(), folder, **{"checkpoint": None, **more})


def compare(wanted: dict[str, Any], outcome: Outcome) -> None:
    """What a scenario says of the result and the terminal event."""
    raw = outcome.ok.raw_result
    names = ("status", "completion_reason", "completion_tool_name", "partial_output", "error")
    assert {n: getattr(raw, n) for n in names if n in wanted} == {n: wanted[n] for n in names if n in wanted}
    ends = outcome.types(*TERMINAL)
    assert ends == ([wanted["terminal"]] if wanted["terminal"] else [])
    tail = wanted.get("tail", wanted.get("events_tail", []))
    assert [t for t in outcome.types() if t != "budget_snapshot"][-len(tail) :] == tail or not tail


class Blocks(OutputGuardrail):
    def check(self, context: Any, result: Any) -> GuardrailResult:
        return GuardrailResult.block(FIXTURE["output_guardrail_block"]["error"])


class Later(OutputGuardrail):
    def __init__(self) -> None:
        self.asked = 0

    def check(self, context: Any, result: Any) -> None:
        self.asked += 1


def test_success_with_a_session(tmp_path: Path) -> None:
    with CASES.run("success_with_session"):
        place = host(tmp_path, config={"session": MemorySession("s")})
        compare(FIXTURE["success_with_session"], place.run([asks("task_finish", arguments={"message": "ok"})]))


def test_a_blocked_output(tmp_path: Path) -> None:
    wanted = FIXTURE["output_guardrail_block"]
    with CASES.run("output_guardrail_block"):
        later = Later()
        place = host(tmp_path, config={"session": MemorySession("s")}, agent={"output_guardrails": [Blocks(), later]})
        compare(wanted, place.run([wanted["partial_output"]]))
        assert bool(later.asked) is wanted["later_guardrails_run"]


def test_a_cancel(tmp_path: Path) -> None:
    with CASES.run("cancellation"):
        token, later = CancellationToken(), Later()

        def cancels(request: ModelRequest) -> str:
            token.cancel("enough")
            return "too late"

        place = host(tmp_path, agent={"output_guardrails": [later]})
        outcome = place.run([cancels], cancellation_token=token)
        compare(FIXTURE["cancellation"], outcome)
        assert (outcome.ok.final_output, later.asked) == ("enough", 0)


def test_the_cycle_limit(tmp_path: Path) -> None:
    wanted = FIXTURE["max_cycles"]
    with CASES.run("max_cycles"):
        outcome = host(tmp_path, config={"no_tool_policy": "continue"}).run([wanted["partial_output"]], max_cycles=1)
        compare(wanted, outcome)


def test_the_budget(tmp_path: Path) -> None:
    wanted = FIXTURE["budget_exhausted"]
    with CASES.run("budget_exhausted"):
        later = Later()
        step = ModelResponse(wanted["partial_output"], usage=UsageReport({"total_tokens": 10}))
        place = host(tmp_path, agent={"output_guardrails": [later]})
        compare(wanted, place.run([step], budget_limits=RunBudgetLimits(max_total_tokens=5)))
        assert later.asked == 0


def test_a_run_that_waits_for_a_decision(tmp_path: Path) -> None:
    wanted = FIXTURE["reconciliation_required"]
    with CASES.run("reconciliation_required"):
        later = Later()
        refs = {"output_guardrail:0": CapabilityRef(id="tests.later", version="1")}
        place = host(tmp_path, checkpoint={"capability_refs": refs}, agent={"output_guardrails": [later]})
        outcome = place.run([LlmError("network", "lost", retryable=True)])
        compare(wanted, outcome)
        assert (place.store.look(place.key or "") is not None) is wanted["checkpoint_retained"]
        assert later.asked == 0


def test_the_order_at_the_end(tmp_path: Path) -> None:
    """There is no outbox: the terminal event is in the save of the end (DESIGN 10)."""
    with CASES.run("checkpoint_terminal_order"):
        order: list[str] = []

        class Says(OutputGuardrail):
            def check(self, context: Any, result: Any) -> None:
                order.append("output_guardrail")

        class Told(SqliteSession):
            def add_items_once(self, *given: Any, **more: Any) -> Any:
                order.append("session_add_items_once")
                return super().add_items_once(*given, **more)

        @function_tool(idempotency="supported")
        def nothing() -> str:
            """Do nothing."""
            return ""

        names = ("output_guardrail:0", "tool:0")
        refs = {name: CapabilityRef(id=f"tests.{name}", version="1") for name in names}
        place = host(
            tmp_path, tools=[nothing], checkpoint={"capability_refs": refs}, agent={"output_guardrails": [Says()]}
        )

        def see(event: Any) -> None:
            if event.type in ("session_persisted", *TERMINAL):
                order.append(
                    {"session_persisted": "session_persisted_observation"}.get(
                        event.type, "checkpoint_terminal_finalize"
                    )
                )

        store = place.store
        config = place.run_config(store, stream=see, session=Told(tmp_path / "s.db", "s"))
        runner = Runner(model_provider=QueueProvider(["done"]), workspace=tmp_path)
        assert runner.run_sync(place.make_agent(), "go", run_config=config).status == "completed"
        assert order == [step for step in FIXTURE["checkpoint_terminal_order"]["order"] if step in order]
        assert len(order) == 4
        assert store.look(place.key or "") is not None, "an end is kept until it is deleted"


class Down:
    """An event store that takes nothing."""

    def append(self, event: Any) -> None:
        raise OSError("store down")

    def replay(self, run_id: str, *, include_children: bool = True) -> list[Any]:
        return []


def test_a_lost_event_store_fails_the_run_where_that_is_wanted(tmp_path: Path) -> None:
    wanted = FIXTURE["event_store_fail_closed"]
    with CASES.run("event_store_fail_closed"):
        outcome = host(tmp_path).run(["done"], event_store=Down(), event_store_fail_closed=True)
        assert (outcome.error is not None) is wanted["panics"]
        assert (outcome.ok.status, outcome.ok.raw_result.error) == ("failed", wanted["error"])
