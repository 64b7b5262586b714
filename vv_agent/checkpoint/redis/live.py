"""Live text on Redis, and noticing that something was written."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import redis

from vv_agent.checkpoint.redis.marks import READS
from vv_agent.checkpoint.store import LISTENS, Cursor
from vv_agent.checkpoint.watch import Poller

if TYPE_CHECKING:
    from vv_agent.checkpoint.redis.store import RedisStore

_CAP, _SECONDS = 500, 3600
_READS_MS = int(LISTENS * 3000)
"""How long a reader's word is good."""
_SURE = 0.5
"""Seconds for which it is believed that nobody reads a run; a commit tells anew."""
_MOST = 4096


class RedisLive:
    """Live text as a capped, expiring stream for each run, written only while somebody said that he reads it."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._reader = secrets.token_hex(8)
        self._read: dict[str, tuple[bool, float]] = {}
        """By run: whether somebody reads it, and when that was said (`time.monotonic`)."""
        self._lock = threading.Lock()

    def told(self, key: str, marks: int) -> None:
        """What a commit said of a run's readers."""
        with self._lock:
            self._read.pop(key, None)
            self._read[key] = (bool(marks & READS), time.monotonic())
            if len(self._read) > _MOST:
                del self._read[next(iter(self._read))]

    def wanted(self, key: str) -> bool:
        read, said = self._read.get(key, (True, 0.0))
        return read or time.monotonic() - said > _SURE

    def listen(self, keys: Sequence[str], *, reading: bool = True) -> None:
        try:
            for key in keys:
                name = self._store.name("r", key)
                if reading:
                    self._store.marks.listen(name, self._reader, _READS_MS)
                else:
                    self._store.marks.leave(name, self._reader)
        except redis.RedisError:
            return

    def publish(self, items: Sequence[tuple[str, bytes]]) -> None:
        try:
            wanted = {key for key in {key for key, _ in items} if self._asked(key)}
            if not wanted:
                return
            pipe = self._store.client.pipeline(transaction=False)
            for key, body in items:
                if key in wanted:
                    pipe.xadd(self._store.name("x", key), {"b": body}, maxlen=_CAP, approximate=True)
            for key in wanted:
                pipe.expire(self._store.name("x", key), _SECONDS)
            pipe.execute()
            self._store.client.publish(self._store.channel, "")
        except redis.RedisError:
            return

    def _asked(self, key: str) -> bool:
        """Whether somebody reads a run; looked up if nobody said so for a while."""
        read, said = self._read.get(key, (False, 0.0))
        if time.monotonic() - said > _SURE:
            marks = self._store.marks.read(self._store.name("r", key))
            self.told(key, marks)
            return bool(marks & READS)
        return read

    def read(self, keys: Sequence[str], after: Cursor, limit: int = 1000) -> tuple[Cursor, list[tuple[str, bytes]]]:
        """The cursor maps a run's key to the last id read of it, and has the server's time it was made at."""
        places: dict[str, Any] = dict(after or {})
        names = {self._store.name("x", key): key for key in keys}
        found: list[tuple[str, bytes]] = []
        try:
            pipe = self._store.client.pipeline(transaction=False)
            for name, key in names.items():
                pipe.xrange(name, f"({places.get(key, places.get('', '0-0'))}", "+", count=limit)
            for key, items in zip(names.values(), pipe.execute(), strict=True):
                for item_id, fields in items:
                    places[key] = item_id.decode()
                    found.append((key, fields[b"b"]))
        except redis.RedisError:
            return after, []
        return places, found

    def last(self) -> Cursor:
        try:
            return {"": f"{self._store.server_time() - 1}-0"}
        except redis.RedisError:
            return {}


class RedisPoller(Poller):
    """The channel every write publishes to."""

    def __init__(self, client: Any, channel: str) -> None:
        self._subscription = client.pubsub(ignore_subscribe_messages=True)
        self._subscription.subscribe(channel)

    def poll(self, timeout: float) -> bool:
        if self._subscription.get_message(timeout=timeout) is None:
            return False
        while self._subscription.get_message(timeout=0) is not None:  # one look serves them all
            pass
        return True

    def close(self) -> None:
        self._subscription.close()
