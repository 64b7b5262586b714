"""What stands beside a record for a while, without a revision: that somebody reads it, that somebody waits to write it.

Every commit of the record sees them and says so, so that whoever advances a run learns of its readers, and of a writer
it was faster than again and again, without asking.
"""

from __future__ import annotations

from typing import Any

READS, WAITS = 2, 4
"""Bits of a commit's answer."""

SEEN = """
local told = 1
if waits or redis.call('EXISTS', readers) == 1 then
  local now = redis.call('TIME')
  local ms = now[1] * 1000 + math.floor(now[2] / 1000)
  if redis.call('ZCOUNT', readers, ms, '+inf') > 0 then told = told + 2 end
  if tonumber(waits or 0) > ms then told = told + 4 end
end
"""
"""Lua: from the name `readers` and the time `waits` (false for none) the number `told`: 1 with the bits of what
holds."""

_READ = "local readers, waits = KEYS[1], false" + SEEN + "return told"
_LISTEN = """
local now = redis.call('TIME')
redis.call('ZADD', KEYS[1], now[1] * 1000 + math.floor(now[2] / 1000) + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
_WAIT = """
if redis.call('EXISTS', KEYS[1]) == 0 then return end
local now = redis.call('TIME')
redis.call('HSET', KEYS[1], 'waits', now[1] * 1000 + math.floor(now[2] / 1000) + ARGV[1])
"""


class Marks:
    """Sets and reads marks. `name` is that of the record's readers, or of its hash."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._read, self._listen, self._wait = map(client.register_script, (_READ, _LISTEN, _WAIT))

    def read(self, name: str) -> int:
        """1, with the bit of the readers."""
        return int(self._read(keys=[name], client=self._client))

    def listen(self, name: str, reader: str, ms: int) -> None:
        """Note a reader for so many ms."""
        self._listen(keys=[name], args=[reader, ms], client=self._client)

    def leave(self, name: str, reader: str) -> None:
        """Note that a reader is gone."""
        self._client.zrem(name, reader)

    def wait(self, name: str, ms: int) -> None:
        """Ask the writers of a record to leave room, for so many ms; nothing for a record that is not there."""
        self._wait(keys=[name], args=[ms], client=self._client)
