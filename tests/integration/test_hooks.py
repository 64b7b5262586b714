"""Workers that die around hooks, guardrails and repairs: nothing committed is asked again, no repair is paid unseen."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from tests.harness import World, crash_at
from tests.jobs import WATCHER, checked_agent, plan
from vv_agent.checkpoint.identity import model_operation_id
from vv_agent.run_handle import RunHandle

JOB = plan({"call": [["charge", {"n": 1}]]}, {"call": [["charge", {"n": 2}]]}, {"say": "done"})
ANSWER = "done, sincerely, and so on"
REPAIR = model_operation_id(3, "repair")


def submit(world: World) -> RunHandle:
    return world.submit("k", JOB, who=checked_agent(), after_cycle_hooks=[WATCHER])


def check(world: World, handle: RunHandle) -> Counter[int]:
    """What holds however often a worker died; how often the hook was asked about each cycle."""
    result = handle.result(30)
    assert (result.status, result.final_output) == ("completed", ANSWER), result.raw_result.error
    assert [effect.verdict for effect in world.effects("charge")].count("applied") == 1, "it is denied after the first"
    assert result.cycles[1].tool_results[0].error_code == "tool_not_allowed"
    return Counter(effect.cycle for effect in world.effects("after_cycle"))


def test_celery_carries_out_a_run_with_hooks(cluster: World) -> None:
    cluster.celery(ready=True)
    asked = check(cluster, submit(cluster))
    assert asked == {1: 1, 2: 1, 3: 1}
    assert (len(cluster.effects("guardrail")), len(cluster.effects("repair"))) == (1, 1)


@pytest.mark.parametrize(
    ("point", "asked", "repairs"),
    [
        ("store.save.commit:before:1", {1: 2, 2: 1, 3: 1}, 1),  # the decision was lost with its cycle
        ("store.save.commit:after:1", {1: 1, 2: 1, 3: 1}, 1),
        ("model:after:4", {1: 1, 2: 1, 3: 2}, 2),  # the repair was made, nobody heard of it
        ("store.save.end:before", {1: 1, 2: 1, 3: 2}, 1),
    ],
)
def test_a_worker_dies_around_a_hook(shared_world: World, point: str, asked: dict[int, int], repairs: int) -> None:
    world = shared_world
    with crash_at(point, world.folder) as env:
        handle = submit(world)
        assert world.worker(**env).wait() == -signal.SIGKILL
    last = world.worker(ready=True)
    assert check(world, handle) == asked
    assert len(world.effects("repair")) == repairs
    shown = [e.operation_id for e in handle.result().events if e.type == "model_retry_duplicate_risk"]
    assert (REPAIR in shown) is (repairs > 1)
    last.signal(signal.SIGTERM)
    assert last.wait() == 0
