"""The file lock around SQLite's writes: what goes wrong with it stops nobody for ever and reaches callers as theirs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract.test_store import new
from vv_agent.checkpoint.sql import SqlStore
from vv_agent.checkpoint.sql.driver import FairLock
from vv_agent.errors import StoreError

fcntl = pytest.importorskip("fcntl")

HOLDER = """
import sys
from vv_agent.checkpoint.sql.driver import FairLock
assert (lock := FairLock(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def stopped_holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock and is stopped."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            os.kill(process.pid, signal.SIGSTOP)
            yield process
        finally:
            process.kill()


def test_a_stopped_process_that_holds_the_lock_delays_writers_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.db.lock"
    lock = FairLock(str(path))
    lock.limit = 0.2
    with stopped_holder(path):
        begun = time.monotonic()
        assert lock.acquire() is False
        assert 0.2 <= time.monotonic() - begun < 5
        lock.release()
        begun = time.monotonic()
        assert lock.acquire() is False
        assert time.monotonic() - begun < 0.1, "it is known to be stuck"
    assert lock.acquire() is True, "it is free again"
    other = FairLock(str(path))
    other.limit = 0.05
    assert other.acquire() is False
    lock.release()
    assert other.acquire() is True


def test_a_write_goes_on_without_the_lock_that_a_stopped_process_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FairLock, "limit", 0.2)
    store = SqlStore(f"sqlite:///{tmp_path}/runs.db")
    with stopped_holder(tmp_path / "runs.db.lock"):
        (head,) = store.create([new()])
    assert head.key == "k"
    store.close()


def test_a_waiting_writer_gets_the_lock_when_its_holder_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "runs.db.lock"
    with stopped_holder(path) as process:
        process.kill()
        assert FairLock(str(path)).acquire() is True


def test_a_lock_file_that_cannot_be_opened_is_an_error_of_the_store(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/runs.db")
    in_the_way = tmp_path / "runs.db.lock"
    in_the_way.mkdir()
    with pytest.raises(StoreError, match=r"runs\.db\.lock cannot be opened \(Is a directory\); .*remove") as caught:
        store.create([new()])
    assert caught.value.code == "store_unavailable"
    in_the_way.rmdir()
    assert store.create([new()])
    store.close()
