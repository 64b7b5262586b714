"""What is particular to Redis, as a store and as a broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import redis

from vv_agent.cli.doctor.finding import Finding, note, ok, problem

OLDEST = (6, 2)


def check(url: str, name: str, *, keeps_runs: bool) -> Iterator[Finding]:
    """The server behind a URL. A store must keep what it acknowledged; a broker only carries hints."""
    plain = url.replace("redis+socket://", "unix://", 1).replace("redis+cluster://", "redis://", 1)
    client = redis.Redis.from_url(plain, socket_timeout=5, decode_responses=True)
    try:
        version = str(client.info("server")["redis_version"])
        config = _config(client)
    except redis.RedisError as error:
        yield problem(name, f"the Redis server did not answer ({error})", "start it, or correct the URL")
        return
    finally:
        client.close()
    yield from findings(name, version, config, keeps_runs=keeps_runs)


def _config(client: Any) -> Mapping[str, str] | None:
    """The server's settings; None where it tells nobody (managed servers)."""
    try:
        names = ("appendonly", "appendfsync", "maxmemory-policy")
        return {name: str(client.config_get(name)[name]) for name in names}  # several at once: from 7.0 on
    except (redis.ResponseError, KeyError):
        return None


def findings(name: str, version: str, config: Mapping[str, str] | None, *, keeps_runs: bool) -> Iterator[Finding]:
    """What version and settings mean."""
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        yield problem(name, f"Redis {version} is too old", "use 6.2 or newer")
    else:
        yield ok(name, f"Redis {version}")
    if config is None:
        yield note(name, "the server does not show its settings; see that it has appendonly yes and noeviction")
        return
    if config["maxmemory-policy"] != "noeviction":
        yield problem(
            "eviction", f"maxmemory-policy is {config['maxmemory-policy']}: a full server throws runs or messages away",
            "CONFIG SET maxmemory-policy noeviction, and in redis.conf",
        )  # fmt: skip
    else:
        yield ok("eviction", "noeviction")
    if keeps_runs:
        yield from _persistence(config)


def _persistence(config: Mapping[str, str]) -> Iterator[Finding]:
    if config["appendonly"] != "yes":
        yield problem(
            "durability", "appendonly is no: a restart loses what was acknowledged, and calls may be made twice",
            "CONFIG SET appendonly yes, appendfsync always, and in redis.conf",
        )  # fmt: skip
    elif config["appendfsync"] != "always":
        yield problem(
            "durability", f"appendfsync is {config['appendfsync']}: a power loss takes the last second with it, and "
            "calls that may not be repeated may be made twice", "CONFIG SET appendfsync always, and in redis.conf",
        )  # fmt: skip
    else:
        yield ok("durability", "appendonly yes, appendfsync always")
