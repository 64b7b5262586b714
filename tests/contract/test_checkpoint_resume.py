"""checkpoint_resume.json and resume_events.jsonl: runs that were left in the middle, through the public Runner."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.runs import MODEL, TOOL, Died, Host, Outcome, asks, receipt, response
from vv_agent import CancellationToken, CapabilityRef, ToolContext, ToolOutput, function_tool
from vv_agent.budget import RunBudgetLimits
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Commit, End, Progress
from vv_agent.checkpoint.sql import SqlStore
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.event_store import MemoryRunEventStore
from vv_agent.messages import Message
from vv_agent.results import ToolExecutionResult
from vv_agent.runtime import account
from vv_agent.runtime.transcript import message_item

FIXTURE = load("checkpoint_resume.json")
EVENTS = [json.loads(line) for line in load("resume_events.jsonl") if line.strip()]
CHECKPOINT_EVENTS = frozenset(event["type"] for event in EVENTS)

CANCEL_FIRST = (
    "a run that waits for reconciliation can be cancelled, and a cancel is read before recovery; the observation is "
    "kept (DESIGN 6)"
)
SAME_KEY = (
    "an approval is decided under the run's own key, in any process (DESIGN 10); tests/scenarios/test_approvals.py"
)
PAIRS = list(zip(FIXTURE["terminal_precedence"], FIXTURE["terminal_precedence"][1:], strict=False))
CASES = Cases(
    "checkpoint_resume.json",
    differs={
        "runner_cases/approval_resume_reenters_tool_journal": SAME_KEY,
        "terminal_precedence/unresolved_ambiguous_operation>cancellation": CANCEL_FIRST,
        "fault_test_requirements/cross_language_sqlite": "storage forms are ours, no other program reads them",
    },
)  # fmt: skip


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    opened = MemoryStore() if request.param == "memory" else SqlStore(f"sqlite:///{tmp_path}/runs.db")
    yield opened
    opened.close()


class Service:
    """The outside world of a tool: it knows each effect by its key, and counts how often it was called."""

    def __init__(self, prior: Sequence[str] = (), result: dict[str, Any] | None = None) -> None:
        self.effects = list(prior)
        self.keys: list[str] = []
        self.attempts: list[int] = []
        self._result = result

    def tool(self, support: str, name: str = "write_record") -> Any:
        @function_tool(name=name, idempotency=support)
        def write_record(context: ToolContext, record_id: str = "", value: str = "") -> Any:
            """Write a record."""
            self.keys.append(context.idempotency_key)
            self.attempts.append(context.attempt)
            if context.idempotency_key not in self.effects:
                self.effects.append(context.idempotency_key)
            if self._result is None:
                return ToolOutput.text("ok")
            return ToolExecutionResult.from_wire({k: v for k, v in self._result.items() if v is not None})

        return write_record


class Counter:
    """A host's extension: it notes when it gets its state back."""

    def __init__(self, order: list[str], namespace: str, version: str, required: bool) -> None:
        self.namespace, self.version, self.required = namespace, version, required
        self.value: Any = None
        self.order = order

    def snapshot(self) -> Any:
        return self.value

    def restore(self, state: Any) -> None:
        self.order.append("restore_extension")
        self.value = state


def host_of(run: dict[str, Any], store: CheckpointStore, folder: Path, tools: Sequence[Any] = ()) -> Host:
    """The agent and configuration of a case; the strict policies where the fixture leaves them out."""
    config = dict(run["run_config"])
    checkpoint = config.pop("checkpoint_config", None)
    fields = None
    if "budget_limits" in config:
        config["budget_limits"] = RunBudgetLimits(**config["budget_limits"])
    if checkpoint is not None:
        fields = {name: value for name, value in checkpoint.items() if name not in ("key", "store")}
    key = checkpoint["key"] if checkpoint else None
    return Host(
        store, folder, tools, checkpoint=fields, key=key, agent=run["agent"], config=config, text=run["input"]
    )  # fmt: skip


def seed(host: Host, run: dict[str, Any]) -> None:
    """The record a case begins with."""
    initial, journal = run.get("initial_checkpoint") or {}, run.get("initial_journal")
    if initial.get("terminal_result"):
        result = initial["terminal_result"]
        reason = {"completed": "no_tool_finish"}.get(result["status"], result["status"])
        end = {"status": result["status"], "reason": reason, "answer": result.get("final_answer")}
        host.seed(["e", 0, end], then=End(), status=initial["status"])
        return
    for cycle in initial.get("cycles", ()):
        said = cycle["assistant_message"]
        after = initial["messages"][[message["content"] for message in initial["messages"]].index(said) + 1 :]
        messages = [message_item(cycle["index"], Message(m["role"], m["content"])) for m in after]
        host.seed(receipt(said, cycle["index"]), *messages, then=Commit())
    if "initial_budget_usage" in run:
        host.seed(blobs={"budget": {"usage": run["initial_budget_usage"], "cycle": 0, "admitted": 0}})
    if "initial_extension_state" in run:
        host.seed(blobs={"extensions": run["initial_extension_state"]})
    if journal is None:
        return
    if journal["kind"] == "tool" and journal["state"] == "succeeded":
        result = journal.get("result") or (run.get("tool_service") or {}).get("result") or RESULT
        (step,) = made_before(run) or [asks(journal["tool_name"], call_id=journal["tool_call_id"])]
        host.seed(receipt(step), ["t", 1, 0, {k: v for k, v in result.items() if v is not None}])
        return
    entry = {"state": journal["state"], "attempt": 1}
    if journal["kind"] == "model":
        host.seed(journal={MODEL: entry | {"digest": None}})
        return
    if "idempotency_key" in journal:
        entry["key"] = journal["idempotency_key"]
    host.seed(receipt(asks(journal["tool_name"], call_id=journal["tool_call_id"])), journal={TOOL: entry})


@pytest.mark.parametrize("case", FIXTURE["runner_cases"], ids=lambda case: case["name"])
def test_a_runner_case(
    case: dict[str, Any], store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, expected = case["run"], case["expected"]
    name = f"runner_cases/{case['name']}"
    if "pending_approval" in run:
        CASES.show(name)
        return
    with CASES.run(name):
        given = run.get("tool_service", {})
        service = Service(given.get("prior_effect_keys", ()), given.get("result"))
        support = (run.get("initial_journal") or {}).get("idempotency_support", "unknown")
        host = host_of(run, store, tmp_path, [service.tool(support)])
        order: list[str] = []
        extensions = [Counter(order, **one) for one in run.get("checkpoint_extensions", ())]
        host.config = {**host.config, "checkpoint_extensions": extensions}
        seed(host, run)
        before = host.head() if host.key and host.store.load(host.key) else None
        made = made_before(run)
        if "active_elapsed_ms" in run:  # the model takes that long
            monkeypatch.setattr(account, "monotonic_ns", lambda: run["active_elapsed_ms"] * 1_000_000 * bool(order))
        steps = run.get("model_steps", ["done"] if "active_elapsed_ms" in run else ())
        outcome = host.run([noting(order, step) for step in steps[len(made) :]])
        outcome.model_calls += len(made)
        seen = observed(host, outcome, service, before)
        seen["restore_order"] = lambda: order
        seen["restored_value"] = lambda: extensions[0].value["value"]
        assert {key: seen[key]() for key in expected} == expected


def made_before(run: dict[str, Any]) -> list[Any]:
    """The model step whose answer the worker that died had: with us a tool has no receipt without its model's."""
    journal, steps = run.get("initial_journal") or {}, run.get("model_steps") or [{}]
    asked = [call["id"] for call in steps[0].get("tool_calls", [])]
    return steps[:1] if journal.get("state") == "succeeded" and journal.get("tool_call_id") in asked else []


def noting(order: list[str], step: Any) -> Any:
    """The step, noting when the model is called."""

    def answer(request: Any) -> Any:
        order.append("model_start")
        return response(step)

    return answer


def observed(host: Host, outcome: Outcome, service: Service, before: Any) -> dict[str, Any]:
    """What a case may expect, each as a function: not every run has everything."""
    result: Any = outcome.result
    return {
        "status": lambda: outcome.ok.status if outcome.error is None else "failed",
        "failure_code": lambda: outcome.code,
        "error_code": lambda: outcome.code,
        "completion_reason": lambda: result.completion_reason,
        "final_output": lambda: result.final_output,
        "checkpoint_key": lambda: result.checkpoint_key,
        "model_calls": lambda: outcome.model_calls,
        "tool_calls": lambda: len(service.keys),
        "checkpoint_events": lambda: outcome.types(*CHECKPOINT_EVENTS),
        "resume_attempt": lambda: host.head().attempt,
        "completed_cycles": lambda: len(result.cycles),
        "elapsed_ms": lambda: result.budget_usage.elapsed_ms,
        "downtime_ms_counted": lambda: result.budget_usage.elapsed_ms - 155,
        "reconciliation_wait_ms_counted": lambda: result.budget_usage.elapsed_ms - 155,
        "terminal_replayed": lambda: host.head() == before and not outcome.events,
        "operation_id_reused": lambda: {name for save in outcome.saves for name in save.journal} == {MODEL},
        "interruption_reason": lambda: outcome.event("reconciliation_required").interruption_reason,
        "checkpoint_retained": lambda: host.head().state == "parked" and host.journal()[MODEL]["state"] == "ambiguous",
        "duplicate_cost_risk_event_count": lambda: len(outcome.types("model_retry_duplicate_risk")),
        "silent_retries": lambda: len(service.keys),
        "tool_invocations": lambda: len(service.keys),
        "effects_total": lambda: len(set(service.effects)),
        "idempotency_key": lambda: service.keys[0],
    }


FAULTS = {row["id"]: row for row in FIXTURE["fault_matrix"]}
DURABLE = {
    "cycle_committed": lambda host: host.head().cycle == 2 and not host.journal(),
    "model_started": lambda host: host.journal()[MODEL]["state"] == "started",
    "tool_planned": lambda host: host.journal()[TOOL]["state"] == "planned",
    "tool_started": lambda host: host.journal()[TOOL]["state"] == "started",
    "tool_succeeded": lambda host: not host.journal() and host.head().cycle == 1,
    "terminal_committed": lambda host: host.head().state == "ended",
}
RESULT = {"tool_call_id": "call_1", "content": "ok", "status_code": "SUCCESS", "directive": "continue"}


def interrupt(point: str, host: Host, service: Service) -> None:
    """Stop a run at a point of the fault matrix."""
    match point:
        case "before_model_intent":
            host.tools = [service.tool("supported")]
            host.run([asks()], die_at=("store.save.progress", "before", 3))
            service.keys.clear()
        case "after_model_started_before_provider_response":
            host.run([Died("while the model answers")])
        case "after_provider_response_before_model_receipt":
            host.run(["done"], die_at=("store.save.end", "before", 1))
        case "after_tool_planned_before_started":
            host.seed(receipt(asks()), journal={TOOL: {"state": "planned", "attempt": 1}})
        case "after_tool_started_and_side_effect_before_receipt":
            died = host.run([asks()], die_at=("store.save.commit", "before", 1))
            assert isinstance(died.error, Died)
            assert service.keys
            service.keys.clear()
        case "after_tool_receipt_before_cycle_commit":
            host.seed(receipt(asks()), ["t", 1, 0, RESULT])
        case "after_cycle_commit_before_scheduler_ack":
            host.run([asks()], die_at=("store.save.commit", "after", 1))
            service.keys.clear()
        case "after_terminal_commit_before_terminal_ack":
            host.run(["done"], die_at=("store.save.end", "after", 1))
        case _:
            raise ValueError(f"the fault matrix has a point {point} that no test reaches")


def resumed(expected: str, host: Host, service: Service, steps: Sequence[Any]) -> Outcome:
    """Go on after a fault, and check what the matrix says about it."""
    outcome = host.run(steps)
    calls = (outcome.model_calls, len(service.keys))
    match expected:
        case "invoke_model" | "next_cycle":
            assert (outcome.ok.status, calls) == ("completed", (1, 0))
        case "invoke_tool":
            assert (outcome.ok.status, calls) == ("completed", (1, 1))
        case "reconciliation_required" | "policy_or_reconciliation":
            assert (outcome.ok.status, calls) == ("reconciliation_required", (0, 0))
        case "replay_receipt":
            assert (outcome.ok.status, calls) == ("completed", (1, 0))
            replayed = [event for event in outcome.events if event.type == "operation_replayed"]
            assert [event.operation_kind for event in replayed] == ["model", "tool"]
        case "replay_terminal":
            assert (outcome.ok.status, calls, outcome.events) == ("completed", (0, 0), [])
        case _:
            raise ValueError(f"the fault matrix resumes by {expected}, which no test checks")
    return outcome


@pytest.mark.parametrize("name", list(FAULTS))
def test_the_fault_matrix(name: str, store: CheckpointStore, tmp_path: Path) -> None:
    row = FAULTS[name]
    with CASES.run(f"fault_matrix/{name}"):
        service = Service()
        host = Host(store, tmp_path, [service.tool("unknown")])
        interrupt(row["point"], host, service)
        assert DURABLE[row["durable_state"]](host)
        outcome = resumed(row["resume"], host, service, ["done"])
        assert bool(outcome.types("operation_ambiguous", "model_retry_duplicate_risk")) is row["ambiguity"]


def test_a_policy_repeats_a_started_call_of_a_repeatable_tool_with_its_key(
    store: CheckpointStore, tmp_path: Path
) -> None:
    service = Service()
    policy = {"ambiguous_tool_policy": "retry_idempotent_only"}
    host = Host(store, tmp_path, [service.tool("supported")], checkpoint=policy)
    died = host.run([asks()], die_at=("store.save.commit", "before", 1))
    assert isinstance(died.error, Died)
    assert host.run(["done"]).ok.status == "completed"
    assert (len(service.keys), len(set(service.keys)), len(service.effects)) == (2, 1, 1)


@pytest.mark.parametrize(("high", "low"), PAIRS)
def test_what_comes_first(high: str, low: str, store: CheckpointStore, tmp_path: Path) -> None:
    name = f"terminal_precedence/{high}>{low}"
    with CASES.run(name):
        service = Service()
        host = Host(store, tmp_path, [service.tool("unknown")])
        started = {TOOL: {"state": "started", "attempt": 1}}
        if (high, low) == ("committed_terminal", "live_claim"):
            host.run(["done"])
            assert host.head().token is None, "a terminal never has a claim"
            assert host.run().ok.final_output == "done"
        elif (high, low) == ("live_claim", "unresolved_ambiguous_operation"):
            host.seed(receipt(asks()), journal=started, then=Progress())
            assert host.run().code == "checkpoint_claim_active"
            assert host.journal() == started
        elif (high, low) == ("cancellation", "budget_exhaustion"):
            host.config = {**host.config, "budget_limits": RunBudgetLimits(max_wall_time_ms=0)}
            assert host.run(["done"], cancellation_token=cancelled()).ok.completion_reason == "cancelled"
        elif (high, low) == ("budget_exhaustion", "business_terminal"):
            host.config = {**host.config, "budget_limits": RunBudgetLimits(max_total_tokens=1)}
            step = {"content": "done", "raw": {"usage": {"prompt_tokens": 5, "total_tokens": 5}}}
            assert host.run([step]).ok.completion_reason == "budget_exhausted"
        else:
            assert (high, low) == ("unresolved_ambiguous_operation", "cancellation")
            host.seed(receipt(asks()), journal=started)
            assert host.run(cancellation_token=cancelled()).ok.status == "reconciliation_required"


def cancelled() -> CancellationToken:
    token = CancellationToken()
    token.cancel("not wanted any more")
    return token


@pytest.mark.parametrize("parked_before", [True, False])
def test_a_run_whose_call_is_unknown_can_be_cancelled_and_keeps_the_observation(
    parked_before: bool, store: CheckpointStore, tmp_path: Path
) -> None:
    host = Host(store, tmp_path, [Service().tool("unknown")])
    host.seed(receipt(asks()), journal={TOOL: {"state": "started", "attempt": 1}})
    if parked_before:
        assert host.run().ok.status == "reconciliation_required"
    result = host.run(cancellation_token=cancelled()).ok
    assert (result.status, result.completion_reason) == ("failed", "cancelled")
    assert result.resume_observation is not None
    assert result.resume_observation.operation_id == TOOL
    assert result.messages[-1].tool_call_id == "call_1", "each call has one result"


def requirement(name: str, *, wanted: bool = True) -> Any:
    assert FIXTURE["fault_test_requirements"][name] is wanted
    return CASES.run(f"fault_test_requirements/{name}")


def test_a_resumed_run_is_the_run_that_was_never_stopped(store: CheckpointStore, tmp_path: Path) -> None:
    with requirement("preserve_messages_cycles_usage_budget"), requirement("deterministic_fault_injector"):
        steps = [
            {**asks(), "raw": {"usage": {"prompt_tokens": 12, "completion_tokens": 8, "total_tokens": 20}}},
            "done",
        ]
        limits = {"budget_limits": RunBudgetLimits(max_total_tokens=1000)}
        whole = Host(store, tmp_path, [Service().tool("supported")], key="whole", config=limits).run(steps).ok
        host = Host(store, tmp_path, [Service().tool("supported")], config=limits)
        stopped = host.run(steps, die_at=("store.save.commit", "after", 1))
        assert str(stopped.error) == "store.save.commit:after:1"
        parts = host.run(steps[1:]).ok
        assert parts.messages == whole.messages
        assert parts.cycles == whole.cycles
        assert parts.token_usage == whole.token_usage
        assert whole.budget_usage is not None
        assert parts.budget_usage == whole.budget_usage.model_copy(update={"elapsed_ms": parts.budget_usage.elapsed_ms})
    CASES.show("fault_test_requirements/cross_language_sqlite")


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("verb", ["store.save.progress", "store.save.commit", "store.save.end"])
def test_an_event_store_that_knows_an_event_again_has_each_once(tmp_path: Path, verb: str, side: str) -> None:
    with requirement("event_dedupe_with_idempotent_store"):
        kept = MemoryRunEventStore()
        host = Host(MemoryStore(), tmp_path, [Service().tool("supported")], checkpoint={
            "ambiguous_model_policy": "retry_with_duplicate_risk",
            "ambiguous_tool_policy": "retry_idempotent_only",
            "capability_refs": {"event_store": CapabilityRef(id="tests.events", version="1")},
        }, config={"event_store": kept})  # fmt: skip
        assert isinstance(host.run([asks(), "done"], die_at=(verb, side, 1)).error, Died)
        result = host.run([asks(), "done"] if verb != "store.save.end" else ["done"]).ok
        assert result.status == "completed"
        ids = [event.event_id for event in kept.replay(result.run_id)]
        assert len(ids) == len(set(ids))
        assert [event.type for event in kept.replay(result.run_id)].count("run_completed") == 1


def test_a_process_that_is_killed_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    with requirement("process_sigkill_canary"):
        program = (
            "import os, signal, sys; from pathlib import Path; from tests.runs import Host, asks;"
            "from vv_agent.checkpoint.sql import SqlStore;"
            "host = Host(SqlStore(sys.argv[1]), Path(sys.argv[2]));"
            "host.run([lambda request: os.kill(os.getpid(), signal.SIGKILL)])"
        )
        killed = subprocess.run([sys.executable, "-c", program, url, str(tmp_path)], check=False, timeout=60)
        assert killed.returncode == -signal.SIGKILL
        store = SqlStore(url)
        host = Host(store, tmp_path)
        assert host.journal()[MODEL]["state"] == "started"
        parked = host.run()
        assert (parked.ok.status, host.head().attempt) == ("reconciliation_required", 2)
        store.close()


def test_of_two_that_resume_at_once_one_goes_on(store: CheckpointStore, tmp_path: Path) -> None:
    with requirement("barrier_for_store_races"), requirement("sleep_only_fault_timing", wanted=False):
        service = Service()
        host = Host(store, tmp_path, [service.tool("unknown")])
        host.seed(receipt(asks()))
        barrier = threading.Barrier(2)
        outcomes: list[Outcome] = []

        def resume() -> None:
            barrier.wait()
            outcomes.append(host.run(["done"]))

        threads = [threading.Thread(target=resume) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ended = [outcome for outcome in outcomes if outcome.error is None]
        assert [outcome.ok.final_output for outcome in ended] == ["done"] * len(ended)
        assert [o.code for o in outcomes if o.error is not None] == ["checkpoint_claim_active"] * (2 - len(ended))
        assert len(service.keys) == 1
