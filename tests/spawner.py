"""Starts test processes by forking one that has everything imported: real processes, without the half second of imports.

python -m tests.spawner      (reads requests, writes pids and exits as JSON lines)
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

_PRELOADED = (
    "tests.jobs", "vv_agent.cli.app", "vv_agent.cli.worker", "vv_agent.runner", "vv_agent.checkpoint.sql", "psycopg",
    "vv_agent.dispatch.distributed", "vv_agent.testing", "sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql",
    "vv_agent.tools.builtin", "redis", "celery.bin.celery", "celery.bin.worker", "celery.apps.worker",
    "celery.concurrency.prefork", "celery.concurrency.thread", "kombu.transport.redis", "vv_agent.checkpoint.redis",
    "vv_agent.workers.celery",
)  # fmt: skip


class Spawner:
    """The test's end. `start` gives a process that can be waited for and killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spawner"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._started = threading.Condition()
        self._pids: list[int] = []
        self._asked = 0
        self._exits: dict[int, int] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, main: str, *argv: str, env: dict[str, str], log: Path, cwd: Path | None = None) -> Started:
        """Fork a process that calls `main` (module:function) with `sys.argv` set."""
        request = {"main": main, "argv": list(argv), "env": env, "log": str(log), "cwd": str(cwd or Path.cwd())}
        with self._started:
            number = self._asked  # it answers in the order it was asked
            self._asked += 1
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            if not self._started.wait_for(lambda: len(self._pids) > number, 30):
                raise AssertionError("the spawner did not answer")
            return Started(self, self._pids[number], log)

    def exit_of(self, pid: int, timeout: float) -> int | None:
        with self._started:
            self._started.wait_for(lambda: pid in self._exits, timeout)
            return self._exits.get(pid)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            pid, code = json.loads(line)
            with self._started:
                if code is None:
                    self._exits.pop(pid, None)  # of an earlier process with that number: they come round again
                    self._pids.append(pid)
                else:
                    self._exits[pid] = code
                self._started.notify_all()


class Started:
    """A process of a test."""

    def __init__(self, spawner: Spawner, pid: int, log: Path) -> None:
        self._spawner = spawner
        self.pid = pid
        self.log = log

    @property
    def alive(self) -> bool:
        return self._spawner.exit_of(self.pid, 0) is None

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):  # it ended, and its exit is still on the way here
                os.kill(self.pid, number)

    def wait(self, timeout: float = 30) -> int:
        """Its exit code; negative for the signal that ended it."""
        code = self._spawner.exit_of(self.pid, timeout)
        assert code is not None, f"process {self.pid} still runs after {timeout} s: {self.said()}"
        return code

    def said(self) -> str:
        """Its output, stdout and stderr."""
        return self.log.read_text() if self.log.exists() else ""


def _serve() -> None:
    for name in _PRELOADED:
        try:
            __import__(name)
        except ImportError:
            continue
    buffered = b""
    while True:
        ready, _, _ = select.select([0], [], [], 0.01)
        if ready:
            chunk = os.read(0, 65_536)
            if not chunk:
                break
            buffered += chunk
            *lines, buffered = buffered.split(b"\n")
            for line in lines:
                _say(_fork(json.loads(line)), None)
        _reap()


def _fork(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        sys.argv = ["test", *request["argv"]]
        module, _, name = request["main"].partition(":")
        getattr(__import__(module, fromlist=[name]), name)()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say(pid, os.waitstatus_to_exitcode(status))


def _say(pid: int, code: int | None) -> None:
    os.write(1, json.dumps([pid, code]).encode() + b"\n")


if __name__ == "__main__":
    _serve()
    time.sleep(0)
