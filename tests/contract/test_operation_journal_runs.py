"""operation_journal.json, the part that needs a run: recovery, decisions and outcomes through the public Runner."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.contract.approved import Approved
from tests.contract.test_operation_journal import CASES, ENTRIES, FIXTURE, named
from tests.contract.test_resume_events import Decides
from tests.runs import MODEL, TOOL, Died, Host, Outcome, asks, receipt
from vv_agent import (
    ApprovalDecision,
    BeforeToolCallPatch,
    CancellationToken,
    LlmError,
    ReconciliationDecision,
    RuntimeHook,
    ToolContext,
    ToolExecutionResult,
    ToolOutput,
    ToolPolicy,
)
from vv_agent.checkpoint.identity import model_operation_id
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.runtime.transcript import unpack
from vv_agent.tools.function import FunctionTool, function_tool

ASKED = ENTRIES["model_succeeded"]["response"]
CALL = ASKED["tool_calls"][0]


class Calls:
    """A tool that does what it is told and keeps the contexts it was called with."""

    def __init__(self, act: Callable[[ToolContext], Any] = lambda context: ToolOutput.text("ok")) -> None:
        self.contexts: list[ToolContext] = []
        self._act = act

    def tool(self, support: str | None = None, **options: Any) -> FunctionTool:
        @function_tool(name="write_record", idempotency=support, **options)
        def write_record(context: ToolContext, record_id: str = "", value: str = "") -> Any:
            """Write a record."""
            self.contexts.append(context)
            return self._act(context)

        return write_record


def host(folder: Path, tools: Sequence[Any] = (), **options: Any) -> Host:
    return Host(MemoryStore(), folder, tools, **options)


def seeded(run: Host, entry: dict[str, Any], *, digest: str | None = None) -> None:
    """The record in which an entry of the fixture is met again; a model's has the digest of our request, or `digest`."""
    kept = {"state": entry["state"], "attempt": entry["attempt"]}
    if entry["kind"] == "tool":
        step = asks(entry["tool_name"], call_id=entry["tool_call_id"], arguments=entry["arguments"])
        run.seed(receipt(step), journal={TOOL: kept | {"key": entry["idempotency_key"]}})
    elif entry["response"] is not None:
        run.seed(receipt(entry["response"]))
    else:
        run.seed(journal={MODEL: kept | {"digest": digest}})


@named(FIXTURE["recovery_cases"])
def test_a_recovery_through_the_runner(case: dict[str, Any], tmp_path: Path) -> None:
    with CASES.run(f"recovery_cases/{case['name']}/runner"):
        entry = ENTRIES[case["entry"]]
        calls = Calls()
        support = entry.get("idempotency_support", "unknown")
        policy = {f"ambiguous_{entry['kind']}_policy": case["policy"]}
        # The first tool call ends the run, so that every call of the model counts against the cycle in question.
        run = host(
            tmp_path, [calls.tool(support)], checkpoint=policy, agent={"tool_use_behavior": "stop_on_first_tool"}
        )
        if "reconstructed_request_digest" in case:
            mismatch(run, entry, case["reconstructed_request_digest"], case["expected"])
            return
        steps: list[Any] = ["done"]
        if "observed_runtime_outcome" in case:
            steps = observing(run, calls, entry, case["observed_runtime_outcome"])
        else:
            seeded(run, entry)
        digest = run.identity() if run.store.load(run.key or "") else None
        outcome = run.run(steps)
        name = TOOL if entry["kind"] == "tool" else MODEL
        kept = [unpack(save.journal[name] or b"", name) for save in outcome.saves if name in save.journal]
        seen: dict[str, Callable[[], Any]] = {
            "decision": lambda: "replay" if outcome.types("operation_replayed") else "other",
            "model_calls": lambda: outcome.model_calls,
            "tool_calls": lambda: len(calls.contexts),
            "event": lambda: next(t for t in outcome.types() if t == case["expected"]["event"]),
            "persisted_state": lambda: kept[-1]["state"],
            "status": lambda: outcome.ok.status,
            "interruption_reason": lambda: outcome.event("reconciliation_required").interruption_reason,
            "duplicate_cost_risk": lambda: (
                outcome.event("operation_ambiguous").risk == "duplicate_model_request_and_cost"
            ),
            "same_operation_id": lambda: outcome.event("model_retry_duplicate_risk").operation_id == name,
            "same_request_digest": lambda: kept[-1]["digest"] == digest,
            "attempt": lambda: kept[-1]["attempt"],
        }
        assert {key: seen[key]() for key in case["expected"]} == case["expected"]


def mismatch(run: Host, entry: dict[str, Any], digest: str, expected: dict[str, Any]) -> None:
    """An entry that was recorded for another request: nothing is claimed, changed or called."""
    seeded(run, entry if entry["kind"] == "model" else ENTRIES["model_started"], digest=digest)
    before = (run.head(), run.journal())
    outcome = run.run(["never"])
    assert outcome.code == "checkpoint_journal_integrity_mismatch" == expected.get("error_code", outcome.code)
    assert (run.head(), run.journal(), outcome.model_calls) == (*before, 0)


def observing(run: Host, calls: Calls, entry: dict[str, Any], seen: str) -> list[Any]:
    """Begin with a planned call that then fails in the way a case says."""
    assert seen in ("timeout", "connection_loss", "cancellation"), f"unknown outcome {seen}"
    if entry["kind"] == "model":
        return [LlmError("timeout" if seen == "timeout" else "network", seen, retryable=True)]
    calls._act = failing(TimeoutError(seen))
    seeded(run, entry)
    return ["done"]


def test_a_recorded_call_of_another_request_is_refused_before_the_claim(tmp_path: Path) -> None:
    mismatch(host(tmp_path), ENTRIES["model_started"], "f" * 64, {})


@named(FIXTURE["reconciliation_cases"])
def test_a_decision_through_the_runner(case: dict[str, Any], tmp_path: Path) -> None:
    with CASES.run(f"reconciliation_cases/{case['name']}/runner"):
        kind = case.get("operation_kind", "tool")
        calls = Calls()
        provider = Decides(ReconciliationDecision.parse(case["decision"]))
        options = {
            "config": {"reconciliation_provider": provider},
            "agent": {"tool_use_behavior": "stop_on_first_tool"},
        }
        run = host(tmp_path, [calls.tool("unknown")], **options)
        entry = ENTRIES["tool_planned" if kind == "tool" else "model_planned"] | {"state": "started"}
        seeded(run, entry)
        outcome = run.run(["done"])
        result, expected = outcome.ok, case["expected"]
        assert [asked.operation_kind for asked in provider.asked] == [kind]
        decided = case["decision"]["kind"]
        if decided == "retry":
            (context,) = calls.contexts
            assert context.idempotency_key == entry["idempotency_key"]
            assert context.attempt == entry["attempt"] + 1
            assert (result.status, outcome.model_calls) == ("completed", 0)
        elif decided == "replay_success" and kind == "model":
            assert outcome.model_calls == 0
            assert result.cycles[0].assistant_message == case["decision"]["response"]["content"]
            assert result.cycles[0].token_usage.to_wire() == case["decision"]["response"]["token_usage"]
            assert [context.tool_call_id for context in calls.contexts] == ["call_1"]
        elif decided == "replay_success":
            assert calls.contexts == []
            stored = result.cycles[0].tool_results[0].to_wire()
            assert stored == {k: v for k, v in case["decision"]["result"].items() if v is not None}
        elif decided == "record_failure":
            assert calls.contexts == []
            (failure,) = result.cycles[0].tool_results
            assert (failure.status_code, failure.error_code) == ("ERROR", case["decision"]["error"]["code"])
        else:
            assert run.journal()[TOOL]["state"] == expected["state"]
            assert result.status == expected["agent_status"]
            assert result.completion_reason == expected["completion_reason"]
            assert result.error_code == expected["terminal_error_code"]
            assert (result.resume_observation is not None) is expected["ambiguity_preserved"]
        resolved = outcome.types("reconciliation_resolved")
        assert len(resolved) == (decided != "abort")


def test_a_model_call_that_is_recorded_as_failed_fails_the_run(tmp_path: Path) -> None:
    provider = Decides(ReconciliationDecision.record_failure("externally_rejected", "not carried out"))
    run = host(tmp_path, config={"reconciliation_provider": provider})
    seeded(run, ENTRIES["model_started"])
    outcome = run.run(["never"])
    assert (outcome.ok.status, outcome.ok.completion_reason, outcome.model_calls) == ("failed", "failed", 0)


def started(outcome: Outcome) -> bool:
    """Whether a tool call was recorded as started."""
    return any(save.starts for save in outcome.saves)


def failing(error: BaseException) -> Callable[[ToolContext], Any]:
    def act(context: ToolContext) -> Any:
        raise error

    return act


def rule(section: str, name: str) -> Any:
    assert FIXTURE[section][name] is not None
    return CASES.run(f"{section}/{name}")


def parked(outcome: Outcome, operation: str) -> None:
    """The run waits for a decision about this operation."""
    assert outcome.ok.status == "reconciliation_required"
    assert outcome.ok.resume_observation is not None
    assert outcome.ok.resume_observation.operation_id == operation
    assert outcome.types("operation_ambiguous", "reconciliation_required") == [
        "operation_ambiguous", "reconciliation_required",
    ]  # fmt: skip


def test_what_was_refused_before_it_began_is_no_doubt(tmp_path: Path) -> None:
    with (
        rule("outcome_classification", "pre_dispatch_local_failure"),
        rule("pre_start_rules", "tool_policy_denial_writes_started"),
    ):
        calls = Calls()
        run = host(tmp_path, [calls.tool()], agent={"tool_policy": ToolPolicy(can_use_tool=_nobody)})
        run.checkpoint = {"capability_refs": _refs("tool_policy.predicate")}
        outcome = run.run([asks(), "done"])
        assert (outcome.ok.status, calls.contexts, started(outcome)) == ("completed", [], False)
        assert outcome.ok.cycles[0].tool_results[0].status_code == "ERROR"


def _nobody(name: str, arguments: Any) -> bool:
    return False


def _refs(*slots: str) -> dict[str, Any]:
    from vv_agent import CapabilityRef

    return {slot: CapabilityRef(id=f"tests.{slot}", version="1") for slot in slots}


def test_a_refusal_by_the_provider_or_the_tool_is_a_failure(tmp_path: Path) -> None:
    with rule("outcome_classification", "explicit_provider_or_tool_rejection"):
        refused = host(tmp_path).run([LlmError("invalid_request", "no such model", definite=True)])
        assert (refused.ok.status, refused.ok.completion_reason) == ("failed", "failed")
        calls = Calls(lambda context: ToolOutput.error("no such record", "record_unknown"))
        outcome = host(tmp_path, [calls.tool()]).run([asks(), "done"])
        assert (outcome.ok.status, started(outcome)) == ("completed", True)
        assert outcome.ok.cycles[0].tool_results[0].error_code == "record_unknown"


def test_only_what_is_definite_is_a_failure(tmp_path: Path) -> None:
    with rule("outcome_classification", "failed_requires_definitive_external_outcome"):
        calls = Calls(failing(OSError("disk")))
        parked(host(tmp_path, [calls.tool()]).run([asks()]), TOOL)
        proven = Calls(
            lambda context: ToolOutput(
                "refused",
                status_code="ERROR",
                error_code="tool_execution_failed",
                metadata={"definitive_outcome": True},
            )
        )
        outcome = host(tmp_path, [proven.tool()]).run([asks(), "done"])
        assert outcome.ok.status == "completed"


def test_a_tool_that_ran_out_of_time_may_have_had_its_effect(tmp_path: Path) -> None:
    names = (
        "timeout_after_started",
        "non_cooperative_blocking_tool_timeout",
        "framework_must_not_assume_a_timed_out_thread_or_process_stopped_side_effects",
    )
    with (
        rule("outcome_classification", names[0]),
        rule("outcome_classification", names[1]),
        rule("outcome_classification", names[2]),
    ):
        calls = Calls(lambda context: time.sleep(0.3))
        run = host(tmp_path, [calls.tool(timeout_seconds=0.05)])
        parked(run.run([asks()]), TOOL)
        assert run.journal()[TOOL]["state"] == "ambiguous"
        parked(run.run(), TOOL)
        assert len(calls.contexts) == 1, "it is never repeated without a decision"


def test_a_lost_connection_leaves_a_model_call_in_doubt(tmp_path: Path) -> None:
    with rule("outcome_classification", "connection_loss_after_started"):
        run = host(tmp_path)
        outcome = run.run([LlmError("network", "connection reset", retryable=True)])
        parked(outcome, MODEL)
        assert outcome.model_calls == 1
        parked(run.run(), MODEL)


def test_a_call_that_was_cancelled_while_it_ran_is_in_doubt(tmp_path: Path) -> None:
    with rule("outcome_classification", "cancellation_after_started"):
        token, over = CancellationToken(), threading.Event()

        def act(context: ToolContext) -> Any:
            token.cancel("enough")
            over.wait(30)  # past its grace; a result within it is a known outcome
            return ToolOutput.text("late")

        outcome = host(tmp_path, [Calls(act).tool()]).run([asks()], cancellation_token=token)
        over.set()
        assert outcome.ok.completion_reason == "cancelled"
        assert outcome.ok.resume_observation is not None
        assert outcome.ok.resume_observation.operation_id == TOOL
        assert outcome.ok.cycles[0].tool_results[0].error_code == "tool_cancelled"


def test_a_result_that_a_hook_gives_starts_nothing(tmp_path: Path) -> None:
    with rule("pre_start_rules", "before_tool_hook_short_circuit_writes_started"):

        class Answers(RuntimeHook):
            def before_tool_call(self, event: Any) -> BeforeToolCallPatch:
                return BeforeToolCallPatch(result=ToolExecutionResult(tool_call_id="", content="known"))

        calls = Calls()
        checkpoint = {"capability_refs": _refs("runtime_hook:0")}
        run = host(tmp_path, [calls.tool()], agent={"hooks": [Answers()]}, checkpoint=checkpoint)
        outcome = run.run([asks(), "done"])
        assert (outcome.ok.status, calls.contexts, started(outcome)) == ("completed", [], False)
        assert outcome.ok.cycles[0].tool_results[0].content == "known"
        assert outcome.types("tool_call_planned", "tool_call_started", "tool_call_completed") == [
            "tool_call_planned", "tool_call_completed",
        ]  # fmt: skip
        assert outcome.event("tool_call_completed").execution_started is False


def test_a_call_that_waits_for_an_approval_is_planned_until_that_is_stored(tmp_path: Path) -> None:
    with (
        rule("pre_start_rules", "approval_pending_may_remain_planned"),
        rule("pre_start_rules", "approval_grant_must_be_durable_before_started"),
    ):
        asked = Approved(tmp_path)
        outcome = asked.decide(ApprovalDecision.allow())
        for journal in (asked.waiting, asked.decided):
            assert journal.get(TOOL, {"state": "planned"})["state"] == "planned"
        assert [entry["state"] for entry in asked.seen] == ["started"]
        assert outcome.ok.status == "completed"


def test_who_goes_on_after_an_approval_carries_out_the_call_that_was_approved(tmp_path: Path) -> None:
    with (
        rule("pre_start_rules", "approval_resume_uses_source_tool_call_id_request_digest_and_idempotency_key"),
        rule("pre_start_rules", "approval_resume_operation_id_is_stable_within_the_distinct_resume_run"),
    ):
        asked = Approved(tmp_path)
        outcome = asked.decide(ApprovalDecision.allow())
        assert [entry["state"] for entry in asked.seen] == ["started"], "under the id of before"
        assert asked.keys == [asked.key]
        assert (asked.shown["call_id"], asked.told(outcome)) == ("call_1", {"call_1": "written"})


@pytest.mark.parametrize("decision", [ApprovalDecision.deny(), ApprovalDecision.timeout()])
def test_a_call_that_is_not_approved_is_never_started(tmp_path: Path, decision: ApprovalDecision) -> None:
    with rule("pre_start_rules", "approval_denial_or_timeout_writes_started"):
        asked = Approved(tmp_path)
        outcome = asked.decide(decision)
        assert (outcome.ok.status, asked.seen, started(outcome)) == ("completed", [], False)
        assert '"ok": false' in asked.told(outcome)["call_1"]


def test_the_model_calls_of_memory_are_operations(tmp_path: Path) -> None:
    with rule("pre_start_rules", "memory_compaction_and_ptl_model_requests_are_journaled_model_operations"):
        refused = LlmError("context_length", "prompt is too long", definite=True)
        run = host(tmp_path, [Calls(lambda context: ToolOutput.text("r" * 900)).tool("supported")])
        dies: list[Any] = [Died("in the summary")]
        outcome = run.run([asks(), asks(call_id="call_2"), refused, *dies], max_cycles=9)
        assert isinstance(outcome.error, Died)
        assert {name: entry["state"] for name, entry in run.journal().items()} == {
            model_operation_id(3, "main"): "planned",  # it goes on once the summary is there
            model_operation_id(3, "memory_summary:1"): "started",
        }


def test_a_tool_sees_its_key_and_the_model_does_not(tmp_path: Path) -> None:
    wanted = FIXTURE["tool_context"]
    with CASES.run("tool_context"):
        calls = Calls()
        tool = calls.tool("unknown")
        run = host(tmp_path, [tool], agent={"tool_use_behavior": "stop_on_first_tool"})
        run.run([asks()])
        (context,) = calls.contexts
        assert getattr(context, wanted["idempotency_key_field"]).startswith("idem_")
        shown = wanted["idempotency_key_field"] in tool.params_json_schema["properties"]
        assert shown is wanted["model_visible_argument"]
        assert getattr(tool.tool_metadata, wanted["function_tool_declaration_field"]) == "unknown"
        assert wanted["stable_across_retry"] is True  # counted in the reconciliation case `retry`
