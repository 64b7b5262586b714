"""Workers that die, sleep or are told to stop, and runs that are cancelled from elsewhere."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from tests.harness import World, answer_of, until
from tests.jobs import plan
from vv_agent.checkpoint.record import State
from vv_agent.errors import CheckpointError


def charge_then(**step: object) -> str:
    return plan({"call": [["charge", {"n": 1}]]}, {"say": "done", **step})


def holder(world: World, key: str) -> int:
    """Pid of the process that holds a run, 0 if none does."""
    head = world.head(key)
    return int(head.owner.split("/")[1]) if head and head.owner else 0


def busy_in(world: World, what: str, cycle: int = 1) -> int:
    """Wait until some process began a thing of a cycle and did not end it; its pid."""

    def found() -> int:
        begins = [e for e in world.effects(f"{what}_begins") if e.cycle == cycle]
        ends = {e.pid for e in world.effects(f"{what}_ends") if e.cycle == cycle}
        return next((e.pid for e in begins if e.pid not in ends), 0)

    return until(found, f"{what} of cycle {cycle} runs")


def test_the_run_of_a_killed_neighbour_goes_on_within_three_seconds(shared_world: World) -> None:
    world = shared_world
    lease = {"VV_AGENT_LEASE_SECONDS": "30"}
    workers = {w.pid: w for w in (world.worker(ready=True, **lease), world.worker(ready=True, **lease))}
    handle = world.submit("k", plan({"say": "slow", "sleep": 4.0}))
    first = busy_in(world, "model")
    workers[first].signal(signal.SIGKILL)
    killed = time.time()
    other = next(pid for pid in workers if pid != first)
    until(lambda: [e for e in world.effects("model_begins") if e.pid == other], "the neighbour goes on", 5.0)
    took = world.effects("model_begins")[-1].at - killed
    print(f"\n{world.store.url.split(':')[0]}: the neighbour went on {took:.2f} s after the kill (lease 30 s)")
    assert took < 3.0
    result = handle.result(20)
    assert (result.final_output, len(world.effects("model_ends"))) == ("slow", 1)
    assert world.head("k").attempt == 2  # type: ignore[union-attr]


def test_a_worker_that_slept_past_its_lease_commits_nothing(shared_world: World) -> None:
    world = shared_world
    workers = {w.pid: w for w in (world.worker(ready=True), world.worker(ready=True))}
    text = plan({"call": [["charge", {"n": 1, "seconds": 1.5}]]}, {"say": "done"})
    handle = world.submit("k", text)
    sleeper = busy_in(world, "tool")
    workers[sleeper].signal(signal.SIGSTOP)
    stopped = time.monotonic()
    result = handle.result(30)
    over = time.monotonic() - stopped
    workers[sleeper].signal(signal.SIGCONT)
    said = until(
        lambda: re.search(r"cycle 1 of k: lost.*", workers[sleeper].said()), "the sleeper says it lost the run"
    )
    print(f"\n{world.store.url.split(':')[0]}: taken over and ended after {over:.2f} s; then: {said.group(0)[:110]}")
    assert result.final_output == "done"
    charges = world.effects("charge")
    assert [c.verdict for c in charges] == ["applied", "repeated"]
    replay = world.runner.resume("k", store=world.store)
    assert [len(c.tool_calls) for c in replay.raw_result.cycles] == [1, 0]
    assert workers[sleeper].alive, "it goes on to work"
    assert world.submit("k2", plan({"say": "more"})).result(20).final_output == "more"


def test_a_worker_told_to_stop_gives_its_model_call_back(shared_world: World) -> None:
    world = shared_world
    lease = {"VV_AGENT_LEASE_SECONDS": "30"}
    first = world.worker(ready=True, **lease)
    handle = world.submit("k", charge_then(sleep=4.0))
    assert busy_in(world, "model", cycle=2) == first.pid
    second = world.worker(ready=True, **lease)
    asked = time.time()
    first.signal(signal.SIGTERM)
    assert first.wait(8) == 0
    gone = time.time() - asked
    until(lambda: [e for e in world.effects("model_begins") if e.pid == second.pid], "the other one goes on", 3.0)
    on = world.effects("model_begins")[-1].at - asked
    print(f"\n{world.store.url.split(':')[0]}: gone {gone:.2f} s after SIGTERM, the run went on after {on:.2f} s")
    assert gone < 5.0
    assert on < 2.0
    assert handle.result(10).final_output == "done"
    assert world.head("k").attempt == 1  # type: ignore[union-attr]
    late = world.runner.attach("k", store=world.store)
    late.result(10)
    replayed = [event.event_id for event in late.events()]
    assert len(replayed) == len(set(replayed)), "the cycle that was given back numbers its events on"
    assert [e.type for e in late.events()].count("model_retry_duplicate_risk") == 1
    followed = [e.event_id for e in handle.events() if e.type in {event.type for event in late.events()}]
    assert [i for i in followed if i in replayed] == replayed


@pytest.mark.parametrize("tool", ["charge", "launch"])
def test_a_tool_that_ends_within_the_grace_keeps_its_receipt(world: World, tool: str) -> None:
    """The effect happened and its outcome is known: no repeat, and no question to a person."""
    lease = {"VV_AGENT_LEASE_SECONDS": "30"}
    first = world.worker(ready=True, **lease)
    handle = world.submit("k", plan({"call": [[tool, {"n": 1, "seconds": 1.0}]]}, {"say": "done"}))
    assert busy_in(world, "tool") == first.pid
    second = world.worker(ready=True, **lease)
    asked = time.monotonic()
    first.signal(signal.SIGTERM)
    assert first.wait(8) == 0
    gone = time.monotonic() - asked
    result = handle.result(10)
    print(f"\n{tool} of 1 s: gone {gone:.2f} s after SIGTERM, ended after {time.monotonic() - asked:.2f} s")
    assert result.final_output == "done"
    assert len(world.effects("tool_begins")) == 1, "not called again"
    assert result.raw_result.cycles[0].tool_results[0].content.endswith("1")
    assert world.head("k").attempt == 1  # type: ignore[union-attr]
    assert {e.pid for e in world.effects("model_begins") if e.cycle == 2} == {second.pid}


def test_a_worker_told_to_stop_does_not_wait_for_a_deaf_tool_for_ever(world: World) -> None:
    first = world.worker(ready=True)
    handle = world.submit("k", plan({"call": [["launch", {"n": 1, "seconds": 60.0}]]}, {"say": "done"}))
    assert busy_in(world, "tool") == first.pid
    second = world.worker(ready=True)
    asked = time.monotonic()
    first.signal(signal.SIGTERM)
    assert first.wait(12) == 0
    gone = time.monotonic() - asked
    result = handle.result(10)
    print(f"\ndeaf tool: gone {gone:.2f} s after SIGTERM (grace 5 s)")
    assert gone < 8.0
    assert result.status == "reconciliation_required", "nobody knows whether it was launched"
    assert len(world.effects("launch")) == 1
    assert second.alive


def test_a_cancel_from_another_process_ends_a_silent_model_call(shared_world: World) -> None:
    world = shared_world
    lease = 6.0
    world.worker(ready=True, VV_AGENT_LEASE_SECONDS=str(lease))
    text = plan({"say": "x", "sleep": 120.0, "call": [["launch", {"n": 1}]]}, {"say": "done"})
    handle = world.submit("k", text)
    busy_in(world, "model")
    asked = time.monotonic()
    canceller = world.start("tests.jobs:cancel", "k")
    assert canceller.wait() == 0, canceller.said()
    assert answer_of(canceller) == {"accepted": True}
    result = handle.result(lease / 3 + 3)
    print(
        f"\n{world.store.url.split(':')[0]}: ended {time.monotonic() - asked:.2f} s after the cancel (lease {lease} s)"
    )
    assert (result.status, result.completion_reason, result.final_output) == ("failed", "cancelled", "enough")
    assert world.effects("launch") == []


def test_no_unsafe_tool_starts_after_an_accepted_cancel(shared_world: World) -> None:
    """The model is deaf, so the cancel is seen late; the tool it asks for is not started."""
    world = shared_world
    world.worker(ready=True, VV_AGENT_LEASE_SECONDS="30")
    text = plan({"call": [["charge", {"n": 1, "seconds": 1.5}], ["launch", {"n": 1}]]}, {"say": "done"})
    handle = world.submit("k", text)
    busy_in(world, "tool")
    assert world.runner.attach("k", store=world.store).cancel("enough")
    result = handle.result(14)
    assert (result.status, result.completion_reason) == ("failed", "cancelled")
    assert world.effects("launch") == []
    first, second = result.raw_result.cycles[0].tool_results
    print(f"\ncharge: {first.status_code} {first.error_code}; launch: {second.error_code}")
    assert (first.status_code, first.content) == ("SUCCESS", "charged 1"), (
        "it ended within its grace: its result counts"
    )
    assert second.error_code == "tool_execution_cancelled"


def test_a_cancel_with_no_worker_is_written_by_the_caller(shared_world: World) -> None:
    world = shared_world
    handle = world.submit("k", plan({"say": "never"}))
    asked = time.monotonic()
    canceller = world.start("tests.jobs:cancel", "k")
    assert canceller.wait() == 0, canceller.said()
    head = world.head("k")
    assert head is not None
    assert (head.state, head.status) == (State.ENDED, "failed")
    assert handle.result(5).completion_reason == "cancelled"
    print(f"\n{world.store.url.split(':')[0]}: ended by the caller after {time.monotonic() - asked:.2f} s")
    assert world.effects() == []


def test_whoever_follows_a_run_that_is_deleted_is_told(shared_world: World) -> None:
    handle = shared_world.submit("k", plan({"say": "never"}))
    assert shared_world.store.delete("k")
    with pytest.raises(CheckpointError, match="checkpoint_not_found"):
        handle.result(5)


def test_a_run_that_waits_for_a_decision_can_be_cancelled(world: World) -> None:
    first = world.worker(ready=True)
    handle = world.submit("k", plan({"call": [["launch", {"n": 1, "seconds": 60.0}]]}, {"say": "done"}))
    assert busy_in(world, "tool") == first.pid
    first.signal(signal.SIGKILL)
    first.wait()
    second = world.worker(ready=True)
    assert handle.result(10).status == "reconciliation_required"
    second.signal(signal.SIGTERM)
    second.wait()
    assert handle.cancel("never mind")
    head = world.head("k")
    assert head is not None
    assert head.state in (State.ENDED, State.READY)
    if head.state is State.READY:  # a worker still counts as present: the next one ends it
        world.worker(ready=True)
    result = until(lambda: _ended(world), "the cancel is carried out", 20.0)
    assert result.completion_reason == "cancelled"
    assert len(world.effects("launch")) == 1
    assert os.getpid() not in {e.pid for e in world.effects()}


def _ended(world: World) -> object:
    head = world.head("k")
    return world.runner.resume("k", store=world.store) if head and head.state is State.ENDED else None
