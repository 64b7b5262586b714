"""What deploy/ and docker-compose.yml name: the commands run as processes, the objects and units are valid."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness import World, until
from tests.integration.test_neighbours import busy_in
from tests.jobs import plan
from tests.redis_server import RedisServer, any_redis
from tests.spawner import Spawner
from vv_agent.settings import read_settings

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


# Kubernetes and systemd.

DEPLOY = ROOT / "deploy"


def kubernetes() -> list[dict[str, Any]]:
    """Every object that the kustomization names, each resource file once."""
    folder = DEPLOY / "kubernetes"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(path.name for path in folder.glob("*.yaml") if path.name != "kustomization.yaml")
    return [each for name in listed for each in yaml.safe_load_all((folder / name).read_text())]


def test_the_objects_for_kubernetes_are_valid() -> None:
    from kubernetes_validate import validate

    kinds = [each["kind"] for each in kubernetes()]
    assert sorted(kinds) == [
        "CronJob", "Deployment", "NetworkPolicy", "PersistentVolumeClaim", "PodDisruptionBudget",
    ]  # fmt: skip
    for each in kubernetes():
        for version in ("1.28", "1.33"):
            validate(each, version, strict=True)
    broken = {**kubernetes()[0], "spec": {"replicas": "two"}}
    with pytest.raises(Exception, match="two"):
        validate(broken, "1.33", strict=True)


def test_the_workers_of_kubernetes_run_as_those_of_the_compose_file() -> None:
    (deployment,) = (each for each in kubernetes() if each["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (worker,) = pod["containers"]
    assert worker["command"] == service("worker")["command"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert worker[probe]["exec"]["command"] == service("worker")["healthcheck"]["test"][1:]
        assert worker[probe]["timeoutSeconds"] > 5, "a store that does not answer is given up after five seconds"
    assert pod["terminationGracePeriodSeconds"] >= int(service("worker")["stop_grace_period"].removesuffix("s"))
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels.items() >= deployment["spec"]["selector"]["matchLabels"].items()
    (budget,) = (each for each in kubernetes() if each["kind"] == "PodDisruptionBudget")
    assert labels.items() >= budget["spec"]["selector"]["matchLabels"].items()
    (network,) = (each for each in kubernetes() if each["kind"] == "NetworkPolicy")
    assert labels["app"] in network["spec"]["podSelector"]["matchExpressions"][0]["values"]


def variables(text: str) -> dict[str, str]:
    """The assignments of an environment file, those that are commented out too."""
    found = (line.lstrip("#").partition("=") for line in text.splitlines() if line.lstrip("#").startswith("VV_AGENT_"))
    return {name: value for name, _, value in found}


def test_every_variable_that_is_set_there_is_read() -> None:
    listed = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())["configMapGenerator"][0]["literals"]
    files = [(DEPLOY / "env.example").read_text(), "\n".join(listed)]
    documented = set(re.findall(r"`(VV_AGENT_[A-Z_]+)`", (ROOT / "docs/settings.md").read_text()))
    for text in files:
        assert variables(text).keys() <= documented
        read_settings(variables(text))
    for each in kubernetes():
        if each["kind"] == "Deployment":
            named = {entry["name"] for entry in each["spec"]["template"]["spec"]["containers"][0]["env"]}
            assert named <= documented


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_units_of_systemd_are_valid(tmp_path: Path) -> None:
    for path in (DEPLOY / "systemd").iterdir():
        text = path.read_text().replace("/opt/vv-agent/bin/vv-agent", "/bin/true")
        (tmp_path / path.name).write_text(text)
    files = [str(path) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_commands_of_units_and_jobs_are_commands() -> None:
    """Each is understood, up to the store that is not there."""
    units = [(DEPLOY / "systemd" / f"vv-agent-{name}.service").read_text() for name in ("worker", "prune")]
    told = [re.findall(r"^ExecStart=\S+/vv-agent (.*)$", text, re.MULTILINE)[0].split() for text in units]
    (job,) = (each for each in kubernetes() if each["kind"] == "CronJob")
    told.append(job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["command"][1:])
    for words in told:
        done = subprocess.run(
            [sys.executable, "-m", "vv_agent.cli", *words, "--help"], cwd=ROOT, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert words[-1] != "prune" or "--older-than" in done.stdout
