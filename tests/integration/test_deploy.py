"""The commands of docker-compose.yml, started as processes: a run goes through, a worker is killed, a worker stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.harness import World, until
from tests.integration.test_neighbours import busy_in
from tests.jobs import plan
from tests.redis_server import RedisServer, any_redis
from tests.spawner import Spawner

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def service(name: str) -> dict[str, Any]:
    found: dict[str, Any] = COMPOSE["services"][name]
    return found


def command(words: list[str]) -> list[str]:
    """A command of the file on this machine: its programs are those of this interpreter's environment."""
    program = {"celery": str(Path(sys.executable).with_name("celery")), "python": sys.executable}
    return [program.get(words[0], words[0]), *words[1:]]


def health(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    test = service("worker")["healthcheck"]["test"]
    assert test[0] == "CMD"
    return subprocess.run(command(test[1:]), env=env, capture_output=True, text=True, timeout=30)


def test_what_the_compose_file_names_runs_survives_a_kill_and_stops(spawner: Spawner, tmp_path: Path) -> None:
    binary = any_redis()
    assert binary is not None
    words = service("redis")["command"]
    assert words[0] == "redis-server"
    server = RedisServer(tmp_path / "redis", binary, *words[1:])
    world = World(spawner, tmp_path, server.url(0), broker=server.url(1))
    env = {**world.env, "C_FORCE_ROOT": "1", "VV_AGENT_LEASE_SECONDS": "30"}
    workers: list[subprocess.Popen[bytes]] = []

    def worker() -> subprocess.Popen[bytes]:
        log = (tmp_path / f"worker{len(workers)}.log").open("wb")
        workers.append(subprocess.Popen(command(service("worker")["command"]), env=env, stdout=log, stderr=log))
        log.close()
        return workers[-1]

    try:
        assert health(env).returncode == 1, "nobody works here yet"
        by_pid = {one.pid: one for one in (worker(), worker())}
        until(lambda: len(world.store.presences()) == 2, "both are there")
        healthy = health(env)
        assert (healthy.returncode, healthy.stderr) == (0, "")
        handle = world.submit("k", plan({"call": [["charge", {"n": 1, "seconds": 1.0}]]}, {"say": "done"}))
        victim = by_pid.pop(busy_in(world, "tool"))
        victim.kill()
        assert handle.result(20).final_output == "done"
        assert [c.verdict for c in world.effects("charge")] == ["applied", "repeated"]
        (left,) = by_pid.values()
        left.send_signal(signal.SIGTERM)
        grace = int(service("worker")["stop_grace_period"].removesuffix("s"))
        assert left.wait(grace) == 0
        told = health(env)
        assert told.returncode == 1
        assert "no worker of this host" in told.stderr
        server.kill()
        assert "store_unavailable" in health(env).stderr
    finally:
        for one in workers:
            one.kill()
            one.wait()
        world.close()
        server.kill()


def test_the_image_runs_what_the_compose_file_runs_and_not_as_root() -> None:
    lines = (ROOT / "deploy/Dockerfile").read_text().splitlines()
    last = {line.split()[0]: line.split(None, 1)[1] for line in lines if line and line[0].isupper()}
    assert yaml.safe_load(last["CMD"]) == service("worker")["command"]
    assert last["USER"] not in ("root", "0")
    assert str(service("worker")["healthcheck"]["test"][1:]).replace("'", '"') in last["HEALTHCHECK"]
    assert os.access(ROOT / "docker-compose.yml", os.R_OK)
