"""The Celery worker with real processes: `celery -A vv_agent.workers worker`, both pools, a real Redis."""

from __future__ import annotations

import signal
import time

import pytest

from tests.harness import QUEUE, World, crash_at, until
from tests.integration.test_kill_points import check_effects, check_result
from tests.jobs import JOBS, plan, summary
from tests.redis_server import RedisServer

POOLS = ("threads", "prefork")
GARBAGE = (
    b"garbage!!", b"\xff\xfe", b"{}", b"[1]", b'"x"', b"null", b'{"properties": {}}',
    b'{"body": "!!!", "properties": {"delivery_tag": "t", "body_encoding": "base64", "delivery_info": {}}}',
)  # fmt: skip


@pytest.mark.parametrize("pool", POOLS)
def test_a_run_goes_through_the_broker_cycle_by_cycle(cluster: World, redis_server: RedisServer, pool: str) -> None:
    cluster.celery("-c", "2", pool=pool, ready=True)
    handle = cluster.submit("k", plan({"call": [["charge", {"n": 1}]]}, {"say": "done"}))
    assert handle.result(20).final_output == "done"
    assert [c.verdict for c in cluster.effects("charge")] == ["applied"]
    assert len(cluster.effects("model_begins")) == 2
    assert redis_server.client(1).llen(f"vvq:{QUEUE}") == 0


def test_garbage_on_the_queue_never_ends_the_worker(cluster: World, redis_server: RedisServer) -> None:
    worker = cluster.celery(ready=True)
    redis_server.client(1).lpush(f"vvq:{QUEUE}", *GARBAGE)
    from vv_agent.dispatch.celery import TASK, CeleryDispatcher

    assert cluster.broker is not None
    client = CeleryDispatcher(cluster.broker)._client()
    client.send_task(TASK, args=("no recipe",), queue=QUEUE)
    client.send_task(TASK, args=(1, 2), kwargs={"a": 3}, queue=QUEUE)
    client.send_task("os.system", args=("true",), queue=QUEUE)
    handle = cluster.submit("k", plan({"say": "still here"}))
    assert handle.result(20).final_output == "still here"
    assert worker.alive
    assert worker.said().count("cannot be read was dropped") >= 5
    assert worker.said().count("recipe_invalid") == 2


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("point", ["store.claim:after", "model:after", "tool:after", "store.save.commit:after"])
def test_a_worker_killed_on_the_way_is_replaced(cluster: World, pool: str, point: str) -> None:
    with crash_at(point, cluster.folder) as env:
        first = cluster.celery("-c", "1", pool=pool, **env)
        handle = cluster.submit("k", JOBS["keyed"])
        if pool == "threads":
            assert first.wait() == -signal.SIGKILL
        else:
            until(lambda: _pid_that_died(cluster), "the child dies")
    cluster.celery("-c", "1", pool=pool)
    began = time.monotonic()
    result = handle.result(30)
    print(f"\n{pool} {point}: ended {time.monotonic() - began:.2f} s after the kill")
    check_result(point, "keyed", summary(result))
    check_effects(cluster, "k", "keyed", point)


def _pid_that_died(world: World) -> bool:
    return any(world.folder.glob("crash_*"))
