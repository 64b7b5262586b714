"""Compaction in a run: what it leaves, and what becomes of it when the process dies around it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runs import Died, Host, Outcome, asks
from tests.scenarios.conftest import Bench, an_agent
from vv_agent import CapabilityRef, Message, RuntimeHook, function_tool
from vv_agent.budget import RunBudgetLimits
from vv_agent.checkpoint.identity import model_operation_id
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.reconciliation import ReconciliationDecision
from vv_agent.checkpoint.record import Claimed, Seen
from vv_agent.checkpoint.sql import SqlStore
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.errors import ConfigError, LlmError
from vv_agent.llm.base import ModelRequest, ModelResponse, UsageReport
from vv_agent.memory import MemoryProvider
from vv_agent.runtime.inbox import budget_signal, cancel_signal, reconcile_signal, steer_signal
from vv_agent.runtime.transcript import Transcript
from vv_agent.sessions.sql import SqliteSession
from vv_agent.testing import call, say
from vv_agent.tools.registry import ToolRegistry

SMALL = {"compact_threshold": 700, "microcompact_trigger_ratio": 1}
RETRY = {"ambiguous_model_policy": "retry_with_duplicate_risk", "ambiguous_tool_policy": "retry_idempotent_only"}
TASK = "Count the sheep of the valley."
SUMMARY = json.dumps({"summary_version": "2.0", "key_facts": ["the gate code is 4711"]})
OPERATION = model_operation_id(4, "memory_summary:0")


@function_tool(idempotency="supported")
def look(n: int) -> str:
    """Look something up."""
    return f"result {n}: " + "sheep " * 150


def steps(until: int) -> list[Any]:
    return [asks("look", call_id=f"call_{n}", arguments={"n": n}) for n in range(1, until + 1)]


def is_summary(request: ModelRequest) -> bool:
    return "purpose" in request.metadata


def summarises(request: ModelRequest) -> ModelResponse:
    assert is_summary(request)
    return ModelResponse(
        SUMMARY, usage=UsageReport({"prompt_tokens": 900, "completion_tokens": 30, "total_tokens": 930})
    )


def dies(request: ModelRequest) -> ModelResponse:
    assert is_summary(request)
    raise Died("in the call of the model that summarises")


def answers(request: ModelRequest) -> str:
    """The end of the run; its prompt holds the task, the summary and the newest result, which the model has not read,
    and no more than that."""
    assert not is_summary(request)
    system, memory, asked, result = request.messages
    assert asked.tool_calls[0].id == result.tool_call_id == "call_3"
    assert result.content.startswith("result 3")
    assert system.role == "system"
    assert TASK in memory.content
    assert "4711" in memory.content
    return "done"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    made: CheckpointStore = MemoryStore() if request.param == "memory" else SqlStore(f"sqlite:///{tmp_path}/runs.db")
    yield made
    made.close()


def host(store: CheckpointStore, folder: Path, **checkpoint: Any) -> Host:
    config = {"metadata": SMALL, "max_cycles": 20, "tool_registry_factory": ToolRegistry}
    return Host(store, folder, [look], checkpoint=checkpoint or RETRY, config=config, text=TASK)


def complete(outcome: Outcome) -> None:
    """Nothing was lost: the result has all that was said, each call with its result."""
    assert outcome.ok.final_output == "done"
    said = outcome.ok.new_items
    assert [m.tool_call_id for m in said if m.role == "tool"] == ["call_1", "call_2", "call_3"]
    assert [c.id for m in said for c in m.tool_calls] == ["call_1", "call_2", "call_3"]
    assert all(m.content.startswith("result ") for m in said if m.role == "tool")


def compactions(*outcomes: Outcome) -> list[str]:
    return [event.mode for outcome in outcomes for event in outcome.events if event.type == "memory_compact_completed"]


def test_a_summary_takes_the_place_of_the_history(store: CheckpointStore, tmp_path: Path) -> None:
    outcome = host(store, tmp_path).run([*steps(3), summarises, answers])
    complete(outcome)
    assert compactions(outcome) == ["summary"]
    result = outcome.ok
    assert [cycle.memory_compacted for cycle in result.raw_result.cycles] == [False, False, False, True]
    assert len(result.raw_result.messages) == 5  # what the model was shown, and its answer
    assert result.token_usage.cycles[-1].usage.total_tokens == 930


@pytest.mark.parametrize(
    "point",
    [("store.save.progress", "before", n) for n in (3, 4)]
    + [("store.save.progress", "after", n) for n in (3, 4)]
    + [("store.save.commit", "before", 3), ("store.save.commit", "after", 3), ("store.save.end", "before", 1)],
    ids=lambda point: "-".join(map(str, point)),
)
def test_a_crash_around_a_summary_loses_nothing_and_shows_what_was_paid_twice(
    store: CheckpointStore, tmp_path: Path, point: tuple[str, str, int]
) -> None:
    there = host(store, tmp_path)
    first = there.run([*steps(3), summarises, answers], die_at=point)
    assert isinstance(first.error, Died), f"{point} was not reached"
    held = Transcript()
    for entry in store.load("case-key").log:  # type: ignore[union-attr]
        held.extend(entry.seq, entry.body)
    left: list[Any] = [*steps(3)[held.turn_n :], *([] if held.compactions else [summarises])]
    left += [] if 4 in held.turns else [answers]
    second = there.run(left)
    complete(second)
    paid = sum(outcome.model_calls for outcome in (first, second))
    twice = paid - 5
    warned = [e for o in (first, second) for e in o.events if e.type == "model_retry_duplicate_risk"]
    assert len(warned) >= twice
    assert compactions(second) == ([] if held.compactions else ["summary"])


def test_a_crash_in_the_call_that_summarises_makes_it_again_and_says_so(store: CheckpointStore, tmp_path: Path) -> None:
    there = host(store, tmp_path)
    first = there.run([*steps(3), dies])
    assert isinstance(first.error, Died)
    second = there.run([summarises, answers])
    complete(second)
    risks = [event.operation_id for event in second.events if event.type == "model_retry_duplicate_risk"]
    assert OPERATION in risks


@pytest.mark.parametrize("decision", ["retry", "done", "failed", "abort"])
def test_under_the_strict_policy_a_person_decides_about_a_lost_summary(
    store: CheckpointStore, tmp_path: Path, decision: str
) -> None:
    there = host(store, tmp_path, **{"ambiguous_model_policy": "require_reconciliation"})
    assert isinstance(there.run([*steps(3), dies]).error, Died)
    parked = there.run([])
    assert parked.ok.status == "reconciliation_required"
    observation = parked.ok.raw_result.resume_observation
    assert observation is not None
    assert observation.operation_id == OPERATION
    said = {
        "retry": ReconciliationDecision.retry(),
        "done": ReconciliationDecision.replay_response({"content": SUMMARY, "tool_calls": []}),
        "failed": ReconciliationDecision.record_failure("lost", "nobody knows"),
        "abort": ReconciliationDecision.abort("operator_abort", "enough"),
    }[decision]
    store.post("case-key", reconcile_signal("decided", OPERATION, said.to_wire()))
    last = {"retry": [summarises, answers], "done": [answers], "failed": [lambda request: "done"], "abort": []}[
        decision
    ]
    outcome = there.run(last)
    if decision == "abort":
        assert outcome.ok.status == "failed"
    else:
        complete(outcome)
        assert outcome.model_calls == len(last)


def test_a_failed_summary_is_made_by_rules(store: CheckpointStore, tmp_path: Path) -> None:
    outcome = host(store, tmp_path).run([*steps(3), LlmError("invalid_request", "no", definite=True), "done"])
    complete(outcome)
    assert compactions(outcome) == ["summary"]
    assert [e.code for e in outcome.events if e.type == "diagnostic"] == ["memory_model_failed"]


def test_a_signal_that_comes_during_a_summary_is_kept(store: CheckpointStore, tmp_path: Path) -> None:
    limits = RunBudgetLimits(max_total_tokens=10_000)

    def raises(request: ModelRequest) -> ModelResponse:
        store.post("case-key", budget_signal("more", RunBudgetLimits(max_total_tokens=20_000)))
        return summarises(request)

    outcome = host(store, tmp_path).run([*steps(3), raises, answers], budget_limits=limits)
    complete(outcome)
    head = store.load("case-key")
    assert head is not None
    assert not head.signals
    assert outcome.ok.raw_result.budget_usage is not None


def test_a_steer_that_comes_during_a_summary_is_said_to_the_model_after_it(
    store: CheckpointStore, tmp_path: Path
) -> None:
    def steered(request: ModelRequest) -> ModelResponse:
        store.post("case-key", steer_signal("now", "Count the goats too."))
        return summarises(request)

    def hears(request: ModelRequest) -> str:
        assert [message.role for message in request.messages] == ["system", "user", "assistant", "tool", "user"]
        assert request.messages[-1].content == "Count the goats too."
        return "done"

    complete(host(store, tmp_path).run([*steps(3), steered, hears]))


def test_a_hook_may_change_what_is_compacted(store: CheckpointStore, tmp_path: Path) -> None:
    seen: list[int] = []

    class Keeps(RuntimeHook):
        def before_memory_compact(self, event: Any) -> list[Message] | None:
            seen.append(len(event.messages))
            return [*event.messages[:2], *event.messages[-2:]] if len(event.messages) > 6 else None

    there = host(store, tmp_path)
    there.checkpoint = {**RETRY, "capability_refs": {"runtime_hook:0": CapabilityRef(id="tests.keeps", version="1")}}
    outcome = there.run([*steps(3), "done"], hooks=[Keeps()])
    complete(outcome)
    assert seen == [2, 4, 6, 8]
    assert compactions(outcome) == []
    assert len(outcome.ok.raw_result.messages) == 5


def test_a_hook_that_gives_no_messages_fails_the_run(store: CheckpointStore, tmp_path: Path) -> None:
    class Wrong(RuntimeHook):
        def before_memory_compact(self, event: Any) -> Any:
            return ["no message"]

    there = host(store, tmp_path)
    there.checkpoint = {**RETRY, "capability_refs": {"runtime_hook:0": CapabilityRef(id="tests.wrong", version="1")}}
    assert there.run(["done"], hooks=[Wrong()]).code == "runtime_hook_failed"


def test_a_cancel_that_comes_during_a_summary_ends_the_run_with_its_history(
    store: CheckpointStore, tmp_path: Path
) -> None:
    def cancelled(request: ModelRequest) -> ModelResponse:
        store.post("case-key", cancel_signal("stop", "enough"))
        return summarises(request)

    outcome = host(store, tmp_path).run([*steps(3), cancelled, "done"])
    assert outcome.ok.raw_result.completion_reason == "cancelled"
    assert len([m for m in outcome.ok.new_items if m.role == "tool"]) == 3


def test_the_tokens_of_a_summary_count_against_the_budget(store: CheckpointStore, tmp_path: Path) -> None:
    limits = RunBudgetLimits(max_total_tokens=1_500)
    there = host(store, tmp_path)
    usage_of = [{"prompt_tokens": n, "completion_tokens": 10, "total_tokens": n + 10} for n in (60, 300, 510)]
    counted = [{**step, "raw": {"usage": usage}} for step, usage in zip(steps(3), usage_of, strict=True)]
    outcome = there.run([*counted, summarises], budget_limits=limits)
    assert outcome.ok.raw_result.completion_reason == "budget_exhausted"
    usage = outcome.ok.raw_result.budget_usage
    assert usage is not None
    assert (usage.total_tokens, usage.cycles) == (1_830, 3)
    store.post("case-key", budget_signal("more", RunBudgetLimits(max_total_tokens=5_000)))
    assert there.run([answers], budget_limits=limits).ok.final_output == "done"


@pytest.mark.feature("memory")
def test_every_store_and_backend_goes_on_behind_a_summary(bench: Bench) -> None:
    texts = [call("look", {"n": n}) for n in range(1, 15)]
    result = bench.run(
        an_agent(look),
        [*texts, say("done")],
        TASK,
        key="long",
        metadata=SMALL,
        max_cycles=20,
        tool_registry_factory=ToolRegistry,
    )
    assert result.final_output == "done"
    said = [m for m in result.new_items if m.role == "tool"]
    assert len(said) == 14
    assert TASK in next(m.content for m in result.raw_result.messages if m.role == "user")
    assert len(result.raw_result.messages) < 14
    head = bench.store.load("long").head  # type: ignore[union-attr]
    assert head.log_from > 0


def test_who_goes_on_with_a_run_reads_only_what_follows_the_reset(store: CheckpointStore, tmp_path: Path) -> None:
    there = host(store, tmp_path)
    there.run(
        [*steps(3), summarises, asks("look", call_id="call_4", arguments={"n": 4})],
        die_at=("store.save.commit", "after", 4),
    )
    whole = store.load("case-key")
    assert whole is not None
    answer = store.claim("case-key", 5, "f" * 32, owner="x/1/1", lease=1_000)
    assert isinstance(answer, Claimed)
    assert len(answer.snapshot.log) < len(whole.log)
    part = Transcript(whole=False)
    for entry in answer.snapshot.log:
        part.extend(entry.seq, entry.body)
    full = Transcript()
    for entry in whole.log:
        full.extend(entry.seq, entry.body)
    assert part.messages == full.messages
    assert (part.identity, part.estimated, part.turn_n) == (full.identity, full.estimated, full.turn_n)
    assert (part.last_text, part.measured, part.baselines) == (full.last_text, full.measured, full.baselines)
    assert len(full.history) > len(part.history)
    later = store.load("case-key", Seen(entries=whole.head.log_from))
    assert later is not None
    assert later.log == answer.snapshot.log


def test_a_session_gets_all_that_was_said_also_from_a_worker_that_read_only_the_rest(
    store: CheckpointStore, tmp_path: Path
) -> None:
    session = SqliteSession(tmp_path / "sessions.db", "valley")
    there = host(store, tmp_path)
    first = there.run([*steps(3), summarises, "not yet"], die_at=("store.save.progress", "after", 4), session=session)
    assert isinstance(first.error, Died)
    assert there.run([answers], session=session).ok.final_output == "done"
    said = session.get_items()
    assert said[0].content == TASK
    assert [m.tool_call_id for m in said if m.role == "tool"] == ["call_1", "call_2", "call_3"]
    assert said[-1].content == "done"
    assert not any("Compressed Agent Memory" in message.content for message in said)


class Archive(MemoryProvider):
    """A provider that workers can load."""

    seen: list[str] = []  # noqa: RUF012 - a registry

    def after_compact(self, event: Any) -> None:
        self.seen.append(event.mode)


archive = Archive()


@pytest.mark.feature("memory")
def test_workers_load_providers_and_refuse_a_model_that_is_not_there(bench: Bench) -> None:
    Archive.seen.clear()
    texts = [*(call("look", {"n": n}) for n in range(1, 6)), say("done")]
    more: dict[str, Any] = {"max_cycles": 20, "tool_registry_factory": ToolRegistry}
    result = bench.run(an_agent(look), texts, TASK, key="seen", metadata=SMALL, memory_providers=[archive], **more)
    assert result.final_output == "done"
    assert set(Archive.seen) == {"summary"}
    wrong = {"memory_summary_backend": "elsewhere", "memory_summary_model": "none"}
    with pytest.raises(ConfigError, match="elsewhere"):
        bench.run(an_agent(look), texts, TASK, key="wrong", metadata=wrong, **more)
    assert bench.store.load("wrong") is None
