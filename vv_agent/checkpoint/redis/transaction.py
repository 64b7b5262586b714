"""One transaction on Redis: reads at once, writes at the end by one script, if nobody was faster."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgpack

from vv_agent.checkpoint.record import Entry, EntryKind, Filter, Head, Presence, Signal, State, pack_head, unpack_head
from vv_agent.checkpoint.redis.client import in_ms, is_cluster, steady_ms
from vv_agent.checkpoint.redis.marks import SEEN

if TYPE_CHECKING:
    from vv_agent.checkpoint.redis.store import RedisStore

_TRUST_MS = 60_000
"""How long a measured difference of the server's clock to ours is trusted: either may be set, or drift."""
_PAGE = 64
"""Keys of an index read at first; each further page is twice as long, to `_LONGEST_PAGE`."""
_LONGEST_PAGE = 4096

COMMIT = (
    """
local first = redis.call('HMGET', KEYS[1], 'v', 'waits')
local same = (first[1] or '') == ARGV[1]
for i = 2, #KEYS do
  same = same and (redis.call('HGET', KEYS[i], 'v') or '') == ARGV[i]
end
if not same then
  local found = { redis.call('TIME') }
  for i = 1, #KEYS do found[i + 1] = redis.call('HMGET', KEYS[i], 'v', 'head', 'journal') end
  return found
end
local at = #KEYS + 2
local readers, waits = ARGV[at], first[2]
if #ARGV > at then redis.call('PUBLISH', ARGV[at - 1], '') end
at = at + 1
while at < #ARGV do
  local count = tonumber(ARGV[at])
  local command = {}
  for i = 1, count do command[i] = ARGV[at + i] end
  redis.call(unpack(command))
  at = at + count + 1
end
"""
    + SEEN
    + "return told"
)
"""KEYS: the records read. ARGV: the version each must have ('' for none), the channel that is told, the name of the
first record's readers, then commands, each as its length and words. Answers 1 with the bits of the first record's
marks; or, with nothing written, the server's time and each record as it stands."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as it stood: version (empty for none), head and journal."""

    version: bytes
    head: Head | None
    journal: bytes | None


@dataclass(frozen=True, slots=True)
class Time:
    """The server's clock as this process knows it: how far it is ahead of ours, and when that was measured, in ms."""

    ahead: int
    measured: int

    @property
    def now(self) -> int:
        return steady_ms() + self.ahead

    @property
    def trusted(self) -> bool:
        return steady_ms() - self.measured < _TRUST_MS


_UNKNOWN = Time(0, 0)
"""Measured too long ago to be trusted."""


@dataclass(frozen=True, slots=True)
class Known:
    """A record as this process wrote it last. A commit finds out when it is old."""

    stored: Stored
    time: Time


class LostRace(Exception):
    """A record changed between the read and the commit; with it, what stands there now, if that is known."""

    def __init__(self, key: str, found: Mapping[str, Stored] | None = None, time: Time | None = None) -> None:
        super().__init__(key)
        self.key = key
        self.found = found or {}
        self.time = time


class Transaction:
    """Reads at once, writes at the end. A record this process wrote last is read from memory: the commit compares its
    version. `after` is the race an earlier try lost: what it found is not read again."""

    def __init__(self, store: RedisStore, *, from_memory: bool, after: LostRace | None = None) -> None:
        self._store = store
        self._from_memory = from_memory
        self._found = after.found if after else {}
        self._time = after.time if after else None
        self._now: int | None = None
        self._version = store.new_version()
        """Of what this transaction writes: no other one ever has it, also not under a key that was made anew."""
        self._read: dict[str, Stored] = {}
        self._heads: dict[str, Head | None] = {}
        self._journals: dict[str, bytes | None] = {}
        self._signals: dict[str, dict[str, tuple[Signal, bool]]] = {}
        self._changed: set[str] = set()
        self._commands: list[list[Any]] = []
        self._loose: list[list[Any]] = []
        self._after: list[list[Any]] = []
        self.stale: set[str] = set()
        """Keys whose heads came from memory."""
        self.wrote = False
        self._deep = False
        """More than heads was read, which must fit together."""

    @property
    def now(self) -> int:
        if self._now is None:
            if self._store.tests_clock is not None:
                self._now = self._store.tests_clock()
            elif self._time is not None:
                self._now = self._time.now
            else:
                self._learn(self._store.server_time(), steady_ms())
        assert self._now is not None
        return self._now

    def _learn(self, now: int, asked: int) -> None:
        self._now, self._time = now, Time(now - asked, asked)

    def head(self, key: str) -> Head | None:
        if key in self._heads:
            return self._heads[key]
        if key in self._found:
            return self._keep(key, self._found[key])
        known = self._store.known(key) if self._from_memory else None
        if known is not None:
            self.stale.add(key)
            if self._time is None and known.time.trusted:
                self._time = known.time
            return self._keep(key, known.stored)
        asked = steady_ms()
        fields, now = self._store.record(key, timed=self._time is None)
        if now is not None and self._store.tests_clock is None:
            self._learn(now, asked)
        return self._keep(key, _stored(key, fields))

    def _keep(self, key: str, stored: Stored) -> Head | None:
        self._read[key] = stored
        self._heads[key], self._journals[key] = stored.head, stored.journal
        return stored.head

    def insert(self, head: Head) -> bool:
        store = self._store
        if head.root_key != head.key:
            store.plant(head.key, head.root_key)
            self._loose.append(["SET", f"{store.prefix}:tree:{head.key}", head.root_key])
        self._read.setdefault(head.key, Stored(b"", None, None))
        self._heads[head.key], self._journals[head.key] = head, None
        self._changed.add(head.key)
        self._commands.append(["ZADD", self._name("runs", head), head.created_at, head.key])
        return True  # the commit finds out if somebody was faster

    def update(self, head: Head) -> None:
        self._heads[head.key] = head
        self._changed.add(head.key)

    def remove(self, key: str) -> None:
        head = self._heads[key]
        assert head is not None
        names = [self._store.name(kind, key) for kind in "hebsxr"]
        self._commands.append(["DEL", *names])
        if head.root_key != key:
            self._after.append(["DEL", f"{self._store.prefix}:tree:{key}"])
            self._store.uproot(key)
        self._commands.append(["ZREM", self._name("runs", head), key])
        self._commands.append(["ZREM", self._name("held", head), key])
        if head.queue is not None:
            self._commands.append(["ZREM", self._name(f"due:{head.queue}", head), key])
        self._heads[key] = None
        self._changed.discard(key)

    def append(self, key: str, entries: Sequence[Entry]) -> None:
        if entries:
            bodies = [bytes([entry.kind]) + entry.body for entry in entries]
            self._commands.append(["RPUSH", self._store.name("e", key), *bodies])

    def entries(self, key: str, after: int, limit: int | None, kind: EntryKind | None) -> list[Entry]:
        self._deep = True
        end = -1 if limit is None else after + limit - 1
        bodies = self._store.client.lrange(self._store.name("e", key), after, end)
        found = [Entry(seq, EntryKind(body[0]), body[1:]) for seq, body in enumerate(bodies, after + 1)]
        return [entry for entry in found if kind is None or entry.kind is kind]

    def blobs(self, key: str) -> dict[str, bytes]:
        self._deep = True
        return {name.decode(): body for name, body in self._store.client.hgetall(self._store.name("b", key)).items()}

    def set_blobs(self, key: str, changed: Mapping[str, bytes | None]) -> None:
        name = self._store.name("b", key)
        for blob, body in changed.items():
            self._commands.append(["HDEL", name, blob] if body is None else ["HSET", name, blob, body])

    def journal(self, key: str) -> bytes | None:
        return self._journals[key]

    def set_journal(self, key: str, journal: bytes | None) -> None:
        self._journals[key] = journal
        self._changed.add(key)

    def _all_signals(self, key: str) -> dict[str, tuple[Signal, bool]]:
        if key not in self._signals:
            stored = self._store.client.hgetall(self._store.name("s", key))
            found = self._signals[key] = {}
            for signal_id, body in stored.items():
                kind, content, seq, at, read = msgpack.unpackb(body)
                found[signal_id.decode()] = (Signal(signal_id.decode(), kind, content, seq, at), read)
        return self._signals[key]

    def signals(self, key: str) -> list[Signal]:
        unread = [signal for signal, read in self._all_signals(key).values() if not read]
        return sorted(unread, key=lambda signal: signal.seq)

    def signal(self, key: str, signal_id: str) -> Signal | None:
        found = self._all_signals(key).get(signal_id)
        return found[0] if found else None

    def add_signal(self, key: str, signal: Signal) -> Signal:
        last = max((known.seq for known, _ in self._all_signals(key).values()), default=0)
        stored = replace(signal, seq=last + 1, at=self.now)
        self._put_signal(key, stored, read=False)
        return stored

    def _put_signal(self, key: str, signal: Signal, *, read: bool) -> None:
        self._all_signals(key)[signal.id] = (signal, read)
        body = msgpack.packb([signal.kind, signal.body, signal.seq, signal.at, read])
        self._commands.append(["HSET", self._store.name("s", key), signal.id, body])

    def consume(self, key: str, ids: Iterable[str], keep: int) -> None:
        stored = dict(self._all_signals(key))
        taken = [stored[name][0] for name in ids if name in stored]
        for signal in taken:
            self._put_signal(key, signal, read=True)
        read = [signal for signal, seen in stored.values() if seen] + taken
        for signal in sorted(read, key=lambda s: -s.seq)[keep:]:
            self._commands.append(["HDEL", self._store.name("s", key), signal.id])

    def definition(self, digest: str) -> bytes | None:
        body: bytes | None = self._store.client.get(f"{self._store.prefix}:def:{digest}")
        return body

    def add_definition(self, digest: str, body: bytes) -> None:
        self._loose.append(["SET", f"{self._store.prefix}:def:{digest}", body, "NX"])

    def due(self, queues: Sequence[str], limit: int) -> list[Head]:
        names = [name for queue in queues for name in self._store.in_all_buckets(f"due:{queue}")]
        pipe = self._store.client.pipeline(transaction=False)
        for name in names:
            pipe.zrange(name, "-inf", self.now, byscore=True, offset=0, num=limit, withscores=True)
        found = [(due, key.decode()) for part in pipe.execute() for key, due in part]
        return self._read_heads([key for _, key in sorted(found)[:limit]])

    def find(self, filter_: Filter) -> list[Head]:
        index = "held" if filter_.states == frozenset({State.CLAIMED}) or filter_.host else "runs"
        names, root = self._store.in_all_buckets(index), filter_.root_key
        if root is not None:
            names = [self._store.in_bucket_of(root, index)]
        latest = "+inf" if filter_.before is None else f"({filter_.before}"
        keys = (key for key in self._newest(names, latest) if root is None or key == root or key.startswith("c_"))
        found: list[Head] = []
        while len(found) < filter_.limit and (some := list(islice(keys, min(500, max(16, filter_.limit))))):
            found += [head for head in self._read_heads(some) if filter_.matches(head)]
        return found[: filter_.limit]

    def _newest(self, names: Sequence[str], latest: str) -> Iterator[str]:
        """Keys of an index in several buckets, newest first, read page by page as they are asked for."""
        pipe = self._store.client.pipeline(transaction=False)
        for name in names:
            pipe.zrange(name, latest, "-inf", byscore=True, desc=True, offset=0, num=_PAGE, withscores=True)
        pages = [self._pages(name, first) for name, first in zip(names, pipe.execute(), strict=True)]
        return (key.decode() for _, key in heapq.merge(*pages, reverse=True))

    def _pages(self, name: str, page: list[Any]) -> Iterator[tuple[float, bytes]]:
        size, ties, last = _PAGE, 0, None
        while True:
            yield from ((at, key) for key, at in page)
            if len(page) < size:
                return
            ties = sum(at == page[-1][1] for _, at in page) + (ties if last == page[-1][1] else 0)
            last, size = page[-1][1], min(size * 2, _LONGEST_PAGE)
            page = self._store.client.zrange(
                name, last, "-inf", byscore=True, desc=True, offset=ties, num=size, withscores=True
            )

    def _read_heads(self, keys: Sequence[str]) -> list[Head]:
        pipe = self._store.client.pipeline(transaction=False)
        for key in keys:
            pipe.hget(self._store.name("h", key), "head")
        return [
            unpack_head(body, f"key {key!r}")
            for key, body in zip(keys, pipe.execute(), strict=True)
            if body is not None
        ]

    def presences(self) -> list[Presence]:
        stored = self._store.client.hvals(f"{self._store.prefix}:workers")
        return [Presence(w[0], tuple(w[1]), *w[2:]) for w in map(msgpack.unpackb, stored)]

    def show(self, presence: Presence) -> None:
        body = msgpack.packb([presence.id, list(presence.queues), presence.free, presence.wake, self.now])
        self._loose.append(["HSET", f"{self._store.prefix}:workers", presence.id, body])
        gone = [p.id for p in self.presences() if p.seen_at < self.now - 3_600_000]
        if gone:
            self._loose.append(["HDEL", f"{self._store.prefix}:workers", *gone])

    def verify(self) -> None:
        """A reader's end: what was read of a record belongs together."""
        if not self._deep or not self._read:
            return
        pipe = self._store.client.pipeline(transaction=False)
        for key in self._read:
            pipe.hget(self._store.name("h", key), "v")
        if [version or b"" for version in pipe.execute()] != [stored.version for stored in self._read.values()]:
            raise LostRace(next(iter(self._read)))

    def commit(self, script: Any) -> None:
        """Carry the writes out if nobody was faster; definitions and signs of life stand outside the slot and go
        first."""
        store, client = self._store, self._store.client
        if self._loose:
            store.write_loose(self._loose)
        if not self._changed and not self._commands and not self.stale:
            self.wrote = bool(self._loose)
            return
        commands = [*self._commands, *(command for key in self._changed for command in self._head_commands(key))]
        keys = list(self._read)
        arguments: list[Any] = [stored.version for stored in self._read.values()]
        arguments += [store.channel, store.name("r", keys[0])]
        for command in commands:
            arguments += [len(command), *command]
        asked = steady_ms()
        answer = script(keys=[store.name("h", key) for key in keys], args=arguments, client=client)
        if isinstance(answer, list):
            store.forget(keys)
            found = {key: _stored(key, fields) for key, fields in zip(keys, answer[1:], strict=True)}
            one_clock = store.tests_clock is None and not is_cluster(client)
            raise LostRace(keys[0], found, Time(in_ms(answer[0]) - asked, asked) if one_clock else None)
        self.wrote = bool(commands)
        store.told(keys[0], answer)
        for command in self._after:
            client.execute_command(*command)
        for key in self._changed:
            stored = Stored(self._version, self._heads[key], self._journals[key])
            store.remember(key, Known(stored, self._time or _UNKNOWN))

    def _head_commands(self, key: str) -> list[list[Any]]:
        head, before = self._heads[key], self._read[key]
        assert head is not None
        name, journal = self._store.name("h", key), self._journals[key]
        commands: list[list[Any]] = [["HSET", name, "v", self._version, "head", pack_head(head)]]
        if journal is not None:
            commands[0] += ["journal", journal]
        elif before.journal is not None:
            commands.append(["HDEL", name, "journal"])
        was_held, held = before.head is not None and before.head.state is State.CLAIMED, head.state is State.CLAIMED
        if held != was_held:
            index = self._name("held", head)
            commands.append(["ZADD", index, head.created_at, key] if held else ["ZREM", index, key])
        if head.queue is not None and (before.head is None or before.head.due != head.due):
            queue = self._name(f"due:{head.queue}", head)
            commands.append(["ZREM", queue, key] if head.due is None else ["ZADD", queue, head.due, key])
        return commands

    def _name(self, kind: str, head: Head) -> str:
        return self._store.in_bucket_of(head.root_key, kind)


def _stored(key: str, fields: Any) -> Stored:
    version, head, journal = fields
    return Stored(version or b"", None if head is None else unpack_head(head, f"key {key!r}"), journal)
