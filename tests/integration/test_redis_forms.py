"""The Redis store on every server it is meant for: 6.2, the system's, a cluster of three nodes, one that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers
from tests.harness import World, until
from tests.integration.test_chaos import job, judge
from tests.redis_server import RedisServer, any_redis, database, system_redis
from tests.spawner import Spawner
from vv_agent import NoToolPolicy
from vv_agent.checkpoint.record import Filter, State


def suite(url: str, *files: str) -> str:
    """Run a suite on a server; its last lines."""
    command = [sys.executable, "-m", "pytest", *files, "-q", "-k", "redis and not forms", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, env={**os.environ, "VV_TEST_REDIS_URL": url}, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return next(line for line in reversed(done.stdout.splitlines()) if "passed" in line)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["bundled", "system"])
def test_the_contract_holds_on_each_version(tmp_path: Path, which: str) -> None:
    binary = servers.bundled_redis() if which == "bundled" else system_redis()
    if binary is None:
        pytest.skip(f"no {which} redis-server")
    server = RedisServer(tmp_path, binary)
    try:
        version = server.client().info("server")["redis_version"]
        print(f"\nRedis {version}: {suite(server.url(), 'tests/contract/test_store.py')}")
        if which == "bundled":
            print(f"Redis {version}: {suite(server.url(), 'tests/integration/test_races.py')}")
    finally:
        server.kill()


@pytest.fixture
def three_nodes(tmp_path: Path) -> Iterator[str]:
    """A cluster of three nodes; its URL."""
    binary = any_redis()
    if binary is None:
        pytest.skip(servers.MISSING["a redis of its own"])
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "5000")
    nodes = [RedisServer(tmp_path / f"node{n}", binary, *options, databases=1) for n in range(3)]
    try:
        clients = [node.client() for node in nodes]
        for n, client in enumerate(clients):
            first, last = n * 16384 // 3, (n + 1) * 16384 // 3
            client.execute_command("CLUSTER", "ADDSLOTS", *range(first, last))
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port)
        until(lambda: all(_agreed(client) for client in clients), "the cluster agrees", 20.0)
        yield f"redis+cluster://127.0.0.1:{nodes[0].port}"
    finally:
        for node in nodes:
            node.kill()


def _agreed(client: object) -> bool:
    info = client.execute_command("CLUSTER", "INFO")  # type: ignore[attr-defined]
    fields = info if isinstance(info, dict) else dict(line.split(":") for line in info.decode().split())
    return fields["cluster_state"] == "ok" and int(fields["cluster_known_nodes"]) == 3


@pytest.mark.slow
def test_the_contract_holds_on_a_cluster_of_three_nodes(three_nodes: str) -> None:
    print(f"\nthree nodes: {suite(three_nodes, 'tests/contract/test_store.py')}")
    print(f"three nodes: {suite(three_nodes, 'tests/integration/test_races.py')}")


def test_a_killed_redis_loses_nothing_it_acknowledged(
    spawner: Spawner, tmp_path: Path, redis_server: RedisServer
) -> None:
    """appendfsync always; the server is killed three times while sixty runs go on, and started again."""
    binary = any_redis()
    assert binary is not None
    server = RedisServer(tmp_path / "store", binary, durable=True)
    world = World(spawner, tmp_path, server.url(), broker=redis_server.url(database()))
    try:
        worker = world.celery("-c", "8", ready=True)
        ended, open_ = Filter(states=frozenset({State.ENDED})), []
        world.create({f"run_{n}": job(n) for n in range(60)}, NoToolPolicy.CONTINUE)
        for _ in range(3):
            time.sleep(0.4)
            open_.append(60 - len(world.store.find(ended)))
            server.kill()
            time.sleep(0.4)
            server.start()
        began = time.monotonic()
        until(lambda: len(world.store.find(ended)) == 60, "all end", 90.0)
        print(f"\nkilled with {open_} runs open; all 60 ended {time.monotonic() - began:.1f} s after the last start")
        assert min(open_) > 0
        judge(world, 60)
        assert worker.alive
    finally:
        world.close()
        server.kill()
