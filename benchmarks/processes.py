"""Measures of whole processes: imports, local workers, and how soon one process sees what another did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

from benchmarks.figures import Figure
from benchmarks.job import AGENT
from vv_agent import CheckpointConfig, ExecutionMode, RunConfig, Runner
from vv_agent.process import store_at
from vv_agent.settings import Settings

_FIRST_RUN = """
import tempfile
from vv_agent import Agent, NoToolPolicy, Runner
from vv_agent.testing import ScriptedProvider
agent = Agent(name="a", instructions="Greet.", no_tool_policy=NoToolPolicy.FINISH)
Runner(model_provider=ScriptedProvider(["Hello."]), workspace=tempfile.mkdtemp()).run_sync(agent, "Hi")
"""


def cpu_of(command: list[str]) -> float:
    """CPU milliseconds of a whole process and of what it waited for."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return (usage.ru_utime + usage.ru_stime) * 1000


def imports(rounds: int) -> list[Figure]:
    """CPU of a new process, interpreter included."""
    commands: dict[str, tuple[list[str], float | None]] = {
        "empty interpreter": (["-c", "pass"], None),
        "import vv_agent": (["-c", "import vv_agent"], 150.0),
        "vv-agent --help": (["-m", "vv_agent.cli", "--help"], 300.0),
        "first inline run": (["-c", _FIRST_RUN], None),
    }
    spent: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, (arguments, _) in commands.items():
            spent[name].append(cpu_of([sys.executable, *arguments]))
    return [
        Figure(f"CPU of {name}", median(spent[name]), "ms", limit, "whole process")
        for name, (_, limit) in commands.items()
    ]


@contextmanager
def workers_on(url: str, processes: int, threads: int) -> Iterator[None]:
    """Local workers on a store, stopped at the end."""
    environment = {**os.environ, "VV_AGENT_STORE": url, "VV_AGENT_IMPORTS": "benchmarks"}
    command = [
        sys.executable, "-m", "vv_agent.cli", "worker", "--processes", str(processes), "--threads", str(threads),
    ]  # fmt: skip
    started = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        _wait_for_workers(url, processes)
        yield
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(30)


def _wait_for_workers(url: str, processes: int) -> None:
    end = time.monotonic() + 30
    while len(store_at(url).presences()) < processes:
        assert time.monotonic() < end, "no worker showed itself"
        time.sleep(0.05)


def _config(url: str, model: str) -> RunConfig:
    return RunConfig(
        execution_mode=ExecutionMode.DISTRIBUTED, model_provider=f"benchmarks.job:{model}",
        checkpoint_config=CheckpointConfig(store=store_at(url)),
    )  # fmt: skip


def _rate(url: str, runs: int, model: str) -> float:
    """Cycles per second of runs of ten cycles, from the first start to the last end."""
    runner = Runner(settings=Settings(store=url), workspace=Path(url.removeprefix("sqlite:///")).parent)
    began = time.perf_counter()
    handles = [runner.start(AGENT, "go", run_config=_config(url, model)) for _ in range(runs)]
    for handle in handles:
        assert handle.result(120).final_output == "done"
    return runs * 10 / (time.perf_counter() - began)


def workers(runs: int) -> list[Figure]:
    """Cycles per second of local workers on SQLite; the starter and reader of the runs is this process."""
    figures = []
    for processes in (1, 2):
        for model, text in (("ten", "0 ms"), ("ten_slow", "50 ms")):
            with tempfile.TemporaryDirectory(prefix="vv-bench-") as folder:
                url = f"sqlite:///{Path(folder) / 'runs.db'}"
                with workers_on(url, processes, 4):
                    rate = _rate(url, runs, model)
            note = f"{runs} runs of 10 cycles, 4 threads a process"
            figures.append(Figure(f"{processes} worker(s), {text} cycles", rate, "cycles/s", note=note))
    return figures


def latency(rounds: int) -> list[Figure]:
    """From a start here to the cycle in a waiting worker, and from live text there to its reader here."""
    wakes, lags = [], []
    with tempfile.TemporaryDirectory(prefix="vv-bench-") as folder:
        url = f"sqlite:///{Path(folder) / 'runs.db'}"
        runner = Runner(settings=Settings(store=url), workspace=Path(url.removeprefix("sqlite:///")).parent)
        with workers_on(url, 1, 4):
            for number in range(rounds + 1):
                began = time.time()
                handle = runner.start(AGENT, "go", run_config=_config(url, "talker"))
                for event in handle.events():
                    seen = time.time()
                    if number == 0:  # the first run loads what a worker needs
                        continue
                    if event.type == "cycle_started":
                        wakes.append((event.created_at - began) * 1000)
                    if event.type == "assistant_delta":
                        lags.append((seen - event.created_at) * 1000)
                handle.result(30)
    return [
        Figure("start to cycle in a waiting worker", median(wakes), "ms", note=f"p95 {_p95(wakes):.1f} ms"),
        Figure("live text, worker to reader", median(lags), "ms", note=f"p95 {_p95(lags):.1f} ms"),
    ]


def _p95(values: list[float]) -> float:
    return quantiles(values, n=20)[-1] if len(values) > 1 else values[0]
