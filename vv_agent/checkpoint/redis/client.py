"""The connection to a Redis, its errors in our words, and its clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from vv_agent.checkpoint.urls import without_password
from vv_agent.errors import StoreError


def connect(url: str) -> Any:
    """A client for a Redis, or a cluster of them. Nothing is asked of a single server yet."""
    options: dict[str, Any] = {"socket_timeout": 10, "socket_connect_timeout": 5, "socket_keepalive": True}
    try:
        if url.startswith("redis+cluster://"):
            return redis.RedisCluster.from_url(url.replace("redis+cluster://", "redis://", 1), **options)
        if url.startswith("redis+socket://"):
            return redis.Redis.from_url(url.replace("redis+socket://", "unix://", 1), socket_timeout=10)
        return redis.Redis.from_url(url, health_check_interval=25, **options)
    except ValueError:
        raise StoreError(
            "store_url_invalid", f"{without_password(url)!r} is no Redis URL; see docs/settings.md"
        ) from None
    except redis.RedisError as error:
        raise _store_error(without_password(url), error) from error


@contextmanager
def errors(url: str) -> Iterator[None]:
    """The library's errors as `StoreError`, naming the URL (which has no password)."""
    try:
        yield
    except redis.RedisError as error:
        raise _store_error(url, error) from error


def _store_error(url: str, error: redis.RedisError) -> StoreError:
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, redis.OutOfMemoryError) or "maxmemory" in said or said.startswith("OOM"):
        return StoreError("store_full", f"{url} has no memory left ({said}); raise maxmemory, nothing was changed")
    if isinstance(error, redis.AuthenticationError):
        return StoreError("store_unavailable", f"{url} refused the password; check the URL")
    return StoreError("store_unavailable", f"{url} did not answer ({said}); check that it runs and the URL is right")


def is_cluster(client: Any) -> bool:
    """Whether keys of several slots need several calls."""
    return isinstance(client, redis.RedisCluster)


def server_time(client: Any, key: str) -> int:
    """The server's clock in ms; on a cluster always that of the node which has `key`, for clocks differ."""
    if is_cluster(client):
        return in_ms(client.time(target_nodes=client.get_node_from_key(key)))
    return in_ms(client.time())


def in_ms(answer: Any) -> int:
    """What TIME answers, in ms."""
    seconds, micros = answer
    return int(seconds) * 1000 + int(micros) // 1000


_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def steady_ms() -> int:
    """This machine's steady clock in ms; where it can, one that goes on while the machine sleeps."""
    return (time.monotonic_ns() if _BOOTTIME is None else time.clock_gettime_ns(_BOOTTIME)) // 1_000_000
