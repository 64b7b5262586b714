"""run_handle.json: who reads the events of a run, when it is done, and how it is cancelled."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.harness import until
from tests.runs import QueueModel, QueueProvider
from tests.scenarios.agents import by_agent
from vv_agent import Agent, NoToolPolicy, RunConfig, Runner
from vv_agent.approvals import ApprovalBroker, ApprovalRequest
from vv_agent.llm.base import ModelRequest, Part, TextDelta
from vv_agent.run_handle import RunHandle
from vv_agent.testing import ScriptedProvider, call

ENDS = {"run_completed", "run_failed", "run_cancelled", "sub_run_completed"}

FIXTURE = load("run_handle.json")
CASES = Cases("run_handle.json")


class Waiting(QueueModel):
    """Speaks many words, then waits for the test or for a cancel."""

    def __init__(self, words: int) -> None:
        super().__init__(["done"])
        self.words = words
        self.spoken, self.go_on = threading.Event(), threading.Event()

    def stream(self, request: ModelRequest) -> Iterator[Part]:
        for _ in range(self.words):
            yield TextDelta("w")
        self.spoken.set()
        while not self.go_on.wait(0.01) and not request.cancellation.cancelled:
            pass
        yield from super().stream(request)


def start(model: Waiting, folder: Path, **more: object) -> RunHandle:
    provider = QueueProvider([])
    provider._model = model  # type: ignore[assignment]
    agent = Agent(name="handle-agent", instructions="Speak.", no_tool_policy=NoToolPolicy.FINISH)
    return Runner(model_provider=provider, workspace=folder).start(agent, "Go.", run_config=RunConfig(**more))  # type: ignore[arg-type]


def test_readers_are_independent_and_miss_nothing(tmp_path: Path) -> None:
    wanted = FIXTURE["subscribers"]
    with CASES.run("subscribers"):
        model = Waiting(wanted["burst_event_count"])
        handle = start(model, tmp_path)
        early = iter(handle.events())
        first = next(early)
        assert model.spoken.wait(20)
        model.go_on.set()
        handle.result(20)
        whole = [event.event_id for event in handle.events()]
        assert [first.event_id, *(event.event_id for event in early)] == whole
        deltas = [event for event in handle.events() if event.type == "assistant_delta"]
        assert len(deltas) > wanted["burst_event_count"]
        assert all(
            wanted[rule] for rule in ("independent", "start_from_complete_backlog", "lossless_after_live_capacity")
        )


def test_a_cancel_is_accepted_once(tmp_path: Path) -> None:
    wanted = FIXTURE["cancellation"]
    with CASES.run("cancellation"):
        broker, model = ApprovalBroker(), Waiting(1)
        other = ApprovalRequest(
            request_id="of another run", run_id="r", trace_id="t", agent_name="a", cycle_index=1, tool_call_id="c",
            tool_name="x", arguments={}, preview="x {}", metadata={},
        )  # fmt: skip
        broker.register(other, lambda decision: None)
        handle = start(model, tmp_path, approval_broker=broker)
        assert model.spoken.wait(20)
        assert handle.cancel(wanted["reason"])
        assert handle.cancel(wanted["reason"]) is wanted["repeated_request_accepted"]
        state = handle.state()
        if not state.done:
            assert {"status": state.status, "done": state.done, "cancelled": state.cancelled} == wanted[
                "accepted_state"
            ]
        result = handle.result(20)
        ended = handle.state()
        assert (ended.status, ended.done, ended.cancelled, ended.error) == (
            wanted["terminal_status"], True, True, wanted["reason"],
        )  # fmt: skip
        assert result.completion_reason == "cancelled"
        assert handle.cancel() is wanted["late_request_accepted"]
        assert [request.request_id for request in broker.pending()] == ["of another run"]


def team(folder: Path, lead: Sequence[Any], work: Sequence[Any]) -> RunHandle:
    """A run whose agent has another one work in the background."""
    slow = Agent(name="slow", instructions="Work.", no_tool_policy=NoToolPolicy.CONTINUE)
    boss = Agent(
        name="boss", instructions="Lead.", no_tool_policy=NoToolPolicy.FINISH, tools=[slow.as_background_task()]
    )
    begin = call("slow_background_task", {"task_description": "x"})
    script = by_agent({"Lead.": [begin, *lead], "Work.": [*work]})
    return Runner(model_provider=ScriptedProvider(script), workspace=folder).start(boss, "Go.")


def test_the_events_of_a_run_end_with_those_of_what_it_started(tmp_path: Path) -> None:
    wanted = FIXTURE["completion"]
    with CASES.run("completion"):
        handle = team(tmp_path, ["Done."], ["still at it"] * 30)
        assert (handle.result(20).final_output, wanted["result_may_precede_async_children"]) == ("Done.", True)
        events = list(handle.events())
        ended = [event.agent_name for event in events if event.type in ENDS]
        assert (sorted(ended), wanted["events_wait_for_started_children"]) == (["boss", "slow"], True)


def test_a_child_is_cancelled_for_the_reason_its_parent_was(tmp_path: Path) -> None:
    wanted = FIXTURE["cancellation"]
    with CASES.run("cancellation/child"):
        began = threading.Event()

        def waits(request: ModelRequest) -> str:
            began.set()
            until(lambda: request.cancellation.cancelled, "it is cancelled")
            return "too late"

        handle = team(tmp_path, [waits], [waits])
        assert began.wait(20)
        began_at = time.monotonic()
        assert handle.cancel(wanted["reason"])
        handle.result(20)
        assert time.monotonic() - began_at < 5, "this process need not wait for a heartbeat to tell its own runs"
        (own,) = [event for event in handle.events() if event.type == "run_cancelled"]
        (below,) = [event for event in handle.events() if event.type == "sub_run_completed"]
        assert (own.reason, below.error) == (wanted["reason"], wanted["reason"])
        assert (below.completion_reason, wanted["child_reason_propagates"]) == ("cancelled", True)
