"""A worker dies at every boundary of a cycle, before and after it; the run ends all the same, and nothing is done twice.

The effects are those that the recorder was told; the runtime is asked only for its state and result.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.harness import QUEUE, World, answer_of, crash_at
from tests.jobs import JOBS, summary
from vv_agent.checkpoint.identity import tool_operation_id
from vv_agent.checkpoint.record import Filter, State
from vv_agent.runtime.owner import process_host
from vv_agent.runtime.transcript import unpack

SAVES = {"keyed": "progress", "unsafe": "started", "decidable": "started"}
"""Which save stands between the model's receipt and the tool of a job."""
LAUNCHED = ("tool:before", "tool:after", "store.save.started:after", "store.save.commit:before")
"""Where the unsafe job may have had its effect and nobody can tell."""


def points(job: str) -> list[str]:
    """Every boundary a job passes, both sides; models and claims of both cycles."""
    names = ["store.create", "store.claim", "model", f"store.save.{SAVES[job]}", "tool", "store.save.commit"]
    first = [f"{name}:{side}" for name in names for side in ("before", "after")]
    return [*first, "model:before:2", "model:after:2", "store.save.end:before", "store.save.end:after"]


def held_at(point: str) -> bool:
    """Whether the process holds the claim at that moment."""
    return not point.startswith("store.create") and point not in ("store.claim:before", "store.save.end:after")


def check_effects(world: World, key: str, job: str, point: str) -> None:
    """What the outside world saw of a run that was interrupted at `point`."""
    by_cycle: dict[int, set[str]] = {}
    for effect in world.effects("sees"):
        by_cycle.setdefault(effect.cycle, set()).add(effect.key)
    assert all(len(seen) == 1 for seen in by_cycle.values()), f"{key} at {point}: two histories of a cycle {by_cycle}"
    if job == "keyed":
        charges = world.effects("charge")
        assert [c.verdict for c in charges].count("applied") == 1, f"{key} at {point}: {charges}"
        assert len({c.key for c in charges}) == 1, f"{key} at {point}: the key changed {charges}"
    if job == "unsafe":
        launches = world.effects("launch")
        assert len(launches) <= 1, f"{key} at {point}: launched twice"
        assert len(launches) == (1 if point not in ("tool:before", "store.save.started:after") else 0), point
    if job == "decidable":
        assert (world.workspace / "out.txt").read_text() == "apple", point


def check_result(point: str, job: str, result: dict[str, object]) -> None:
    if job == "unsafe" and point in LAUNCHED:
        assert result["status"] == "reconciliation_required", f"{point}: {result}"
        observation = result["observation"]
        assert isinstance(observation, dict)
        assert observation["operation_id"] == tool_operation_id(1, 1), observation
        assert observation["operation_kind"] == "tool", observation
        return
    assert (result["status"], result["output"], result["cycles"]) == ("completed", "done", 2), f"{point}: {result}"


@pytest.mark.parametrize("job", JOBS)
def test_an_inline_run_killed_anywhere_ends_when_the_call_is_made_again(world: World, tmp_path: Path, job: str) -> None:
    began, kills, held = time.monotonic(), 0, 0
    for number, point in enumerate(points(job)):
        key = f"{job}_{number}"
        world.clear()
        (world.workspace / "out.txt").unlink(missing_ok=True)
        with crash_at(point, tmp_path) as env:
            assert world.inline(job, key, **env).wait() == -signal.SIGKILL
        kills += 1
        head = world.head(key)
        if point == "store.create:before":
            assert head is None
        else:
            assert head is not None
            assert (head.state is State.CLAIMED) == held_at(point), f"{point}: {head.state}"
            held += held_at(point)
        again = world.inline(job, key)
        assert again.wait() == 0, again.said()
        check_result(point, job, answer_of(again))
        check_effects(world, key, job, point)
        _one_commit_a_cycle(world, key)
        replay = world.inline(job, key)
        assert replay.wait() == 0
        check_result(point, job, answer_of(replay))
        check_effects(world, key, job, point)
    print(f"\ninline {job}: {kills} kills, {held} under a claim, {time.monotonic() - began:.1f} s")


def _one_commit_a_cycle(world: World, key: str) -> None:
    """Each cycle has one model receipt and one result of each call in the stored transcript."""
    snapshot = world.store.load(key)
    assert snapshot is not None
    items = [item for entry in snapshot.log for item in unpack(entry.body, "log")]
    receipts = [tuple(item[: 2 if item[0] == "a" else 3]) for item in items if item[0] in ("a", "t")]
    assert len(receipts) == len(set(receipts)), f"{key}: doubled receipts {receipts}"


@pytest.mark.parametrize("point", ["store.create:after", "dispatch:before", "dispatch:after"])
def test_a_client_killed_after_it_created_a_run_loses_nothing(world: World, tmp_path: Path, point: str) -> None:
    began = time.monotonic()
    with crash_at(point, tmp_path) as env:
        assert world.start("tests.jobs:submit", "keyed", "k", str(world.workspace), **env).wait() == -signal.SIGKILL
    world.worker(ready=True)
    result = world.runner.attach("k", store=world.store).result(20)
    check_result(point, "keyed", summary(result))
    check_effects(world, "k", "keyed", point)
    print(f"\nclient {point}: ended {time.monotonic() - began:.2f} s after its start")


@pytest.mark.parametrize("job", JOBS)
def test_a_distributed_run_killed_anywhere_is_finished_by_another_worker(
    shared_world: World, tmp_path: Path, job: str
) -> None:
    world = shared_world
    began, kills, times = time.monotonic(), 0, []
    for number, point in enumerate(points(job)):
        if point.startswith("store.create"):
            continue  # the client's, not a worker's
        key = f"{job}_{number}"
        world.clear()
        (world.workspace / "out.txt").unlink(missing_ok=True)
        with crash_at(point, tmp_path) as env:
            first = world.worker(**env)
            handle = world.submit(key, JOBS[job])
            assert first.wait() == -signal.SIGKILL
        died, kills = time.monotonic(), kills + 1
        head = world.head(key)
        assert head is not None
        assert (head.state is State.CLAIMED) == (held_at(point) and point != "store.save.commit:after"), point
        second = world.worker(ready=True)
        result = handle.result(30)
        times.append(time.monotonic() - died)
        second.signal(signal.SIGTERM)
        check_result(point, job, summary(result))
        check_effects(world, key, job, point)
        _one_commit_a_cycle(world, key)
        assert second.wait() == 0
    assert not world.store.find(Filter(states=frozenset({State.CLAIMED}), host=process_host()))
    print(
        f"\nworkers {job} {world.store.url.split(':')[0]} queue {QUEUE}: {kills} kills, gone on and ended after "
        f"{sum(times) / len(times):.2f} s on average, {max(times):.2f} s at most, {time.monotonic() - began:.1f} s in all"
    )
