"""Sessions in Redis: a list of rows and a hash of commits for each, written by one script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis

from vv_agent.checkpoint.urls import without_password
from vv_agent.errors import StoreError
from vv_agent.sessions.base import Once, StoredSession

DEFAULT_PREFIX = "vv-agent-session"
_APPEND = """
if ARGV[1] ~= '' then
  local before = redis.call('HGET', KEYS[2], ARGV[1])
  if before then return before end
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
end
for i = 3, #ARGV do redis.call('RPUSH', KEYS[1], ARGV[i]) end
return false
"""
_POP = "if redis.call('LINDEX', KEYS[1], -1) ~= ARGV[1] then return 0 end redis.call('RPOP', KEYS[1]) return 1"


class RedisSessionStore:
    """Sessions on a Redis server. Keys are `PREFIX:{ID}` and `PREFIX:{ID}:commits`, in one slot of a cluster."""

    def __init__(self, url: str, key_prefix: str = DEFAULT_PREFIX) -> None:
        self.ref: str | None = without_password(url) + ("" if key_prefix == DEFAULT_PREFIX else f"|{key_prefix}")
        self._prefix = key_prefix
        try:
            self._redis: Any = redis.Redis.from_url(
                url, decode_responses=True, health_check_interval=30, socket_timeout=5, socket_connect_timeout=5
            )
        except ValueError as error:
            raise StoreError("store_url_invalid", f"{without_password(url)!r} names no Redis: {error}") from None
        self._append = self._redis.register_script(_APPEND)
        self._pop = self._redis.register_script(_POP)

    def session(self, session_id: str) -> StoredSession:
        return StoredSession(self, session_id)

    def read(self, session_id: str, limit: int | None) -> Sequence[str]:
        with self._told():
            rows: list[str] = self._redis.lrange(self._keys(session_id)[0], -limit if limit else 0, -1)
        return rows

    def append(self, session_id: str, rows: Sequence[str], once: Once | None = None) -> str | None:
        name, digest = once or ("", "")
        with self._told():
            before: str | None = self._append(keys=self._keys(session_id), args=[name, digest, *rows])
        return before

    def pop(self, session_id: str, row: str) -> bool:
        with self._told():
            return bool(self._pop(keys=self._keys(session_id)[:1], args=[row]))

    def clear(self, session_id: str) -> None:
        with self._told():
            self._redis.delete(*self._keys(session_id))

    def _keys(self, session_id: str) -> list[str]:
        rows = f"{self._prefix}:{{{session_id}}}"
        return [rows, f"{rows}:commits"]

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (redis.RedisError, OSError) as error:
            raise StoreError("store_unavailable", f"the session store {self.ref} did not answer: {error}") from error


class RedisSession(StoredSession):
    """One session on a Redis server."""

    def __init__(self, url: str, session_id: str, key_prefix: str = DEFAULT_PREFIX) -> None:
        super().__init__(RedisSessionStore(url, key_prefix), session_id)
