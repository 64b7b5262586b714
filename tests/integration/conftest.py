"""Processes and stores for tests that kill what they started."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers
from tests.harness import World
from tests.redis_server import RedisServer, any_redis
from tests.spawner import Spawner


@pytest.fixture(scope="session")
def spawner() -> Iterator[Spawner]:
    made = Spawner()
    yield made
    made.close()


@pytest.fixture(scope="session")
def _redis_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer | None]:
    binary = any_redis()
    if binary is None:
        yield None
        return
    server = RedisServer(tmp_path_factory.mktemp("redis"), binary)
    yield server
    server.kill()


_databases = itertools.count()


def database() -> int:
    """The number of a database that nobody used yet."""
    return next(_databases)


@pytest.fixture
def redis_server(_redis_of_session: RedisServer | None) -> RedisServer:
    """A Redis that only tests of this session use, each in databases of its own."""
    if _redis_of_session is None:
        pytest.skip(servers.MISSING["a redis of its own"])
    return _redis_of_session


@pytest.fixture
def cluster(spawner: Spawner, tmp_path: Path, redis_server: RedisServer) -> Iterator[World]:
    """A world whose store and broker are two databases of a Redis."""
    made = World(spawner, tmp_path, redis_server.url(database()), broker=redis_server.url(database()))
    yield made
    made.close()


@pytest.fixture
def world(spawner: Spawner, tmp_path: Path) -> Iterator[World]:
    """A world on SQLite."""
    made = World(spawner, tmp_path, f"sqlite:///{tmp_path}/runs.db")
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgres"])
def shared_world(request: pytest.FixtureRequest, spawner: Spawner, tmp_path: Path) -> Iterator[World]:
    """A world on each store that several processes can share."""
    if request.param == "sqlite":
        made = World(spawner, tmp_path, f"sqlite:///{tmp_path}/runs.db")
        yield made
        made.close()
        return
    if servers.postgres_url() is None:
        pytest.skip(servers.MISSING["postgres"])
    with servers.postgres_schema() as url:
        made = World(spawner, tmp_path, url)
        yield made
        made.close()
