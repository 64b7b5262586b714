"""What a run does, the same on every store and every backend, through the front door with a scripted model."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest

from tests.harness import until
from tests.scenarios.conftest import Bench, an_agent
from vv_agent import (
    CancellationToken,
    CheckpointError,
    ConfigError,
    LlmError,
    NoToolPolicy,
    ToolContext,
    ToolPolicy,
    function_tool,
)
from vv_agent.checkpoint.config import ResumePolicy
from vv_agent.checkpoint.record import State
from vv_agent.errors import RetryLater
from vv_agent.llm.base import ModelRequest, ModelResponse
from vv_agent.messages import Message
from vv_agent.runtime.eventlog import LIVE_ONLY
from vv_agent.testing import call, calls, say
from vv_agent.tools.builtin import build_default_registry

TASK_FINISH = build_default_registry().get("task_finish")
meeting = threading.Barrier(2, timeout=10)
running = threading.Event()
stopped = threading.Event()
counted: Counter[str] = Counter()


@function_tool(idempotency="supported")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@function_tool(idempotency="supported")
def meet(n: int) -> str:
    """Come back once another call is here too."""
    meeting.wait()
    return f"met {n}"


@function_tool(idempotency="supported")
def dawdle(context: ToolContext) -> str:
    """Takes a while."""
    context.cancellation.wait(0.4)
    return "at last"


@function_tool
def fire(n: int) -> str:
    """Not to be repeated."""
    return f"fired {n}"


@function_tool
def broken() -> str:
    """Always fails."""
    raise ValueError("no paper")


@function_tool(timeout_seconds=0.2)
def slow(context: ToolContext) -> str:
    """Takes longer than it may."""
    context.cancellation.wait(10)
    return "late"


@function_tool
def wait_for_cancel(context: ToolContext) -> str:
    """Runs until it is cancelled."""
    running.set()
    context.cancellation.wait(20)
    stopped.set()
    return "stopped politely"


@function_tool(idempotency="supported")
def remember(word: str, context: ToolContext) -> str:
    """Keep a word in the run's shared state."""
    context.shared_state.setdefault("words", []).append(word)
    return "kept"


def prompts(index: int, history: Any, state: Any) -> list[Message]:
    """Messages of the program before each cycle; counts its calls by the run's input."""
    counted[f"{history[1].content} {index}"] += 1
    return [Message("user", f"prompt {index}")]


def much_later(request: ModelRequest) -> Any:
    """Asks to come back in half a minute."""
    raise RetryLater("busy", 30.0)


def later_once(request: ModelRequest) -> Any:
    """Asks to come back later, the first time."""
    counted["later " + str(request.metadata["run_id"])] += 1
    if counted["later " + str(request.metadata["run_id"])] == 1:
        raise RetryLater("busy", 0.4)
    return say("served")


@pytest.mark.feature("cycles")
def test_a_plain_text(bench: Bench) -> None:
    result = bench.run(an_agent(), ["Hello."])
    assert (result.status, result.completion_reason, result.final_output) == ("completed", "no_tool_finish", "Hello.")
    assert [message.role for message in result.messages] == ["system", "user", "assistant"]


@pytest.mark.feature("tools")
def test_one_tool(bench: Bench) -> None:
    result = bench.run(an_agent(add), [call("add", {"a": 2, "b": 3}), "five"])
    assert result.final_output == "five"
    assert [r.content for r in result.raw_result.cycles[0].tool_results] == ["5"]


@pytest.mark.feature("tools")
def test_two_repeatable_calls_run_side_by_side(bench: Bench) -> None:
    meeting.reset()
    result = bench.run(an_agent(meet), [calls(("meet", {"n": 1}), ("meet", {"n": 2})), "both"])
    assert [r.content for r in result.raw_result.cycles[0].tool_results] == ["met 1", "met 2"]


def test_a_call_beside_a_slower_one_has_its_own_duration(bench: Bench) -> None:
    batch = calls(("add", {"a": 1, "b": 1}), ("dawdle", {}))
    result = bench.run(an_agent(add, dawdle), [batch, "done"])
    quick, long = [e.duration_ms for e in result.events if e.type == "tool_call_completed"]
    assert quick < 200 < long


@pytest.mark.feature("tools")
def test_results_stand_in_call_order_around_an_unsafe_call(bench: Bench) -> None:
    batch = calls(("add", {"a": 1, "b": 1}), ("fire", {"n": 2}), ("add", {"a": 1, "b": 2}), ("fire", {"n": 4}))
    result = bench.run(an_agent(add, fire), [batch, "done"])
    assert [r.content for r in result.raw_result.cycles[0].tool_results] == ["2", "fired 2", "3", "fired 4"]
    assert [m.content for m in result.messages if m.role == "tool"] == ["2", "fired 2", "3", "fired 4"]


@pytest.mark.feature("completion")
def test_task_finish_ends_the_run_and_skips_what_follows(bench: Bench) -> None:
    batch = calls(("task_finish", {"message": "that is all"}), ("fire", {"n": 1}))
    result = bench.run(an_agent(TASK_FINISH, fire, policy=NoToolPolicy.CONTINUE), [batch])
    assert (result.completion_reason, result.final_output) == ("tool_finish", "that is all")
    assert result.raw_result.cycles[0].tool_results[1].error_code == "skipped_due_to_finish"


@pytest.mark.feature("cycles", "completion")
def test_the_cycle_limit(bench: Bench) -> None:
    result = bench.run(an_agent(policy=NoToolPolicy.CONTINUE), ["a", "b", "c"], max_cycles=2)
    assert (result.status, len(result.raw_result.cycles)) == ("max_cycles", 2)


@pytest.mark.feature("ask_user")
def test_a_run_that_waits_for_its_user_goes_on_with_the_answer(bench: Bench) -> None:
    agent = an_agent(policy=NoToolPolicy.WAIT_USER)
    runner = bench.runner(["Which one?", "And why?"])
    result = runner.run_sync(agent, "Go.", run_config=bench.config("k"))
    assert (result.status, result.final_output) == ("wait_user", "Which one?")
    again = runner.run_sync(agent, "Go.", run_config=bench.config("k"))
    assert (again.status, again.run_id) == ("wait_user", result.run_id)
    answered = runner.resume("k", input="The red one.", store=bench.store)
    assert (answered.status, answered.final_output) == ("wait_user", "And why?")
    assert answered.run_id != result.run_id
    assert answered.trace_id == result.trace_id
    assert [m.content for m in answered.messages][-3:] == ["Which one?", "The red one.", "And why?"]


def test_a_failing_model_is_a_failed_result(bench: Bench) -> None:
    result = bench.run(an_agent(), [LlmError("authentication", "bad key", definite=True)])
    assert (result.status, result.error_code, result.final_output) == ("failed", "model_authentication", "bad key")


def test_a_tool_that_raises_and_one_that_is_too_slow_are_results(bench: Bench) -> None:
    began = time.monotonic()
    result = bench.run(an_agent(broken, slow), [calls(("broken", {}), ("slow", {})), "done"])
    first, second = result.raw_result.cycles[0].tool_results
    assert (first.error_code, "no paper" in first.content) == ("tool_execution_failed", True)
    assert second.error_code == "tool_timeout"
    assert result.final_output == "done"
    assert time.monotonic() - began < 5


@pytest.mark.feature("resume")
def test_a_model_that_asks_to_come_back_later(bench: Bench) -> None:
    handle = bench.start(an_agent(), [later_once], key="k")
    result = handle.result(20)
    assert result.final_output == "served"
    ids = [event.event_id for event in handle.events()]
    assert len(ids) == len(set(ids))
    assert [e.type for e in handle.events()].count("llm_started") == 2
    assert bench.store.load("k").head.attempt == 1  # type: ignore[union-attr]


def test_a_run_that_waits_for_the_provider_is_cancelled_at_once(bench: Bench) -> None:
    handle = bench.start(an_agent(), [much_later], key="k")
    until(lambda: bench.store.load("k").head.state is State.PARKED, "the run is parked")  # type: ignore[union-attr]
    assert handle.cancel("enough")
    result = handle.result(5)  # of the thirty seconds the provider asked for
    assert (result.completion_reason, result.final_output) == ("cancelled", "enough")


def test_wrong_arguments_and_a_denied_tool_are_results(bench: Bench) -> None:
    batch = calls(("add", {"a": "x", "b": 1}), ("fire", {"n": 1}), ("nothing", {}))
    policy = ToolPolicy(disallowed_tools=["fire"])
    result = bench.run(an_agent(add, fire), [batch, "done"], tool_policy=policy)
    codes = [r.error_code for r in result.raw_result.cycles[0].tool_results]
    assert codes == ["invalid_tool_arguments", "tool_not_allowed", "tool_not_allowed"]
    assert result.final_output == "done"


def test_before_cycle_messages_are_asked_for_once_a_cycle_even_over_a_retry(bench: Bench) -> None:
    text = f"Go {bench.kind} {bench.store.id}."
    runner = bench.runner([call("add", {"a": 1, "b": 1}), later_once])
    config = bench.config("k", before_cycle_messages=prompts)
    result = runner.run_sync(an_agent(add), text, run_config=config)
    assert result.final_output == "served"
    assert {name: n for name, n in counted.items() if name.startswith(text)} == {f"{text} 1": 1, f"{text} 2": 1}
    assert [m.content for m in result.messages if m.content.startswith("prompt")] == ["prompt 1", "prompt 2"]


@pytest.mark.feature("resume")
def test_a_finished_run_is_given_again_without_a_call(bench: Bench) -> None:
    runner = bench.runner([count_call])
    first = runner.run_sync(an_agent(), "Go.", run_config=bench.config("k"))
    asked = counted["asked " + first.run_id]
    again = runner.run_sync(an_agent(), "Go.", run_config=bench.config("k"))
    resumed = runner.resume("k", store=bench.store)
    assert [r.final_output for r in (first, again, resumed)] == ["counted"] * 3
    assert {r.run_id for r in (first, again, resumed)} == {first.run_id}
    assert counted["asked " + first.run_id] == asked == 1


def count_call(request: ModelRequest) -> Any:
    counted["asked " + str(request.metadata["run_id"])] += 1
    return say("counted")


def test_another_definition_under_the_same_key_is_refused(bench: Bench) -> None:
    handle = bench.start(an_agent(wait_for_cancel), [call("wait_for_cancel"), "done"], key="k")
    running.wait(10)
    other = bench.runner(["x"])
    with pytest.raises(CheckpointError, match="mismatch"):
        other.run_sync(an_agent(add), "Go.", run_config=bench.config("k"))
    assert handle.cancel()
    handle.result(10)
    running.clear()
    stopped.clear()


def test_a_key_that_is_taken_is_refused_for_a_new_run(bench: Bench) -> None:
    assert bench.run(an_agent(), ["one"], key="k", policy=ResumePolicy.NEW).final_output == "one"
    with pytest.raises(CheckpointError, match="checkpoint_already_exists"):
        bench.run(an_agent(), ["two"], key="k", policy=ResumePolicy.NEW)


def test_an_edited_docstring_is_no_mismatch(bench: Bench) -> None:
    from dataclasses import replace

    runner = bench.runner([say("Which one?"), "thanks"])
    policy = NoToolPolicy.WAIT_USER
    runner.run_sync(an_agent(add, policy=policy), "Go.", run_config=bench.config("k"))
    edited = replace(add, description="Add two numbers, better described.")
    edited.__dict__["__vv_ref__"] = "tests.scenarios.test_runs:add"
    again = runner.run_sync(an_agent(edited, policy=policy), "Go.", run_config=bench.config("k"))
    assert (again.status, again.final_output) == ("wait_user", "Which one?")


@pytest.mark.feature("cancel")
def test_cancelled_before_it_started(bench: Bench) -> None:
    token = CancellationToken()
    token.cancel("changed my mind")
    result = bench.run(an_agent(fire), [call("fire", {"n": 1}), "x"], cancellation_token=token)
    assert (result.status, result.completion_reason, result.final_output) == ("failed", "cancelled", "changed my mind")
    assert len(result.raw_result.cycles) == 0


@pytest.mark.feature("cancel")
def test_cancelled_while_a_tool_runs(bench: Bench) -> None:
    running.clear()
    stopped.clear()
    handle = bench.start(
        an_agent(wait_for_cancel, fire), [calls(("wait_for_cancel", {}), ("fire", {"n": 1})), "x"], key="k"
    )
    assert running.wait(10)
    assert handle.cancel("enough")
    result = handle.result(10)
    assert stopped.wait(1)
    assert (result.completion_reason, result.final_output) == ("cancelled", "enough")
    first, second = result.raw_result.cycles[0].tool_results
    assert first.content == "stopped politely"
    assert second.error_code == "tool_execution_cancelled"
    assert not handle.cancel()
    running.clear()


def test_shared_state_is_kept_from_cycle_to_cycle(bench: Bench) -> None:
    steps = [call("remember", {"word": "a"}), call("remember", {"word": "b"}), "done"]
    result = bench.run(an_agent(remember), steps, key="k", shared_state={"start": 1})
    assert result.raw_result.shared_state == {"start": 1, "words": ["a", "b"]}
    assert bench.runner().resume("k", store=bench.store).raw_result.shared_state == result.raw_result.shared_state


@pytest.mark.feature("events")
def test_events_are_the_same_wherever_they_are_read(bench: Bench) -> None:
    handle = bench.start(an_agent(add, fire), [calls(("add", {"a": 1, "b": 1}), ("fire", {"n": 1})), "done"], key="k")
    followed = bench.runner().attach("k", store=bench.store)
    handle.result(10)
    followed.result(10)
    late = bench.runner().attach("k", store=bench.store)
    late.result(10)

    def durable(events: Any) -> list[Any]:
        return [
            e.to_wire() if hasattr(e, "to_wire") else e.model_dump()
            for e in events
            if e.type not in LIVE_ONLY and getattr(e, "code", "") != "live_gap"
        ]

    mine, theirs, replayed = durable(handle.events()), durable(followed.events()), durable(late.events())
    assert [(e["type"], e["event_id"], e["created_at"]) for e in mine] == [
        (e["type"], e["event_id"], e["created_at"]) for e in replayed
    ]
    assert mine == replayed
    assert theirs == replayed
    ids = [e["event_id"] for e in replayed]
    assert len(ids) == len(set(ids))


@pytest.mark.feature("events")
def test_who_begins_to_watch_in_the_middle_of_a_cycle_sees_its_events_in_order(bench: Bench) -> None:
    asked, watched = threading.Event(), threading.Event()

    def waits(_: ModelRequest) -> ModelResponse:
        asked.set()
        assert watched.wait(10)
        return calls(("add", {"a": 1, "b": 1}))

    handle = bench.start(an_agent(add), [waits, "done"], key="k")
    assert asked.wait(10)
    followed = bench.runner().attach("k", store=bench.store)
    watched.set()
    handle.result(10)
    followed.result(10)
    durable = [event.event_id for event in handle.events() if event.type not in LIVE_ONLY]
    assert [event.event_id for event in followed.events() if event.event_id in durable] == durable


def test_a_signal_that_meets_a_park_does_not_leave_the_run_behind(bench: Bench) -> None:
    """A cancel that comes while the cycle decides to wait is carried out, and the caller gets that result."""
    handle = bench.start(an_agent(policy=NoToolPolicy.WAIT_USER), [slow_question], key="k")
    asking.wait(10)
    handle.cancel("no more")
    may_answer.set()
    result = handle.result(10)
    may_answer.clear()
    asking.clear()
    assert result.completion_reason == "cancelled"
    assert bench.store.load("k").head.state is State.ENDED  # type: ignore[union-attr]
    terminal = [e.type for e in handle.events() if e.type in ("run_completed", "run_failed", "run_cancelled")]
    assert terminal == ["run_cancelled"]


asking, may_answer = threading.Event(), threading.Event()


def slow_question(request: ModelRequest) -> Any:
    asking.set()
    may_answer.wait(10)
    return say("Which one?")


@pytest.mark.feature("cancel")
def test_a_run_that_waits_for_its_user_can_be_cancelled(bench: Bench) -> None:
    handle = bench.start(an_agent(policy=NoToolPolicy.WAIT_USER), ["Which one?"], key="k")
    assert handle.result(10).status == "wait_user"
    assert handle.cancel("never mind")
    end = time.monotonic() + 10
    while bench.store.load("k").head.state is not State.ENDED:  # type: ignore[union-attr]
        assert time.monotonic() < end
        time.sleep(0.01)
    assert bench.runner().resume("k", store=bench.store).completion_reason == "cancelled"
    with pytest.raises((ConfigError, CheckpointError)):
        bench.runner().resume("k", input="too late", store=bench.store)


def test_fifty_runs_at_once(bench: Bench) -> None:
    began = time.monotonic()
    runner = bench.runner([call("add", {"a": 1, "b": 1}), call("add", {"a": 2, "b": 2}), "done"])
    agent = an_agent(add)
    handles = [runner.start(agent, "Go.", run_config=bench.config(f"many_{n}")) for n in range(50)]
    results = [handle.result(60) for handle in handles]
    assert {r.final_output for r in results} == {"done"}
    assert {len(r.raw_result.cycles) for r in results} == {3}
    print(f"\n50 runs x 3 cycles, {bench.kind} on {bench.store.url.split(':')[0]}: {time.monotonic() - began:.2f} s")


def test_cancels_between_the_cycles_of_a_run_are_never_an_error(bench: Bench) -> None:
    """A cancel may fall anywhere, also between two claims, where the canceller itself could take the run."""
    agent = an_agent(add)
    runner = bench.runner([call("add", {"a": n, "b": n}) for n in range(150)] + ["done"])
    outcomes: Counter[str] = Counter()
    for n in range(12):
        handle = runner.start(agent, "Go.", run_config=bench.config(f"cancel_{n}", max_cycles=160))
        for event in handle.events():
            if event.type == "cycle_started" and event.cycle_index > n:
                break
        handle.cancel("enough")
        outcomes[str(handle.result(20).completion_reason)] += 1
    assert set(outcomes) <= {"cancelled", "no_tool_finish"}
    assert outcomes["cancelled"] >= 6, outcomes


@pytest.mark.feature("ask_user")
def test_a_question_parks_the_run_until_it_is_answered(bench: Bench) -> None:
    asked = {"question": "Which color?", "options": ["red", "blue"]}
    steps = [calls(("ask_user", asked), ("add", {"a": 1, "b": 1})), "blue it is"]
    waiting = bench.run(an_agent(add), steps, key="asks")
    assert (waiting.status, waiting.completion_reason, waiting.raw_result.wait_reason) == (
        "wait_user", "wait_user", "Which color?",
    )  # fmt: skip
    question, skipped = waiting.raw_result.cycles[0].tool_results
    assert (question.status_code, question.directive) == ("WAIT_RESPONSE", "wait_user")
    assert (question.metadata or {})["options"] == ["red", "blue"]
    assert skipped.error_code == "skipped_due_to_wait_user"
    again = bench.run(an_agent(add), steps, key="asks")  # the same call attaches: it still waits
    assert (again.status, again.run_id) == ("wait_user", waiting.run_id)
    done = bench.runner(steps).resume("asks", input="blue", store=bench.store)
    assert (done.status, done.final_output) == ("completed", "blue it is")
    assert [m.content for m in done.messages if m.role == "user"] == ["Go.", "blue"]
    assert done.run_id != waiting.run_id
