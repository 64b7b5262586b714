"""A Redis server of a test's own: it can be flushed, stopped, killed and started again without disturbing anybody."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from tests import servers


def system_redis() -> Path | None:
    found = shutil.which("redis-server", path="/usr/local/bin:/usr/bin:/opt/homebrew/bin")
    return Path(found) if found else None


def any_redis() -> Path | None:
    """A server binary: the system's, else the bundled one."""
    found = system_redis() or servers.bundled_redis()
    if found is None:
        servers.MISSING["a redis of its own"] = "no redis-server in the system and no bundled one"
    return found


def free_port() -> int:
    """A free port that leaves room for the bus of a cluster, 10,000 above it."""
    for port in random.sample(range(20_000, 32_000), 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


_databases = itertools.count()


def database() -> int:
    """The number of a database of the session's own server that nobody used yet."""
    return next(_databases)


class RedisServer:
    """A server process on a port of its own. `durable` keeps every write (appendfsync always) over kills."""

    def __init__(self, folder: Path, binary: Path, *options: str, durable: bool = False, databases: int = 1000) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        keep = ("--appendonly", "yes", "--appendfsync", "always") if durable else ("--appendonly", "no")
        self._command = [
            str(binary), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *keep,
            "--maxmemory-policy", "noeviction", "--databases", str(databases), *options,
        ]  # fmt: skip
        self._log = folder / "redis.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def url(self, database: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        end = time.monotonic() + 15
        while not self._answers():
            assert time.monotonic() < end, f"the server does not start: {self._log.read_text()[-500:]}"
            time.sleep(0.02)

    def _answers(self) -> bool:
        import redis

        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def client(self, database: int = 0) -> Any:
        import redis

        return redis.Redis(port=self.port, db=database)

    def signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None
