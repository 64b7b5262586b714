"""A cluster's misfortunes, with real workers: wrong clocks, namespaces, queues, crowds, servers that are gone or mute."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from celery import Celery

from tests import servers
from tests.harness import QUEUE, World, until
from tests.integration.test_neighbours import busy_in
from tests.jobs import agent, plan
from tests.redis_server import RedisServer, any_redis, database, free_port
from tests.spawner import Spawner, Started
from vv_agent import NoToolPolicy, RunConfig
from vv_agent.checkpoint.record import Filter, State
from vv_agent.dispatch.celery import CeleryDispatcher
from vv_agent.dispatch.distributed import DistributedBackend
from vv_agent.run_handle import RunHandle

POOLS = ("threads", "prefork")
TWO_HOURS = "7200"


def models(world: World) -> list[tuple[str, int]]:
    """Run and cycle of every model call that was begun."""
    return [(effect.run_id, effect.cycle) for effect in world.effects("model_begins")]


def test_a_worker_two_hours_ahead_steals_no_lease_and_loses_none(cluster: World) -> None:
    """Leases of 2 s under calls of 5 s: the store's clock decides, whoever's is wrong."""
    argv = ("-A", "vv_agent.workers", "worker", "-l", "INFO", "-c", "2")
    ahead = cluster.start("tests.clocks:celery_ahead", TWO_HOURS, *argv, C_FORCE_ROOT="1")
    right = cluster.celery("-c", "2", ready=True)
    until(lambda: " ready." in ahead.said(), "the worker ahead is ready")
    handles = [cluster.submit(f"k{n}", plan({"say": "slow", "sleep": 5.0})) for n in range(4)]
    until(lambda: {e.pid for e in cluster.effects("model_begins")} == {ahead.pid, right.pid}, "both hold runs")
    assert [handle.result(40).final_output for handle in handles] == ["slow"] * 4
    attempts = [cluster.head(f"k{n}").attempt for n in range(4)]  # type: ignore[union-attr]
    print(f"\n{re.findall('the wall clock.*', ahead.said())}; attempts {attempts}, {len(models(cluster))} model calls")
    assert attempts == [1] * 4
    assert len(models(cluster)) == 4
    assert not re.search("lost|dead process", ahead.said() + right.said())


@contextmanager
def in_a_pid_namespace(world: World, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Celery worker that sees no process but its own, with process ids that start at 1."""
    words = [sys.executable, "-m", "celery", "-A", "vv_agent.workers", "worker", "-l", "INFO", "-c", "2"]
    env = {**world.env, "C_FORCE_ROOT": "1", "VV_AGENT_LEASE_SECONDS": "4"}
    with (world.folder / f"{name}.log").open("wb") as log:
        command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *words]
        worker = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        yield worker
    finally:
        worker.kill()
        worker.wait()


def test_workers_in_two_pid_namespaces_take_nothing_from_a_living_owner(cluster: World) -> None:
    """Each sees process 1 only: to each the other's owner looks like a process that is no more."""
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "--pid", "--fork", "true"], check=False).returncode
    ):
        pytest.skip("no pid namespaces: unshare is not there or not permitted")
    with in_a_pid_namespace(cluster, "one"), in_a_pid_namespace(cluster, "two"):
        shown = until(lambda: len(p := cluster.store.presences()) == 2 and p, "both are there")
        hosts = {presence.id.partition("@")[2].split("/")[0] for presence in shown}
        assert len(hosts) == 2, "two namespaces are two hosts"
        handles = [cluster.submit(f"k{n}", plan({"say": "slow", "sleep": 6.0})) for n in range(4)]
        assert [handle.result(40).final_output for handle in handles] == ["slow"] * 4
    owners = {effect.pid for effect in cluster.effects("model_begins")}
    print(
        f"\nfour calls of 6 s under leases of 4 s by process {owners} of two namespaces: {len(models(cluster))} begun"
    )
    assert len(models(cluster)) == 4
    assert [cluster.head(f"k{n}").attempt for n in range(4)] == [1] * 4  # type: ignore[union-attr]


def submit_to(world: World, queue: str, key: str, text: str) -> RunHandle:
    assert world.broker is not None
    backend = DistributedBackend(CeleryDispatcher(world.broker), queue=queue, fallback=False)
    config = RunConfig(checkpoint_key=key, execution_backend=backend)
    return world.runner.start(agent(), text, run_config=config)


def test_a_run_is_done_by_the_workers_of_its_queue_and_by_no_others(cluster: World) -> None:
    interactive = cluster.celery("-Q", "interactive", "-c", "4", ready=True)
    for n in range(3):
        submit_to(cluster, "batch", f"b{n}", plan({"call": [["charge", {"n": n}]]}, {"say": "batch"}))
    quick = [submit_to(cluster, "interactive", f"i{n}", plan({"say": "at once"})) for n in range(3)]
    assert [handle.result(20).final_output for handle in quick] == ["at once"] * 3
    until(lambda: cluster.store.now() > cluster.head("b0").created_at + 9_500, "the batch runs are past due")  # type: ignore[union-attr]
    assert {cluster.head(f"b{n}").state for n in range(3)} == {State.READY}  # type: ignore[union-attr]
    assert {effect.pid for effect in cluster.effects()} == {interactive.pid}
    batch = cluster.celery("-Q", "batch", "-c", "4", ready=True)
    until(lambda: len(cluster.store.find(Filter(states=frozenset({State.ENDED})))) == 6, "the batch runs end", 40.0)
    by = {effect.run_id: effect.pid for effect in cluster.effects("charge")}
    print(
        f"\n3 runs of queue batch waited 9.5 s beside a free worker of queue interactive; then process {batch.pid}: {by}"
    )
    assert set(by.values()) == {batch.pid}


def test_a_run_of_a_thousand_cycles_does_not_starve_short_ones(cluster: World) -> None:
    """One slot: the long run goes back to the end of the queue after each cycle."""
    cluster.celery("-c", "1", ready=True)
    steps = [{"say": f"{n}"} for n in range(999)]
    long = cluster.submit("long", plan(*steps, {"say": "end"}), NoToolPolicy.CONTINUE, max_cycles=1000)
    until(lambda: (head := cluster.head("long")) and head.cycle > 20, "the long run is under way")
    began = time.monotonic()
    short = [cluster.submit(f"s{n}", plan({"say": "short"})) for n in range(10)]
    assert [handle.result(20).final_output for handle in short] == ["short"] * 10
    took, at = time.monotonic() - began, cluster.head("long").cycle  # type: ignore[union-attr]
    print(f"\nten short runs ended {took:.2f} s after they were started, the long one was at cycle {at} of 1000")
    assert at < 900
    assert took < 10.0
    assert long.cancel("enough")
    long.result(20)


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_whose_slots_are_taken_leaves_the_rest_to_the_queue(cluster: World, pool: str) -> None:
    cluster.celery("-c", "2", pool=pool, ready=True)
    handles = [cluster.submit(f"k{n}", plan({"say": "one", "sleep": 1.5})) for n in range(8)]
    until(lambda: len(cluster.effects("model_begins")) == 2, "both slots are taken")
    waiting = cluster.broker_client.llen(f"vvq:{QUEUE}")
    second = cluster.celery("-c", "4", pool=pool, ready=True)
    assert [handle.result(40).final_output for handle in handles] == ["one"] * 8
    most = _most_at_once(cluster, second)
    print(f"\n{pool}: two slots taken, {waiting} of 8 messages left in the queue for others; at once at most {most}")
    assert waiting >= 4, "it holds no more messages than slots, and one for each it is about to free"
    assert most[0] <= 2
    assert len(models(cluster)) == 8


def _most_at_once(world: World, second: Started) -> tuple[int, int]:
    """How many model calls the first worker and all had under way at the same time."""
    most, running = [0, 0], [set[str](), set[str]()]
    children = {int(p) for p in _children(second.pid)} | {second.pid}
    for effect in world.effects():
        if effect.what not in ("model_begins", "model_ends"):
            continue
        for side in (0, 1):
            if side == 0 and effect.pid in children:
                continue
            (running[side].add if effect.what == "model_begins" else running[side].discard)(effect.run_id)
            most[side] = max(most[side], len(running[side]))
    return most[0], most[1]


def _children(pid: int) -> list[str]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return path.read_text().split() if path.exists() else []


@pytest.fixture
def rabbit(spawner: Spawner, tmp_path: Path, redis_server: RedisServer) -> Iterator[World]:
    """A world whose broker is the RabbitMQ of this machine, with a queue of its own that is removed afterwards."""
    url = os.environ.get("VV_TEST_RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//")
    if "VV_TEST_RABBITMQ_URL" not in os.environ:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", 5672)):
                servers.MISSING["rabbitmq"] = "no RabbitMQ at 127.0.0.1:5672 (set VV_TEST_RABBITMQ_URL)"
                pytest.skip(servers.MISSING["rabbitmq"])
    made = World(spawner, tmp_path, redis_server.url(database()), broker=url)
    made.env["VV_AGENT_QUEUE"] = f"vv-test-{uuid.uuid4().hex[:12]}"
    yield made
    made.close()
    with Celery(broker=url, set_as_current=False).connection_for_write() as connection:
        channel = connection.channel()
        for queue in (made.env["VV_AGENT_QUEUE"],):
            channel.queue_delete(queue)
            channel.exchange_delete(queue)


@pytest.mark.parametrize("pool", POOLS)
def test_rabbitmq_carries_the_hints_and_gives_a_killed_workers_back(rabbit: World, pool: str) -> None:
    queue = rabbit.env["VV_AGENT_QUEUE"]
    first = rabbit.celery("-c", "1", pool=pool, ready=True)
    text = plan({"call": [["charge", {"n": 1}]]}, {"say": "done", "sleep": 1.0})
    handles = [submit_to(rabbit, queue, f"k{n}", text) for n in range(3)]
    busy = busy_in(rabbit, "model", cycle=2)
    os.kill(busy, signal.SIGKILL)
    if pool == "threads":
        assert first.wait() == -signal.SIGKILL
        rabbit.celery("-c", "1", pool=pool, ready=True)
    assert [handle.result(40).final_output for handle in handles] == ["done"] * 3
    charges = [charge.verdict for charge in rabbit.effects("charge")]
    print(f"\nRabbitMQ, {pool}: 3 runs of 2 cycles, one SIGKILL: {len(models(rabbit))} model calls, charges {charges}")
    assert charges.count("applied") == 3
    assert len(models(rabbit)) in (6, 7)


def test_a_worker_whose_store_is_not_there_says_so_and_ends(cluster: World) -> None:
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    for pool in POOLS:
        worker = cluster.celery("-c", "1", pool=pool, VV_AGENT_STORE=nowhere)
        began = time.monotonic()
        code = worker.wait(40)
        print(f"\n{pool}: exit code {code} after {time.monotonic() - began:.1f} s: {worker.said().strip()[-160:]}")
        assert code != 0
        assert "store_unavailable" in worker.said()
        assert nowhere in worker.said()
        assert "Traceback" not in worker.said()


@pytest.mark.slow
def test_a_server_that_goes_mute_is_found_again_or_the_worker_ends(spawner: Spawner, tmp_path: Path) -> None:
    """Store and broker keep their connections and answer nothing for 40 s, as behind a cable that was pulled."""
    binary = any_redis()
    assert binary is not None
    server = RedisServer(tmp_path / "server", binary)
    world = World(spawner, tmp_path, server.url(0), broker=server.url(1))
    try:
        worker = world.celery("-c", "2", ready=True)
        assert world.submit("before", plan({"say": "before"})).result(20).final_output == "before"
        server.signal(signal.SIGSTOP)
        time.sleep(40.0)  # the outage itself
        server.signal(signal.SIGCONT)
        back = time.monotonic()
        handle = world.submit("after", plan({"say": "after"}))
        assert handle.result(30).final_output == "after"
        print(f"\nmute for 40 s; the next run ended {time.monotonic() - back:.1f} s after the server's return")
        assert worker.alive
    finally:
        world.close()
        server.kill()


@contextmanager
def in_a_group(world: World, name: str, pool: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Celery worker that leads a process group of its own, as a shell or systemd starts it."""
    words = [sys.executable, "-m", "celery", "-A", "vv_agent.workers", "worker", "-l", "INFO", "-c", "2"]
    env = {**world.env, "C_FORCE_ROOT": "1", "VV_AGENT_LEASE_SECONDS": "30", "VV_AGENT_POOL": pool}
    with (world.folder / f"{name}.log").open("wb") as log:
        worker = subprocess.Popen(words, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        yield worker
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


@pytest.mark.parametrize("pool", POOLS)
def test_sigterm_to_the_whole_process_group_gives_the_runs_back(cluster: World, pool: str) -> None:
    """systemd and `kill -- -PGID` reach the pool's children too."""
    with in_a_group(cluster, "first", pool) as first:
        until(lambda: len(cluster.store.presences()) >= (1 if pool == "threads" else 2), "the worker is there")
        handle = cluster.submit("k", plan({"say": "slow", "sleep": 120.0}))
        busy = busy_in(cluster, "model")
        cluster.celery("-c", "2", pool=pool, ready=True, VV_AGENT_LEASE_SECONDS="30")
        asked = time.time()
        os.killpg(first.pid, signal.SIGTERM)
        again = until(
            lambda: [e for e in cluster.effects("model_begins") if e.pid != busy], "it goes on elsewhere", 6.0
        )
        first.wait(10)
        gone = time.time() - asked
        print(
            f"\n{pool}: gone {gone:.2f} s after SIGTERM to the group, the run went on after {again[0].at - asked:.2f} s"
        )
    assert cluster.head("k").attempt == 1  # type: ignore[union-attr]
    assert handle.cancel("enough")
    assert handle.result(15).completion_reason == "cancelled"
