"""The Celery worker with real processes: `celery -A vv_agent.workers worker`, both pools, a real Redis."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.harness import QUEUE, World, crash_at, until
from tests.integration.test_kill_points import check_effects, check_result
from tests.integration.test_neighbours import busy_in
from tests.jobs import JOBS, plan, summary
from tests.redis_server import RedisServer, any_redis, database
from tests.spawner import Spawner
from vv_agent import NoToolPolicy
from vv_agent.checkpoint.store import LISTENS
from vv_agent.dispatch.celery import TASK, CeleryDispatcher
from vv_agent.runtime.recipe import CycleRecipe

POOLS = ("threads", "prefork")
GARBAGE = (
    b"garbage!!", b"\xff\xfe", b"{}", b"[1]", b'"x"', b"null", b'{"properties": {}}',
    b'{"body": "!!!", "properties": {"delivery_tag": "t", "body_encoding": "base64", "delivery_info": {}}}',
)  # fmt: skip


@pytest.mark.parametrize("pool", POOLS)
def test_a_run_goes_through_the_broker_cycle_by_cycle(cluster: World, pool: str) -> None:
    cluster.celery("-c", "2", pool=pool, ready=True)
    handle = cluster.submit("k", plan({"call": [["charge", {"n": 1}]]}, {"say": "done"}))
    assert handle.result(20).final_output == "done"
    assert [c.verdict for c in cluster.effects("charge")] == ["applied"]
    assert len(cluster.effects("model_begins")) == 2
    assert cluster.broker_client.llen(f"vvq:{QUEUE}") == 0


def test_garbage_on_the_queue_never_ends_the_worker(cluster: World) -> None:
    worker = cluster.celery(ready=True)
    cluster.broker_client.lpush(f"vvq:{QUEUE}", *GARBAGE)
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


@pytest.mark.parametrize(
    ("pool", "point"),
    [
        ("threads", "model:after"),
        ("prefork", "model:after"),
        *(
            pytest.param(pool, point, marks=pytest.mark.slow)
            for pool in POOLS
            for point in ("store.claim:after", "tool:after", "store.save.commit:after")
        ),
    ],
)
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


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_told_to_stop_gives_its_model_call_back(cluster: World, pool: str) -> None:
    """A model call of two minutes: the worker is gone at once, the run goes on elsewhere, no attempt counted."""
    lease = {"VV_AGENT_LEASE_SECONDS": "30"}
    first = cluster.celery("-c", "2", pool=pool, ready=True, **lease)
    handle = cluster.submit("k", plan({"say": "slow", "sleep": 120.0}))
    busy = busy_in(cluster, "model")
    second = cluster.celery("-c", "2", pool=pool, ready=True, **lease)
    asked = time.time()
    first.signal(signal.SIGTERM)
    again = until(lambda: [e for e in cluster.effects("model_begins") if e.pid != busy], "it goes on elsewhere", 5.0)
    on = again[0].at - asked
    assert first.wait(10) == 0, first.said()
    gone = time.time() - asked
    print(f"\n{pool}: gone {gone:.2f} s after SIGTERM, the run went on after {on:.2f} s")
    assert cluster.head("k").attempt == 1  # type: ignore[union-attr]
    assert handle.cancel("enough")
    assert handle.result(15).completion_reason == "cancelled"
    assert second.alive


@pytest.mark.parametrize("pool", POOLS)
def test_a_running_tool_gets_the_grace_of_a_worker_that_stops(cluster: World, pool: str) -> None:
    lease = {"VV_AGENT_LEASE_SECONDS": "30"}
    first = cluster.celery("-c", "2", pool=pool, ready=True, **lease)
    handle = cluster.submit("k", plan({"call": [["launch", {"n": 1, "seconds": 2.0}]]}, {"say": "done"}))
    busy_in(cluster, "tool")
    cluster.celery("-c", "2", pool=pool, ready=True, **lease)
    asked = time.monotonic()
    first.signal(signal.SIGTERM)
    assert first.wait(10) == 0, first.said()
    gone = time.monotonic() - asked
    assert handle.result(15).final_output == "done"
    print(f"\n{pool}: gone {gone:.2f} s after SIGTERM with a tool of 2 s, ended after {time.monotonic() - asked:.2f} s")
    assert len(cluster.effects("tool_begins")) == 1, "not called again"
    assert cluster.head("k").attempt == 1  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_cycle_delivered_again_and_again_runs_once(cluster: World) -> None:
    """Visibility timeout 2 s, cycles of 5 s: the broker delivers each two or three times."""
    workers = [cluster.celery("-c", "4", ready=True, VV_AGENT_VISIBILITY_SECONDS="2") for _ in range(2)]
    handle = cluster.submit("k", plan({"call": [["charge", {"n": 1, "seconds": 5.0}]]}, {"say": "done", "sleep": 5.0}))
    assert handle.result(40).final_output == "done"
    received = sum(w.said().count("received") for w in workers)
    print(f"\n2 cycles of 5 s under a visibility timeout of 2 s: {received} deliveries, 2 model calls")
    assert received >= 4
    assert len(cluster.effects("model_begins")) == 2
    assert len(cluster.effects("charge")) == 1
    assert cluster.head("k").attempt == 1  # type: ignore[union-attr]


def test_a_worker_that_slept_past_its_lease_commits_nothing(cluster: World) -> None:
    """Four runs that it holds go on elsewhere; once it wakes up each of its late commits is refused."""
    sleeper = cluster.celery("-c", "4", ready=True)
    text = plan({"call": [["charge", {"n": 1, "seconds": 1.5}]]}, {"say": "done"})
    handles = [cluster.submit(f"k{n}", text) for n in range(4)]
    until(lambda: len(cluster.effects("tool_begins")) == 4, "it holds all four")
    sleeper.signal(signal.SIGSTOP)
    cluster.celery("-c", "4", ready=True)
    assert [handle.result(30).final_output for handle in handles] == ["done"] * 4
    sleeper.signal(signal.SIGCONT)
    lost = until(
        lambda: len(s := set(re.findall(r"cycle 1 of (k\d): lost", sleeper.said()))) == 4 and s, "it lost all four"
    )
    print(f"\nrefused after SIGCONT: {sorted(lost)}")
    for n in range(4):
        cycles = cluster.runner.resume(f"k{n}", store=cluster.store).raw_result.cycles
        assert [len(cycle.tool_calls) for cycle in cycles] == [1, 0]
    assert Counter(c.verdict for c in cluster.effects("charge")) == {"applied": 4, "repeated": 4}
    assert cluster.submit("more", plan({"say": "more"})).result(20).final_output == "more"


def test_messages_flushed_from_the_broker_lose_nothing(cluster: World) -> None:
    worker = cluster.celery("-c", "1", ready=True)
    handles = [cluster.submit(f"k{n}", plan({"say": "one", "sleep": 1.0})) for n in range(6)]
    busy_in(cluster, "model")
    queued = cluster.broker_client.llen(f"vvq:{QUEUE}")
    cluster.broker_client.flushdb()
    began = time.monotonic()
    assert [handle.result(60).final_output for handle in handles] == ["one"] * 6
    print(f"\n{queued} of {queued} queued messages flushed; all ended {time.monotonic() - began:.1f} s later")
    assert queued >= 4
    assert len(cluster.effects("model_begins")) == 6
    assert worker.alive


@pytest.mark.parametrize("outage", [3.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_runs_go_on_while_the_broker_is_down(
    spawner: Spawner, tmp_path: Path, redis_server: RedisServer, outage: float
) -> None:
    binary = any_redis()
    assert binary is not None
    broker = RedisServer(tmp_path / "broker", binary)
    world = World(spawner, tmp_path, redis_server.url(database()), broker=broker.url())
    try:
        worker = world.celery(ready=True)
        steps = [{"say": f"{n}", "sleep": 0.1} for n in range(30)]
        handle = world.submit(
            "k", plan(*steps, {"call": [["task_finish", {"message": "end"}]]}), NoToolPolicy.CONTINUE, max_cycles=50
        )
        busy_in(world, "model", cycle=3)
        broker.kill()
        began = time.monotonic()
        assert handle.result(60).final_output == "end"
        took = time.monotonic() - began
        second = world.submit("k2", plan({"say": "while it is down"}))
        assert second.result(30).final_output == "while it is down"
        started = 0
        while time.monotonic() - began < outage:  # one run after another, until it comes back
            started += 1
            assert world.submit(f"d{started}", plan({"say": "down", "sleep": 0.2})).result(30).final_output == "down"
        down = time.monotonic() - began
        broker.start()
        back = time.monotonic()
        until(lambda: worker.said().count("Connected to") >= 2, "the worker finds the broker again", 30.0)
        print(
            f"\nno broker for {down:.1f} s: 28 cycles in {took:.1f} s and {started + 1} new runs; found again "
            f"{time.monotonic() - back:.1f} s after its return"
        )
        time.sleep(3.0)  # the dispatchers try again
        assert world.submit("k3", plan({"say": "back"})).result(20).final_output == "back"
        assert len(world.effects("model_begins")) == 33 + started
        assert worker.alive
    finally:
        world.close()
        broker.kill()


def test_a_duplicate_delivery_costs_one_verb(cluster: World) -> None:
    """Counted at the server: the commands of one store verb, no model and no tool call."""
    worker = cluster.celery(ready=True, VV_AGENT_LEASE_SECONDS="30")
    handle = cluster.submit("k", plan({"call": [["charge", {"n": 1, "seconds": 4.0}]]}, {"say": "done"}))
    busy_in(cluster, "tool")
    head = cluster.head("k")
    assert head is not None
    assert cluster.broker is not None
    recipe, dispatcher = CycleRecipe.of(head, cluster.store.id), CeleryDispatcher(cluster.broker)
    server = redis.Redis.from_url(cluster.url)

    def scripts() -> int:
        return int(server.info("commandstats")["cmdstat_evalsha"]["calls"])

    before = scripts()
    for _ in range(5):
        assert dispatcher.dispatch(recipe)
    until(lambda: worker.said().count("succeeded in") >= 5, "the duplicates are done")
    spent, others = scripts() - before, int(LISTENS) + 1
    print(f"\n5 duplicates of a cycle under way: {spent} scripts of the store, whoever ran them")
    assert 5 <= spent <= 5 + others, "one each, and those of readers here who say that they are there"
    assert len(cluster.effects("tool_begins")) == 1
    assert handle.result(20).final_output == "done"
    assert len(cluster.effects("model_begins")) == 2
    assert len(cluster.effects("tool_begins")) == 1


def test_a_hundred_readers_of_a_run_see_all_of_it_for_the_price_of_one(cluster: World) -> None:
    """Durable events and text come from the Celery worker to this process; the readers share one look at the store:
    a further one costs its attach and its result, and nothing while the run goes on."""
    cluster.celery(ready=True)
    server = redis.Redis.from_url(cluster.url)

    def commands() -> int:
        return int(server.info("stats")["total_commands_processed"])

    seen: dict[int, list[str]] = {}
    alone = _commands_of(cluster, commands, "one", 1, seen)
    many = _commands_of(cluster, commands, "many", 100, seen)
    print(f"\na run of 11 cycles: {alone} commands of the server with one reader, {many} with a hundred")
    assert (many - alone) / 99 < 15
    assert seen[0].count("assistant_delta") >= 10
    durable = [[e for e in events if e != "assistant_delta"] for events in seen.values()]
    assert all(events == durable[0] for events in durable)
    assert seen[0][-1] == "run_completed"


def _commands_of(world: World, commands: Callable[[], int], key: str, readers: int, seen: dict[int, list[str]]) -> int:
    """Run a job with so many readers in this process; what that cost the server."""
    before = commands()
    steps = [{"say": f"thought {n}", "sleep": 0.1} for n in range(10)]
    text = plan(*steps, {"call": [["task_finish", {"message": "end"}]]})
    first = world.submit(key, text, NoToolPolicy.CONTINUE, max_cycles=20)
    handles = [first, *(world.runner.attach(key, store=world.store) for _ in range(readers - 1))]
    for handle in handles:
        handle.result(60)
    spent = commands() - before
    seen.update({n: [e.type for e in handle.events() if e.type != "diagnostic"] for n, handle in enumerate(handles)})
    return spent
