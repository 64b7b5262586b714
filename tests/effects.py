"""The outside world of a test job: a process of its own that is told of every effect and writes it down.

    python -m tests.effects SOCKET FILE

A line of the file is `[what, key, run_id, cycle, attempt, pid, verdict, at]` in JSON; the caller goes on once the line is
written. An effect with a key is applied once: the verdict is "applied" the first time and "repeated" afterwards; one
without a key is "noted". Tests judge by this file, not by what the runtime says of itself.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOCKET = "VV_TEST_EFFECTS"
"""Environment variable with the recorder's socket."""


@dataclass(frozen=True)
class Effect:
    """One line of the file."""

    what: str
    key: str
    run_id: str
    cycle: int
    attempt: int
    pid: int
    verdict: str
    at: float


def tell(what: str, *, key: str = "", run_id: str = "", cycle: int = 0, attempt: int = 1) -> str:
    """Tell the recorder of an effect and wait for its verdict."""
    line = json.dumps([what, key, run_id, cycle, attempt, os.getpid()])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(os.environ[SOCKET])
        connection.sendall(line.encode() + b"\n")
        with connection.makefile() as answers:
            return answers.readline().strip()


def read(path: Path) -> list[Effect]:
    """What was recorded so far."""
    if not path.exists():
        return []
    return [Effect(*json.loads(line)) for line in path.read_text().splitlines()]


class _Recorder(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: str, path: str) -> None:
        super().__init__(address, _Caller)
        self.file = open(path, "a", buffering=1)  # noqa: SIM115 - open as long as the process
        self.lock = threading.Lock()
        self.applied: set[tuple[str, str]] = set()

    def record(self, fields: list[Any]) -> str:
        with self.lock:
            what, key = fields[0], fields[1]
            verdict = "noted" if not key else "repeated" if (what, key) in self.applied else "applied"
            self.applied.add((what, key))
            self.file.write(json.dumps([*fields, verdict, time.time()]) + "\n")
            self.file.flush()
        return verdict


class _Caller(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Recorder)
        line = self.rfile.readline()
        if line.endswith(b"\n"):
            try:
                self.wfile.write(self.server.record(json.loads(line)).encode() + b"\n")
            except BrokenPipeError:
                return  # killed before it heard the answer: the effect stands


if __name__ == "__main__":
    with _Recorder(sys.argv[1], sys.argv[2]) as recorder:
        print("ready", flush=True)
        recorder.serve_forever()
