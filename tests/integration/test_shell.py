"""Commands of the shell and the worker they belong to: they die with it, and what they print does not fill it."""

from __future__ import annotations

import json
import secrets
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.harness import World, until
from tests.jobs import plan
from tests.unit.tools.test_shell import marked
from vv_agent.checkpoint.record import State

# HOME: a login shell reads what its user has set up, which may take long.


def test_a_command_is_gone_two_seconds_after_its_worker_was_killed(world: World) -> None:
    worker = world.worker(ready=True, HOME=str(world.folder))
    sleep = f"sleep 71.{secrets.randbelow(10**9):09}"
    for number, more in enumerate(({}, {"run_in_background": True})):
        command = f"({sleep}{number} & {sleep}{number}); {sleep}{number}"
        world.submit(f"k{number}", plan({"call": [["bash", {"command": command, **more}]]}, {"sleep": 60, "say": "x"}))
    until(lambda: len(marked(f"{sleep}0")) >= 4, "the first command runs")
    until(lambda: len(marked(f"{sleep}1")) >= 4, "the second command runs")
    worker.signal(signal.SIGKILL)
    worker.wait()
    killed = time.monotonic()
    until(lambda: not marked(sleep), "nothing of the commands is left", 2)
    assert time.monotonic() - killed < 2
    for number in (0, 1):
        world.runner.attach(f"k{number}").cancel()


def test_a_run_with_a_command_in_the_background_stays_where_it_is(cluster: World) -> None:
    for _ in range(3):
        cluster.celery(ready=True, HOME=str(cluster.folder))
    start = {
        "call": [["bash", {"command": "until test -e go; do sleep 0.02; done; echo over", "run_in_background": True}]]
    }
    steps = [start, *[{"call": [["charge", {"n": n}]]} for n in range(8)], {"say": "done"}]
    result = cluster.submit("stays", plan(*steps)).result(60)
    workers = {effect.pid for effect in cluster.effects("model_begins")}
    assert (result.status, len(workers)) == ("completed", 1)


@pytest.mark.slow
def test_a_command_that_prints_without_end_does_not_fill_its_worker(world: World) -> None:
    """Ten seconds of `yes` are some gigabytes."""
    worker = world.worker(ready=True, HOME=str(world.folder))
    before = psutil.Process(worker.pid).memory_info().rss
    world.submit("yes", plan({"call": [["bash", {"command": "timeout 10 yes", "timeout": 60}]]}, {"say": "done"}))
    until(lambda: marked("timeout 10 yes"), "the command runs")
    most = 0
    while (head := world.head("yes")) is not None and head.state is not State.ENDED:
        most = max(most, psutil.Process(worker.pid).memory_info().rss)
        time.sleep(0.05)
    result = world.runner.resume("yes")
    (told,) = result.raw_result.cycles[0].tool_results
    report = json.loads(told.content)
    print(f"worker: {before / 2**20:.0f} MB before, at most {most / 2**20:.0f} MB while `yes` ran")
    assert (report["exit_code"], len(report["output"]), report["output_truncated"]) == (124, 50_000, True)
    assert most < 150 * 2**20


def test_the_workspace_is_where_commands_run(world: World, tmp_path: Path) -> None:
    world.worker(ready=True, HOME=str(world.folder))
    result = world.submit("pwd", plan({"call": [["bash", {"command": "pwd"}]]}, {"say": "done"})).result(30)
    (told,) = result.raw_result.cycles[0].tool_results
    assert json.loads(told.content)["output"] == f"{world.workspace}\n"


def test_a_command_is_stopped_with_its_run(world: World) -> None:
    world.worker(ready=True, HOME=str(world.folder))
    sleep = f"sleep 72.{secrets.randbelow(10**9):09}"
    steps = [
        {"call": [["bash", {"command": sleep, "run_in_background": True}]]},
        {"call": [["bash", {"command": sleep}]]},
    ]
    handle = world.submit("stop", plan(*steps, {"say": "done"}))
    until(lambda: len(marked(sleep)) >= 4, "both commands run")
    assert handle.cancel("enough")
    result = handle.result(20)
    assert result.completion_reason == "cancelled"
    until(lambda: not marked(sleep), "nothing of the commands is left", 5)
