"""Runs below a run at the moments that matter: what ends, waits or is told while the other one does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness import until
from tests.scenarios.agents import by_agent, heard
from tests.scenarios.conftest import Bench, Scripts
from tests.scenarios.test_sub_agents import FINISH, SAID, boss, finish, give, publish
from vv_agent import Agent, ApprovalDecision, CheckpointConfig, RunConfig, Runner, handoff
from vv_agent.budget import RunBudgetLimits
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Change, Claim, Filter, Saved, Signal, State
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.launch import open_approvals
from vv_agent.runtime.inbox import cancel_signal, follow_up_signal, steer_signal
from vv_agent.sessions import SqliteSession
from vv_agent.settings import Settings
from vv_agent.testing import CrashingStore, ScriptedProvider, call

BEGIN = call("create_sub_task", {"agent_id": "clerk", "task_description": "x", "wait_for_completion": False})


def begun(request: Any) -> str:
    """The id of the task that was begun in the background."""
    (row,) = [json.loads(m.content) for m in request.messages if 'wait_for_completion": false' in m.content]
    return str(row["task_id"])


def status(**more: Any) -> Any:
    return lambda request: call("sub_task_status", {"task_ids": [begun(request)], **more})


def told(result: Any) -> list[Any]:
    return [json.loads(message.content) for message in result.messages if message.role == "tool"]


def states(store: CheckpointStore, key: str) -> list[str]:
    return sorted(head.state for head in store.find(Filter(root_key=key)))


class AtSave(CrashingStore):
    """A store that lets something happen right before a save; the first one for which `when` is true."""

    def __init__(self, store: CheckpointStore, when: Any, act: Any) -> None:
        super().__init__(store, lambda boundary, side: None)
        self._when, self._act, self._done = when, act, False

    def save(self, claim: Claim, change: Change) -> Saved:
        if not self._done and self._when(change):
            self._done = True
            self._act(claim)
        return super().save(claim, change)


def run_on(store: CheckpointStore, agent: Agent, script: Any, key: str = "k", **config: Any) -> Any:
    runner = Runner(model_provider=ScriptedProvider(script))
    checkpoint = CheckpointConfig(key=key, store=store)
    return runner.run_sync(agent, "Go.", run_config=RunConfig(checkpoint_config=checkpoint, **config))


@pytest.mark.feature("sub-agents")
def test_a_run_that_waits_for_its_user_hears_of_ends_below_once(bench: Bench) -> None:
    script = by_agent({
        "Lead.": [
            BEGIN, call("ask_user", {"question": "Go on?"}), status(wait_for_completion=True), SAID,
        ],
        "Look up.": [finish("found")],
    })  # fmt: skip
    runner = bench.runner(script)
    waits = runner.run_sync(boss(), "Go.", run_config=bench.config("k"))
    assert waits.status == "wait_user"
    until(lambda: "ended" in states(bench.store, "k"), "the work ends")
    if not bench.backend.local:  # a run without a queue is looked at again by whoever goes on with it
        until(lambda: "parked" in states(bench.store, "k"), "the run waits again")
    answer = runner.resume("k", input="Yes.", store=bench.store)
    assert bench.store.look("k").head.revision < 40  # type: ignore[union-attr]
    assert json.loads(str(answer.final_output))["tasks"][0]["final_answer"] == "found"


def test_a_steer_in_the_last_moment_of_the_work_is_heard_as_a_further_message() -> None:
    """The work has ended when the message is to be sent, and the run that sends it does not know yet."""
    store = MemoryStore()
    held: list[Any] = []

    def message(request: Any) -> Any:
        until(lambda: State.ENDED in [head.state for head in store.find(Filter(root_key="k"))], "the work is over")
        held.append(begun(request))
        return call("sub_task_status", {"task_ids": held, "message": "and y", "wait_for_response": True})

    script = by_agent({"Lead.": [BEGIN, message, SAID], "Look up.": [finish("x"), finish("y too")]})
    result = run_on(store, boss(), script)
    answer = json.loads(str(result.final_output))
    assert answer["interaction"] == {"action": "continued", "previous_status": "completed"}
    assert answer["tasks"][0]["final_answer"] == "y too"


@pytest.mark.parametrize("signal", [steer_signal("s", "and this"), follow_up_signal("s", "and this")])
def test_what_is_said_in_the_last_moment_of_a_hand_off_reaches_whoever_takes_over(
    signal: Signal, tmp_path: Path
) -> None:
    memory = MemoryStore()
    store = AtSave(memory, lambda change: change.closing, lambda claim: memory.post(claim.key, signal))
    writer = Agent(name="writer", instructions="Write.", no_tool_policy=FINISH)
    first = Agent(name="triage", instructions="Route.", handoffs=[writer])
    script = by_agent({
        "Route.": [call("transfer_to_writer", {"input": "an essay"})],
        "Write.": [heard(lambda said: f"heard {said}")] * 3,
    })  # fmt: skip
    session = SqliteSession(tmp_path / "s.db", "t")
    result = run_on(store, first, script, session=session)
    assert (result.agent_name, result.final_output) == ("writer", "heard and this")


def test_a_cancel_before_the_work_is_created_leaves_no_begun_work_behind() -> None:
    memory = MemoryStore()
    store = AtSave(memory, lambda change: bool(change.creates), lambda claim: memory.post(
        claim.key, cancel_signal("c", "enough")))  # fmt: skip
    seen: list[Any] = []
    result = run_on(store, boss(), by_agent({"Lead.": [give("a", "b"), SAID]}), stream=seen.append)
    assert (result.completion_reason, result.raw_result.error) == ("cancelled", "enough")
    assert [head.key for head in memory.find(Filter(root_key="k"))] == ["k"]
    started = [event.run_id for event in seen if event.type == "sub_run_started"]
    ended = [event.run_id for event in seen if event.type == "sub_run_completed"]
    assert len(started) == 2
    assert sorted(started) == sorted(ended)


def test_work_that_waits_for_an_approval_ends_with_the_run() -> None:
    store = MemoryStore()
    script = by_agent({
        "Lead.": [call("create_sub_task", {"agent_id": "clerk", "task_description": "x"}), "Done."],
        "Look up.": [call("publish", {"title": "x"}), finish("never")],
    })  # fmt: skip
    result = run_on(store, boss(publish), script)
    assert told(result)[0]["error_code"] == "sub_task_wait_user"
    assert result.final_output == "Done."
    assert states(store, "k") == ["ended", "ended"]
    pairs = [event.type for event in result.events if event.type.startswith("sub_run")]
    assert pairs == ["sub_run_started", "sub_run_completed"] * 2
    assert [e.status for e in result.events if e.type == "sub_run_completed"] == ["wait_user", "failed"]


def test_what_work_uses_after_an_approval_is_counted_too(tmp_path: Path) -> None:
    store = MemoryStore()
    ask = call("ask_user", {"question": "?"})

    def look(request: Any) -> Any:
        until(lambda: "ended" in states(store, "k"), "the work went on and ended")
        (outcome,) = [json.loads(m.content) for m in request.messages if '"wait_user"' in m.content]
        return call("sub_task_status", {"task_ids": [outcome["task_id"]]})

    script = by_agent({
        "Lead.": [call("create_sub_task", {"agent_id": "clerk", "task_description": "x"}), ask, look, SAID],
        "Look up.": [call("publish", {"title": "x"}), call("todo_write", {"todos": []}), finish("done")],
    })  # fmt: skip
    settings = Settings(imports=("tests",))
    runner = Runner(model_provider=Scripts.of(script), workspace=tmp_path, settings=settings)
    config = RunConfig(
        checkpoint_config=CheckpointConfig(key="k", store=store), budget_limits=RunBudgetLimits(max_tool_calls=50)
    )
    assert runner.run_sync(boss(publish), "Go.", run_config=config).status == "wait_user"
    (name,) = open_approvals(store, "k")
    runner.attach("k", store=store).approve(name, ApprovalDecision.allow())
    result = runner.resume("k", input="Yes.", store=store)
    assert json.loads(str(result.final_output))["tasks"][0]["final_answer"] == "done"
    assert result.budget_usage is not None
    assert dict(result.budget_usage.tool_calls_by_name) == {
        "create_sub_task": 1, "sub_task_status": 1, "ask_user": 1, "publish": 1, "todo_write": 1, "task_finish": 1,
    }  # fmt: skip


def test_three_levels_of_agents_as_tools_answer_through(tmp_path: Path) -> None:
    third = Agent(name="third", instructions="Third.", no_tool_policy=FINISH)
    second = Agent(name="second", instructions="Second.", no_tool_policy=FINISH, tools=[third.as_tool()])
    first = Agent(name="first", instructions="First.", no_tool_policy=FINISH, tools=[second.as_tool()])
    script = by_agent({
        "First.": [call("second", {"task_description": "deep"}), SAID],
        "Second.": [call("third", {"task_description": "deeper"}), SAID],
        "Third.": [heard(lambda said: f"at the bottom: {said}")],
    })  # fmt: skip
    store = MemoryStore()
    limits = RunBudgetLimits(max_tool_calls=2)
    result = run_on(store, first, script, budget_limits=limits)
    assert result.final_output == "at the bottom: deeper"
    assert result.budget_usage is not None
    assert result.budget_usage.tool_calls == 2
    assert {head.root_key for head in store.find(Filter())} == {"k"}


def test_an_agent_below_that_hands_over_answers_once_and_its_events_come_in_pairs() -> None:
    writer = Agent(name="writer", instructions="Write.", no_tool_policy=FINISH)
    editor = Agent(name="editor", instructions="Edit.", handoffs=[handoff(writer)])
    first = Agent(name="first", instructions="First.", no_tool_policy=FINISH, tools=[editor.as_tool()])
    script = by_agent({
        "First.": [call("editor", {"task_description": "a text"}), SAID],
        "Edit.": [call("transfer_to_writer", {"input": "write"})],
        "Write.": ["written"],
    })  # fmt: skip
    result = run_on(MemoryStore(), first, script)
    assert result.final_output == "written"
    told_of = [(e.type, e.agent_name) for e in result.events if e.type.startswith(("sub_run", "handoff", "run_"))]
    assert told_of == [
        ("run_started", "first"), ("sub_run_started", "editor"), ("sub_run_completed", "editor"),
        ("handoff_started", "editor"), ("sub_run_started", "writer"), ("sub_run_completed", "writer"),
        ("handoff_completed", "editor"), ("run_completed", "first"),
    ]  # fmt: skip


def test_a_tree_that_has_ended_is_told_in_its_order() -> None:
    third = Agent(name="third", instructions="Third.", no_tool_policy=FINISH)
    second = Agent(name="second", instructions="Second.", no_tool_policy=FINISH, tools=[third.as_tool()])
    first = Agent(name="first", instructions="First.", no_tool_policy=FINISH, tools=[second.as_tool()])
    script = by_agent({
        "First.": [call("second", {"task_description": "deep"}), call("second", {"task_description": "deep"}), SAID],
        "Second.": [call("third", {"task_description": "deeper"}), SAID] * 2,
        "Third.": ["said"] * 2,
    })  # fmt: skip
    store = MemoryStore()
    run_on(store, first, script)
    told = [
        (event.type, event.agent_name)
        for event in Runner().attach("k", store=store).events()
        if event.type in ("sub_run_started", "sub_run_completed", "run_completed", "tool_call_completed")
    ]
    assert told == [
        ("sub_run_started", "second"), ("sub_run_started", "third"), ("sub_run_completed", "third"),
        ("tool_call_completed", "second"), ("sub_run_completed", "second"), ("tool_call_completed", "first"),
    ] * 2 + [("run_completed", "first")]  # fmt: skip
