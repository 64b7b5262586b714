"""Who has not been told where the code is: the starter needs no telling, a worker says what it lacks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scenarios import module_of_a_shop as shop
from vv_agent import ExecutionMode, RunConfig, Runner
from vv_agent.process import store_at
from vv_agent.settings import Settings

PROJECT = Path(__file__).resolve().parents[2]
DISTRIBUTED = RunConfig(execution_mode=ExecutionMode.DISTRIBUTED, checkpoint_key="pear-1")


def test_without_workers_the_starter_runs_its_own_code_without_any_imports_setting(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(store=f"sqlite:///{tmp_path}/runs.db", imports=())
    runner = Runner(model_provider=shop.models, workspace=tmp_path / "files", settings=settings)
    result = runner.start(shop.agent, "What is a pear?", run_config=DISTRIBUTED).result(60)
    assert result.final_output == "A pear costs 2.50."
    assert capfd.readouterr().err.count("no worker of queue 'vv-agent' is running") == 1


def test_a_worker_that_may_not_load_the_code_says_so_and_another_one_finishes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    log = tmp_path / "worker.log"
    with worker(url, log, imports="tests.unit"):
        wait_for(lambda: store_at(url).presences())
        runner = Runner(model_provider=shop.models, workspace=tmp_path / "files", settings=Settings(store=url))
        handle = runner.start(shop.agent, "What is a pear?", run_config=DISTRIBUTED)
        wait_for(lambda: "VV_AGENT_IMPORTS" in log.read_text())
        assert "cycle 1 of pear-1: deferred" in log.read_text()
        with worker(url, tmp_path / "other.log", imports="tests.scenarios"):
            assert handle.result(60).final_output == "A pear costs 2.50."


@pytest.mark.parametrize(
    ("environment", "options", "said"),
    [
        ({"VV_AGENT_STORE": "memory://"}, [], "memory:// belongs to one process"),
        ({}, ["--queue", ""], "--queue needs the name of a queue"),
    ],
)
def test_a_worker_that_would_serve_nobody_does_not_start(
    environment: dict[str, str], options: list[str], said: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vv_agent.cli", "worker", *options], cwd=PROJECT, text=True, capture_output=True,
        env={**os.environ, "VV_AGENT_STORE": f"sqlite:///{tmp_path}/runs.db", **environment}, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert said in done.stderr


def test_a_worker_warns_of_modules_that_are_not_there(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with worker(f"sqlite:///{tmp_path}/runs.db", log, imports="no_such_module"):
        wait_for(lambda: "names 'no_such_module', which cannot be imported here" in log.read_text())


class worker:  # noqa: N801  # reads as a verb
    def __init__(self, url: str, log: Path, *, imports: str) -> None:
        environment = {**os.environ, "VV_AGENT_STORE": url, "VV_AGENT_IMPORTS": imports}
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vv_agent.cli", "worker", "--threads", "2"],
            cwd=PROJECT, env=environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._log.close()


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
