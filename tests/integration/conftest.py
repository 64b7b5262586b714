"""Processes and stores for tests that kill what they started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers
from tests.harness import World
from tests.redis_server import RedisServer, database
from tests.spawner import Spawner


@pytest.fixture(scope="session")
def spawner() -> Iterator[Spawner]:
    made = Spawner()
    yield made
    made.close()


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


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def shared_world(request: pytest.FixtureRequest, spawner: Spawner, tmp_path: Path) -> Iterator[World]:
    """A world on each store that several processes can share."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        made = World(spawner, tmp_path, server.url(database()))
        yield made
        made.close()
        return
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
