"""Fixtures every test may use: stores, clocks, and the last lines about what was not run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.store import CheckpointStore, open_store

STORES = ("memory", "sqlite", "postgres")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for server, why in servers.MISSING.items():
        terminalreporter.write_line(f"not run: tests on {server}: {why}")


class Clock:
    """A clock of the tests, in milliseconds; it moves only when told."""

    def __init__(self, start: int = 1_800_000_000_000) -> None:
        self.now = start

    def __call__(self) -> int:
        return self.now

    def advance(self, ms: int) -> None:
        self.now += ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[CheckpointStore]:
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
    if servers.postgres_url() is None:
        pytest.skip(servers.MISSING["postgres"])
    with servers.postgres_schema() as url:
        sql = SqlStore(url, clock=clock)
        yield sql
        sql.close()


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
    if servers.postgres_url() is None:
        pytest.skip(servers.MISSING["postgres"])
    with servers.postgres_schema() as url:
        opened = open_store(url)
        yield opened
        opened.close()
