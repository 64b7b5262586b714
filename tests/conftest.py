"""Fixtures every test may use: stores, clocks, and the last lines about what was not run."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import matrix, parallel, servers
from tests.matrix import pytest_itemcollected, pytest_runtest_logreport  # noqa: F401 - hooks
from tests.redis_server import RedisServer, any_redis
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.store import CheckpointStore, open_store
from vv_agent.testing import FakeClock

STORES = ("memory", "sqlite", "postgres", "redis")


def pytest_sessionfinish(session: pytest.Session) -> None:
    parallel.hand_over(session.config)
    matrix.finish(session)


def pytest_configure() -> None:
    """A shell starts what runs in the background deaf to Ctrl-C; the programs that the tests start would inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    parallel.take_over(node)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for server, why in servers.MISSING.items():
        terminalreporter.write_line(f"not run: tests on {server}: {why}")
    for line in matrix.summary(terminalreporter.config):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session", autouse=True)
def _nobodys_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Shells of the tests are login shells: the profile of whoever runs the tests is not theirs."""
    before = os.environ.get("HOME")
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))
    yield
    if before is not None:
        os.environ["HOME"] = before


@pytest.fixture(scope="session")
def _redis_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer | None]:
    binary = any_redis()
    if binary is None:
        yield None
        return
    server = RedisServer(tmp_path_factory.mktemp("redis"), binary)
    yield server
    server.kill()


@pytest.fixture
def redis_server(_redis_of_session: RedisServer | None) -> RedisServer:
    """A Redis that only tests of this session use, each in databases of its own."""
    if _redis_of_session is None:
        pytest.skip(servers.MISSING["a redis of its own"])
    return _redis_of_session


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[CheckpointStore]:
    """Each store in turn, on the tests' clock."""
    if request.param == "memory":
        yield MemoryStore(clock)
        return
    from vv_agent.checkpoint.sql import SqlStore

    if request.param == "sqlite":
        sql = SqlStore(f"sqlite:///{tmp_path}/runs.db", clock=clock)
        yield sql
        sql.close()
        return
    if request.param == "redis":
        with _redis(clock) as opened:
            yield opened
        return
    if servers.postgres_url() is None:
        pytest.skip(servers.MISSING["postgres"])
    with servers.postgres_schema() as url:
        sql = SqlStore(url, clock=clock)
        yield sql
        sql.close()


@contextmanager
def _redis(clock: FakeClock | None = None) -> Iterator[CheckpointStore]:
    """A Redis store under a prefix of its own, removed afterwards."""
    from vv_agent.checkpoint.redis import RedisStore

    url = servers.redis_url()
    if url is None:
        pytest.skip(servers.MISSING["redis"])
    store = RedisStore(url, prefix=f"vv-test-{uuid.uuid4().hex[:12]}", clock=clock)
    try:
        yield store
    finally:
        for key in store.client.scan_iter(f"{store.prefix}:*"):
            store.client.delete(key)
        store.close()


@pytest.fixture(params=STORES)
def real_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    """Each store in turn, on its own clock."""
    if request.param == "memory":
        yield MemoryStore()
        return
    if request.param == "sqlite":
        opened = open_store(f"sqlite:///{tmp_path}/runs.db")
        yield opened
        opened.close()
        return
    if request.param == "redis":
        with _redis() as opened:
            yield opened
        return
    if servers.postgres_url() is None:
        pytest.skip(servers.MISSING["postgres"])
    with servers.postgres_schema() as url:
        opened = open_store(url)
        yield opened
        opened.close()
