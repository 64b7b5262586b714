"""The processes of the demo: the model's server and the workers. Each stops with the `with` block that started it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from vv_agent.checkpoint.store import CheckpointStore

PROJECT = Path(__file__).resolve().parents[2]
JOB = "examples.demo.job"
CRASH_POINT = "store.save.progress:after:2"
"""After the second save of a model's answer whose tool can be repeated: cycle 2 of the job, its tool not yet run."""


class Workers:
    """Two `vv-agent worker` processes on one store, each of which kills itself at `CRASH_POINT`, if it gets there."""

    def __init__(self, processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
        self._processes = processes
        self._folder = folder

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def killed(self) -> tuple[int, float] | None:
        """Pid of the worker that died by SIGKILL at the crash point, and when."""
        note = self._folder / "crash"
        if not note.exists():
            return None
        pid, when = int(note.read_text().split()[0]), note.stat().st_mtime
        process = next(process for process in self._processes if process.pid == pid)
        return (pid, when) if process.wait(10) == -9 else None

    def commits(self, key: str) -> list[tuple[int, int]]:
        """(cycle, pid) of every cycle of a run that was committed, from the workers' own logs."""
        line = re.compile(rf"(\d+) INFO cycle (\d+) of {re.escape(key)}: (?:committed|ended)$", re.MULTILINE)
        logs = "\n".join(path.read_text() for path in sorted(self._folder.glob("*.log")))
        return sorted((int(cycle), int(pid)) for pid, cycle in line.findall(logs))

    def taken_over(self, key: str) -> tuple[int, float] | None:
        """Pid of the worker that took the claim from a dead one, and when, from its log."""
        line = re.compile(rf"^(\S+ \S+) (\d+) WARNING took the claim on {re.escape(key)} from a dead", re.MULTILINE)
        for path in self._folder.glob("*.log"):
            if found := line.search(path.read_text()):
                return int(found[2]), datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()
        return None

    def logs(self) -> str:
        """All that the workers said."""
        return "\n".join(path.read_text().rstrip() for path in sorted(self._folder.glob("*.log")))


@contextmanager
def two_workers(store: CheckpointStore, folder: Path, environment: Mapping[str, str]) -> Iterator[Workers]:
    """Start them and wait until both have shown themselves in the store."""
    folder.mkdir()
    settings = {
        **_without_ours(),
        **environment,
        "VV_AGENT_STORE": store.url,
        "VV_AGENT_IMPORTS": JOB,
        "VV_AGENT_CRASH": CRASH_POINT,
        "VV_AGENT_CRASH_FILE": str(folder / "crash"),
    }
    command = [sys.executable, "-m", "vv_agent.cli", "worker", "--verbose", "--threads", "2"]
    with ExitStack() as stack:
        processes = []
        for number in (1, 2):
            log = stack.enter_context((folder / f"{number}.log").open("wb"))
            processes.append(stack.enter_context(_running(command, settings, log)))
        workers = Workers(processes, folder)
        _wait(lambda: set(workers.pids) <= _present(store), processes, "the workers did not start", workers.logs)
        yield workers


def _present(store: CheckpointStore) -> set[int]:
    return {int(presence.id.partition("-")[0]) for presence in store.presences()}


@contextmanager
def model_server(folder: Path) -> Iterator[Path]:
    """The small model on a free port of loopback; gives the settings file that names it."""
    port = _free_port()
    log_path = folder / "model.log"
    command = [sys.executable, "-m", "examples.demo.model.serve", str(port)]
    with log_path.open("wb") as log, _running(command, _without_ours(), log) as process:
        _wait(lambda: _healthy(port), [process], "the model's server did not start", log_path.read_text)
        yield _write_settings(folder / "settings.json", f"http://127.0.0.1:{port}/v1")


def _write_settings(path: Path, address: str) -> Path:
    """A settings file with the one model `local/tiny`, as an OpenAI-compatible endpoint."""
    model = {
        "id": "tiny",
        "endpoints": [{"endpoint_id": "demo", "model_id": "tiny"}],
        "context_length": 4096,
        "function_call_available": True,
    }
    settings = {
        "VERSION": "2",
        "backends": {"local": {"models": {"tiny": model}}},
        "endpoints": [{"id": "demo", "api_base": address, "api_key": ""}],
    }
    path.write_text(json.dumps(settings, indent=2), encoding="utf-8")
    return path


def _without_ours() -> dict[str, str]:
    """The environment less any VV_AGENT_ setting: the demo brings its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("VV_AGENT_")}


@contextmanager
def _running(command: list[str], environment: Mapping[str, str], log: BinaryIO) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command, cwd=PROJECT, env=dict(environment), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(
    ready: Callable[[], bool], processes: list[subprocess.Popen[bytes]], problem: str, said: Callable[[], str]
) -> None:
    end = time.monotonic() + 60
    while not ready():
        dead = [process.pid for process in processes if process.poll() is not None]
        if dead or time.monotonic() > end:
            raise RuntimeError(f"{problem} (ended: {dead}); they said:\n{said()}")
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
