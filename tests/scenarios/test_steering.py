"""Steers and follow-ups through the front door, on every store and backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.harness import until
from tests.runs import KEY, Host, asks
from tests.scenarios.conftest import Bench, an_agent
from vv_agent import ApprovalDecision, MemorySession, NoToolPolicy, RunConfig, Runner, SqliteSession, function_tool
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Signal, State
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.errors import ConfigError, RunFinished, VVAgentError
from vv_agent.llm.base import ModelRequest
from vv_agent.messages import Message
from vv_agent.run_handle import RunHandle
from vv_agent.runtime.inbox import cancel_signal, follow_up_signal, steer_signal
from vv_agent.testing import ScriptedProvider, call, calls

RAN: list[str] = []
WAITING: list[Message] = []


def interruptions() -> list[Message]:
    taken = WAITING[:]
    WAITING.clear()
    return taken


@function_tool(idempotency="supported")
def look(where: str) -> str:
    """Look somewhere."""
    RAN.append(where)
    return f"looked at {where}"


@function_tool(idempotency="supported", needs_approval=True)
def launch(pad: str) -> str:
    """Launch a rocket."""
    RAN.append(pad)
    return f"launched from {pad}"


@pytest.fixture(autouse=True)
def forget() -> None:
    RAN.clear()


def saying(bench: Bench, key: str, step: Any, *signals: Signal) -> Any:
    """A model step while which something is said to the run."""

    def answer(request: ModelRequest) -> Any:
        for signal in signals:
            bench.store.post(key, signal)
        return step

    return answer


def said(result: Any) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in result.messages if m.role != "system"]


@pytest.mark.feature("steer")
def test_a_steer_takes_the_place_of_the_calls_that_were_not_begun(bench: Bench) -> None:
    batch = calls(("look", {"where": "left"}), ("look", {"where": "right"}))
    steps = [saying(bench, "k", batch, steer_signal("s", "Look up.")), call("look", {"where": "up"}), "Seen."]
    result = bench.run(an_agent(look), steps, key="k")
    assert (result.status, result.final_output, RAN) == ("completed", "Seen.", ["up"])
    assert [role for role, _ in said(result)[:5]] == ["user", "assistant", "tool", "tool", "user"]
    assert [text for _, text in said(result)[4:]] == ["Look up.", "", "looked at up", "Seen."]
    assert "Tool skipped due to queued steering message." in said(result)[2][1]
    assert {r.error_code for r in result.cycles[0].tool_results} == {"skipped_due_to_steering"}


@pytest.mark.feature("steer")
def test_a_steer_during_the_last_answer_makes_the_run_go_on(bench: Bench) -> None:
    steps = [saying(bench, "k", "Done.", steer_signal("s", "In French.")), "Fini."]
    result = bench.run(an_agent(), steps, key="k")
    assert said(result) == [("user", "Go."), ("assistant", "Done."), ("user", "In French."), ("assistant", "Fini.")]
    assert len(result.cycles) == 2
    assert [e.type for e in result.events].count("run_completed") == 1


@pytest.mark.feature("steer")
def test_follow_ups_each_begin_a_segment_once_the_run_completed(bench: Bench, tmp_path: Path) -> None:
    session = SqliteSession(f"{tmp_path}/talk.db", "talk")
    words = [follow_up_signal("f1", "And then?"), follow_up_signal("f2", "And at last?")]
    steps = [saying(bench, "k", "One.", *words), "Two.", "Three."]
    result = bench.run(an_agent(), steps, key="k", session=session, max_cycles=1)
    assert (result.status, result.final_output, result.input) == ("completed", "Three.", "And at last?")
    ends = [(e.run_id, e.final_output) for e in result.events if e.type == "run_completed"]
    assert [text for _, text in ends] == ["One.", "Two.", "Three."]
    assert len({run_id for run_id, _ in ends}) == 3
    assert [e.input for e in result.events if e.type == "run_started"] == ["Go.", "And then?", "And at last?"]
    texts = ["Go.", "One.", "And then?", "Two.", "And at last?", "Three."]
    assert [item.content for item in session.get_items()] == texts


def test_a_steer_in_the_last_cycle_begins_the_next_segment(bench: Bench) -> None:
    steps = [
        saying(bench, "k", "One.", follow_up_signal("f", "Later."), steer_signal("s", "Sooner.")),
        "Two.",
        "Three.",
    ]
    result = bench.run(an_agent(), steps, key="k", max_cycles=1)
    texts = ["Go.", "One.", "Sooner.", "Two.", "Later.", "Three."]
    assert [text for _, text in said(result)] == texts


def test_what_is_said_to_a_run_that_waits_for_an_answer_is_kept(bench: Bench) -> None:
    agent = an_agent(policy=NoToolPolicy.WAIT_USER)
    first = bench.run(agent, ["Which?", "Done."], key="k")
    assert first.status == "wait_user"
    bench.store.post("k", steer_signal("s", "Mind the dog."))
    look_at = bench.store.look("k")
    assert look_at is not None
    assert look_at.head.state is State.PARKED, "nobody was answered"
    second = bench.runner(["Which?", "Done."]).resume("k", input="The left one.", store=bench.store)
    assert [text for _, text in said(second)] == ["Go.", "Which?", "The left one.", "Mind the dog.", "Done."]


def test_a_call_that_waits_for_a_yes_outlives_a_steer(bench: Bench) -> None:
    batch = calls(("look", {"where": "sky"}), ("launch", {"pad": "A"}), ("look", {"where": "sea"}))
    handle = bench.start(an_agent(look, launch), [batch, "Done."], key="k")
    request = next(e for e in handle.events() if e.type == "approval_requested").request_id
    until(lambda: bench.store.look("k").head.state is State.PARKED, "it waits")  # type: ignore[union-attr]
    handle.steer("Stay calm.")
    handle.approve(request, ApprovalDecision.allow())
    result = handle.result(20)
    assert (result.status, RAN) == ("completed", ["sky", "A"])
    texts = [text for _, text in said(result)][2:]
    assert [*texts[:2], *texts[3:]] == ["looked at sky", "launched from A", "Stay calm.", "Done."]
    assert "skipped_due_to_steering" in texts[2]


def test_what_is_said_to_a_run_that_fails_is_dropped_with_a_word(bench: Bench) -> None:
    from vv_agent import LlmError

    broken = LlmError("invalid_request", "no", definite=True)
    words = [steer_signal("s", "Left."), follow_up_signal("f", "And then?")]
    result = bench.run(an_agent(), [saying(bench, "k", broken, *words)], key="k")
    assert result.status == "failed"
    dropped = [e.details for e in result.events if e.type == "diagnostic" and e.code == "words_dropped"]
    assert dropped == [{"kind": "steers", "messages": 1}, {"kind": "follow_ups", "messages": 1}]
    assert bench.store.load("k").signals == ()  # type: ignore[union-attr]


def test_a_cancel_before_a_follow_up_ends_the_follow_up(bench: Bench) -> None:
    words = [follow_up_signal("f", "And then?")]

    def late(request: ModelRequest) -> str:
        bench.store.post("k", cancel_signal("c", "enough"))
        return "never"

    result = bench.run(an_agent(), [saying(bench, "k", "One.", *words), late], key="k")
    assert (result.completion_reason, result.input) == ("cancelled", "And then?")
    ends = [(e.type, e.run_id) for e in result.events if e.type in ("run_completed", "run_cancelled")]
    assert [kind for kind, _ in ends] == ["run_completed", "run_cancelled"]
    assert ends[0][1] != ends[1][1], "each run id has one end"


def test_a_run_that_is_over_cannot_be_told_anything(bench: Bench) -> None:
    handle = bench.start(an_agent(), ["Done."], key="k")
    handle.result(20)
    for tell in (handle.steer, handle.follow_up):
        with pytest.raises(RunFinished):
            tell("Too late.")
        with pytest.raises(ConfigError, match="cannot be told"):
            tell("  ")


def test_a_run_in_memory_is_told_through_its_handle(tmp_path: Path) -> None:
    handles: list[RunHandle] = []

    def first(request: ModelRequest) -> str:
        handle = until(lambda: handles and handles[0], "it was started")
        handle.steer("In French.")
        handle.follow_up("And then?")
        return "Done."

    runner = Runner(model_provider=ScriptedProvider([first, "Fini.", "Rien."]), workspace=tmp_path)
    handles.append(runner.start(an_agent(), "Go.", run_config=RunConfig(session=MemorySession("s"))))
    result = handles[0].result(10)
    assert (result.final_output, result.checkpoint_key) == ("Rien.", None)
    with pytest.raises(RunFinished):
        handles[0].steer("Too late.")


def test_the_programs_own_messages_steer_a_run(tmp_path: Path) -> None:
    waiting: list[Message] = []

    def interruption() -> list[Message]:
        taken = waiting[:]
        waiting.clear()
        return taken

    def first(request: ModelRequest) -> Any:
        waiting.append(Message("user", "Look up."))
        return calls(("look", {"where": "left"}))

    steps = [first, calls(("look", {"where": "up"})), "Seen."]
    runner = Runner(model_provider=ScriptedProvider(steps), workspace=tmp_path)
    result = runner.run_sync(an_agent(look), "Go.", run_config=RunConfig(interruption_messages=interruption))
    assert (result.final_output, RAN) == ("Seen.", ["up"])
    assert said(result)[3] == ("user", "Look up.")

    def broken() -> list[Message]:
        raise OSError("no queue")

    result = runner.run_sync(an_agent(look), "Go.", run_config=RunConfig(interruption_messages=broken))
    assert result.status == "completed"
    codes = {e.details["error"] for e in result.events if e.type == "diagnostic"}
    assert codes == {"no queue"}


def test_a_worker_asks_the_programs_own_function_by_its_name(bench: Bench) -> None:
    def first(request: ModelRequest) -> Any:
        WAITING.append(Message("user", "Look up."))
        return calls(("look", {"where": "left"}))

    steps = [first, calls(("look", {"where": "up"})), "Seen."]
    result = bench.run(an_agent(look), steps, key="k", interruption_messages=interruptions)
    assert (result.final_output, RAN) == ("Seen.", ["up"])
    with pytest.raises(VVAgentError, match="interruption_messages"):
        bench.run(an_agent(look), steps, key="l", interruption_messages=lambda: [])


def test_the_next_claim_takes_what_a_dead_worker_had_read(real_store: CheckpointStore, tmp_path: Path) -> None:
    """It died after it had read the steer and before a save kept it."""
    host = Host(real_store, tmp_path, checkpoint={"ambiguous_model_policy": "retry_with_duplicate_risk"})

    def steered(request: ModelRequest) -> str:
        real_store.post(KEY, steer_signal("s", "Left."))
        return "Done."

    assert host.run([steered], die_at=("store.save.end", "before", 1)).error is not None
    outcome = host.run(["Left it is."])
    assert [m.content for m in outcome.ok.messages][-2:] == ["Left.", "Left it is."]
    assert [m.content for m in outcome.ok.messages].count("Left.") == 1


def test_a_strict_run_that_died_in_a_steered_call_is_made_again_with_the_steer(tmp_path: Path) -> None:
    store = MemoryStore()
    host = Host(store, tmp_path, tools=[look])
    host.run([asks("look", arguments={"where": "left"})], die_at=("store.save.commit", "after", 1))
    store.post(KEY, steer_signal("s", "Right."))
    assert host.run(["lost"], die_at=("store.save.progress", "after", 1)).error is not None
    outcome = host.run([])
    assert outcome.ok.status == "reconciliation_required", "the call was recorded as started"
    assert [item.content for item in outcome.ok.messages][-1] == "Right."
