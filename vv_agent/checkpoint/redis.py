"""The Redis store: records of a tree in one hash slot, written by one script that commits or refuses.

The verbs and rules are those of every store. A transaction reads with plain commands and collects its writes; at the
end one Lua script compares the version of each record it read and carries all writes out, or none: then somebody was
faster and the verb is done again. So nothing is decided in Lua, and no long list is ever read inside a script (10,000
entries held the server for 16 ms there, measured).

Keys, with the bucket `b = crc16(root key) % 64` as hash tag, so that a run, its children and its bucket's queues
share a slot:

    vv:{b}:h:KEY   hash: v (version), head, journal          vv:{b}:e:KEY   list of entries, kind byte first
    vv:{b}:b:KEY   hash of blobs                             vv:{b}:s:KEY   hash of signals, unread and the last read
    vv:{b}:due:Q   sorted set of a queue by due              vv:{b}:runs    sorted set of keys by creation
    vv:{b}:held    the same of claimed runs only
    vv:{b}:x:KEY   stream of live text, capped, expiring     vv:tree:KEY    root key of a child
    vv:meta, vv:def:DIGEST, vv:workers                       vv:changed     channel: something was written
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from binascii import crc_hqx
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgpack
import redis

from vv_agent.checkpoint import transitions
from vv_agent.checkpoint.record import (
    Claim,
    Entry,
    EntryKind,
    Filter,
    Head,
    NewRun,
    Presence,
    Renewed,
    Signal,
    State,
    pack_head,
    unpack_head,
)
from vv_agent.checkpoint.store import CheckpointStore, Cursor, T, Transaction, already_exists
from vv_agent.checkpoint.urls import without_password
from vv_agent.checkpoint.watch import ChangeWatch, Poller
from vv_agent.errors import StoreError

SCHEMA = b"1"
BUCKETS = 64
_RACES = 64
"""Times in a row a verb may find somebody faster; each time somebody else did make progress."""
_LIVE_CAP, _LIVE_SECONDS = 500, 3600
_TRUST_MS = 60_000
"""How long a measured difference of the server's clock to ours is trusted: either may be set, or drift."""

_COMMIT = """
for i = 1, #KEYS do
  if (redis.call('HGET', KEYS[i], 'v') or '') ~= ARGV[i] then return 0 end
end
if #ARGV > #KEYS + 1 then redis.call('PUBLISH', ARGV[#ARGV], '') end
local at = #KEYS + 1
while at < #ARGV do
  local count = tonumber(ARGV[at])
  local command = {}
  for i = 1, count do command[i] = ARGV[at + i] end
  redis.call(unpack(command))
  at = at + count + 1
end
return 1
"""
"""KEYS: the records read. ARGV: the version each must have ('' for none), then commands, each as its length and
words; last the channel that is told."""


class _LostRace(Exception):
    """A record changed between the read and the commit. Never leaves this module."""


class RedisStore(CheckpointStore):
    """Keeps records in Redis 6.2 or later. `clock` is for tests.

    What must survive power loss needs `appendonly yes` with `appendfsync always`; `noeviction` is a must (`doctor`
    looks).
    """

    def __init__(
        self, url: str, *, prefix: str = "vv", clock: Callable[[], int] | None = None, client: Any = None
    ) -> None:
        self.url = without_password(url)
        self.prefix = prefix
        self._clock = clock
        self._make: Callable[[], Any] = (lambda: client) if client is not None else (lambda: _connect(url))
        self._pid = os.getpid()
        self._open_client()
        with self._errors():
            self.id = self._meta()
        self.live = _RedisLive(self)

    def _open_client(self) -> None:
        self._client = self._make()
        self._commit = self._client.register_script(_COMMIT)
        self._watch = ChangeWatch(lambda: _RedisPoller(self.client, self.channel))
        self._trees: dict[str, str] = {}
        self._known: dict[str, _Known] = {}
        self._known_lock = threading.Lock()
        self._yields_until = 0.0

    @property
    def channel(self) -> str:
        """Where every write is announced."""
        return f"{self.prefix}:changed"

    @property
    def client(self) -> Any:
        """The client of this process; a fork makes its own."""
        if os.getpid() != self._pid:
            self._pid = os.getpid()
            self._open_client()
        return self._client

    def _meta(self) -> str:
        client = self.client
        name = f"{self.prefix}:meta"
        for field, value in (("schema", SCHEMA), ("buckets", BUCKETS), ("store_id", uuid.uuid4().hex)):
            client.hsetnx(name, field, value)
        schema, buckets, store_id = client.hmget(name, "schema", "buckets", "store_id")
        if schema != SCHEMA or int(buckets) != BUCKETS:
            raise StoreError(
                "store_schema_unsupported",
                f"{self.url} has schema {schema!r} and {int(buckets)} buckets, this version {SCHEMA!r} and {BUCKETS}; "
                "upgrade vv-agent, or use another database",
            )
        return str(store_id.decode())

    def _atomically(self, work: Callable[[Transaction], T], *, write: bool = True, durable: bool = False) -> T:
        del durable  # the server's appendfsync decides
        with self._errors():
            for attempt in range(_RACES):
                if write and attempt == 0 and time.monotonic() < self._yields_until:
                    time.sleep(0.002)
                tx = _Transaction(self, fresh=attempt > 0 or not write)
                try:
                    answer = work(tx)
                    tx.commit(self._commit) if write else tx.verify()
                except _LostRace:
                    if attempt > 1:  # a note to a run that saves every millisecond: the others here let it pass
                        self._yields_until = time.monotonic() + 0.005
                    continue
                except BaseException:
                    if tx.stale:  # decided on what this process remembered: look, then decide
                        self.forget(tx.stale)
                        continue
                    raise
                if tx.wrote:
                    self._watch.bump()
                return answer
        raise StoreError("store_busy", f"{self.url}: {_RACES} writers in a row were faster on the same run; try again")

    def create(self, runs: Sequence[NewRun]) -> tuple[Head, ...]:
        """As the contract says; runs of several trees, which lie in several slots, are looked at first and then
        inserted tree by tree."""
        trees: dict[str, list[NewRun]] = {}
        for run in runs:
            trees.setdefault(run.root_key or run.key, []).append(run)
        if len(trees) > 1:
            self._none_taken(runs)
        made = {head.key: head for tree in trees.values() for head in super(RedisStore, self).create(tree)}
        return tuple(made[run.key] for run in runs)

    def _none_taken(self, runs: Sequence[NewRun]) -> None:
        def work(tx: Transaction) -> None:
            for run in runs:
                head = tx.head(run.key)
                if head is not None and head.run_id != run.run_id:
                    raise already_exists(run.key)

        self._atomically(work, write=False)

    def renew(
        self, claims: Sequence[Claim], *, lease: int, owner: str = "", presence: Presence | None = None
    ) -> Renewed:
        """As the contract says; records of many buckets, so each is renewed by itself."""
        lost: set[str] = set()
        signalled: set[str] = set()
        for claim in claims:
            one = super().renew([claim], lease=lease, owner=owner)
            lost |= one.lost
            signalled |= one.signalled
        shown = super().renew([], lease=lease, presence=presence)
        return Renewed(frozenset(lost), frozenset(signalled), shown.now)

    def take_due(self, queues: Sequence[str], limit: int, hold: int = 8_000) -> tuple[Head, ...]:
        """As the contract says; each run is handed out by itself, and one that somebody else takes is left to him."""
        if limit < 1 or not queues:
            return ()
        taken: list[Head] = []
        for found in self._atomically(lambda tx: tx.due(queues, limit * 2), write=False):
            if len(taken) == limit:
                break
            if (head := self._hand_out(found.key, hold)) is not None:
                taken.append(head)
        return tuple(taken)

    def _hand_out(self, key: str, hold: int) -> Head | None:
        def work(tx: Transaction) -> Head | None:
            head = tx.head(key)
            if head is None or head.due is None or head.due > tx.now:
                return None
            handed = transitions.hand_out(head, tx.now, hold)
            tx.update(handed)
            return handed

        return self._atomically(work)

    def expire(self, owner: str) -> tuple[str, ...]:
        """As the contract says, record by record."""
        held = self.find(Filter(states=frozenset({State.CLAIMED}), host=owner, limit=10_000))
        return tuple(head.key for head in held if self._expire_one(head.key, owner))

    def _expire_one(self, key: str, owner: str) -> bool:
        def work(tx: Transaction) -> bool:
            head = tx.head(key)
            if head is None or head.owner != owner or head.lease_until <= tx.now:
                return False
            tx.update(transitions.expire(head, tx.now))
            return True

        return self._atomically(work)

    def wait(self, version: int, timeout: float) -> int:
        return self._watch.wait(version, timeout)

    def close(self) -> None:
        self._watch.stop()
        self._client.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            raise _store_error(self.url, error) from error

    # For the transaction.

    def now(self) -> int:
        if self._clock is not None:
            return self._clock()
        return _ms(self._time(self.client))

    def _time(self, client: Any) -> Any:
        """TIME of the server; on a cluster always of the node that has the store's meta key, for clocks differ."""
        if isinstance(client, redis.RedisCluster):
            node = client.get_node_from_key(f"{self.prefix}:meta")  # type: ignore[no-untyped-call]
            return client.time(target_nodes=node)
        return client.time()

    def record(self, key: str, *, timed: bool) -> tuple[tuple[Any, Any, Any], int | None]:
        """Version, head and journal of a record, with the clock's time from the same round trip if asked for."""
        name = self.name("h", key)
        if not timed or self._clock is not None or isinstance(self.client, redis.RedisCluster):
            return tuple(self.client.hmget(name, "v", "head", "journal")), None
        pipe = self.client.pipeline(transaction=False)
        pipe.hmget(name, "v", "head", "journal")
        pipe.time()
        fields, now = pipe.execute()
        return tuple(fields), _ms(now)

    @property
    def tests_clock(self) -> bool:
        return self._clock is not None

    def root_of(self, key: str) -> str:
        """The root of a key's tree; a key that is no child is its own root."""
        if not key.startswith("c_"):
            return key
        if key not in self._trees:
            stored = self.client.get(f"{self.prefix}:tree:{key}")
            if stored is None:
                return key
            if len(self._trees) > 10_000:
                self._trees.clear()
            self._trees[key] = stored.decode()
        return self._trees[key]

    def name(self, kind: str, key: str) -> str:
        """A record's key of one kind."""
        return f"{self.bucket(bucket_of(self.root_of(key)))}:{kind}:{key}"

    def bucket(self, number: int) -> str:
        """What the keys of a bucket begin with."""
        return f"{self.prefix}:{{{number}}}"

    def known(self, key: str) -> _Known | None:
        """What this process last wrote of a record it holds; a commit finds out when it is old."""
        return self._known.get(key)

    def remember(self, key: str, known: _Known | None) -> None:
        with self._known_lock:
            self._known.pop(key, None)
            if known is not None and known.head.state is State.CLAIMED:
                self._known[key] = known
                if len(self._known) > 4096:
                    self._known.pop(next(iter(self._known)))

    def forget(self, keys: Iterable[str]) -> None:
        with self._known_lock:
            for key in keys:
                self._known.pop(key, None)


class _Known:
    """A record's head and journal at a version, with the difference of the server's clock to ours in ms, and when
    that was measured."""

    __slots__ = ("head", "journal", "measured", "skew", "version")

    def __init__(self, version: bytes, head: Head, journal: bytes | None, skew: int, measured: int) -> None:
        self.version = version
        self.head = head
        self.journal = journal
        self.skew = skew
        self.measured = measured


class _Transaction:
    """Reads at once, writes at the end. A record this process holds is read from memory: the commit compares its
    version."""

    def __init__(self, store: RedisStore, *, fresh: bool) -> None:
        self._store = store
        self._fresh = fresh
        self._now: int | None = None
        self._skew = 0
        self._measured = 0
        self._versions: dict[str, bytes] = {}
        self._version = os.urandom(8)
        """Of what this transaction writes: no other one ever has it, also not under a key that was made anew."""
        self._stored: dict[str, Head] = {}
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
            before = _steady()
            self._now = self._store.now()
            self._skew, self._measured = self._now - before, before
        return self._now

    def head(self, key: str) -> Head | None:
        if key in self._heads:
            return self._heads[key]
        known = None if self._fresh else self._store.known(key)
        if known is not None:
            self.stale.add(key)
            if self._now is None and not self._store.tests_clock and _steady() - known.measured < _TRUST_MS:
                self._now, self._skew, self._measured = _steady() + known.skew, known.skew, known.measured
            return self._keep(key, known.version, known.head, known.journal)
        before = _steady()
        (version, head, journal), now = self._store.record(key, timed=self._now is None)
        if now is not None:
            self._now, self._skew, self._measured = now, now - before, before
        return self._keep(key, version or b"", None if head is None else unpack_head(head, f"key {key!r}"), journal)

    def _keep(self, key: str, version: bytes, head: Head | None, journal: bytes | None) -> Head | None:
        self._versions[key], self._heads[key], self._journals[key] = version, head, journal
        if head is not None:
            self._stored[key] = head
        return head

    def insert(self, head: Head) -> bool:
        store = self._store
        if head.root_key != head.key:
            store._trees[head.key] = head.root_key
            self._loose.append(["SET", f"{store.prefix}:tree:{head.key}", head.root_key])
        self._versions.setdefault(head.key, b"")
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
        names = [self._store.name(kind, key) for kind in "hebsx"]
        self._commands.append(["DEL", *names])
        if head.root_key != key:
            self._after.append(["DEL", f"{self._store.prefix}:tree:{key}"])
            self._store._trees.pop(key, None)
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
        names = [f"{self._store.bucket(b)}:due:{q}" for q in queues for b in range(BUCKETS)]
        pipe = self._store.client.pipeline(transaction=False)
        for name in names:
            pipe.zrange(name, "-inf", self.now, byscore=True, offset=0, num=limit, withscores=True)
        found = [(due, key.decode()) for part in pipe.execute() for key, due in part]
        return self._read_heads([key for _, key in sorted(found)[:limit]])

    def find(self, filter_: Filter) -> list[Head]:
        latest = "+inf" if filter_.before is None else f"({filter_.before}"
        pipe = self._store.client.pipeline(transaction=False)
        everywhere = range(BUCKETS) if filter_.root_key is None else [bucket_of(filter_.root_key)]
        index = "held" if filter_.states == frozenset({State.CLAIMED}) or filter_.host else "runs"
        for bucket in everywhere:
            pipe.zrange(
                f"{self._store.bucket(bucket)}:{index}", latest, "-inf", byscore=True, desc=True, withscores=True
            )
        keys = sorted(((at, key.decode()) for part in pipe.execute() for key, at in part), reverse=True)
        found: list[Head] = []
        for start in range(0, len(keys), 500):
            found += [h for h in self._read_heads([k for _, k in keys[start : start + 500]]) if filter_.matches(h)]
            if len(found) >= filter_.limit:
                break
        return found[: filter_.limit]

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
        if not self._deep or not self._versions:
            return
        pipe = self._store.client.pipeline(transaction=False)
        for key in self._versions:
            pipe.hget(self._store.name("h", key), "v")
        if [version or b"" for version in pipe.execute()] != list(self._versions.values()):
            raise _LostRace

    def commit(self, script: Any) -> None:
        """Carry the writes out if nobody was faster; definitions and signs of life stand outside the slot and go
        first."""
        client = self._store.client
        for command in self._loose:
            client.execute_command(*command)
        if not self._changed and not self._commands and not self.stale:
            self.wrote = bool(self._loose)
            return
        commands = list(self._commands)
        for key in self._changed:
            commands += self._head_commands(key)
        keys = list(self._versions)
        arguments: list[Any] = [self._versions[key] for key in keys]
        for command in commands:
            arguments += [len(command), *command]
        arguments.append(self._store.channel)
        if not script(keys=[self._store.name("h", key) for key in keys], args=arguments, client=client):
            self._store.forget(keys)
            raise _LostRace
        self.wrote = True
        for command in self._after:
            client.execute_command(*command)
        for key in self._changed:
            head = self._heads[key]
            known = head and _Known(self._version, head, self._journals[key], self._skew, self._measured)
            self._store.remember(key, known)

    def _head_commands(self, key: str) -> list[list[Any]]:
        head = self._heads[key]
        assert head is not None
        name, journal = self._store.name("h", key), self._journals[key]
        commands: list[list[Any]] = [["HSET", name, "v", self._version, "head", pack_head(head)]]
        commands.append(["HDEL", name, "journal"] if journal is None else ["HSET", name, "journal", journal])
        before = self._stored.get(key)
        was_held, held = before is not None and before.state is State.CLAIMED, head.state is State.CLAIMED
        if held != was_held:
            index = self._name("held", head)
            commands.append(["ZADD", index, head.created_at, key] if held else ["ZREM", index, key])
        if head.queue is not None and (before is None or before.due != head.due):
            queue = self._name(f"due:{head.queue}", head)
            commands.append(["ZREM", queue, key] if head.due is None else ["ZADD", queue, head.due, key])
        return commands

    def _name(self, kind: str, head: Head) -> str:
        return f"{self._store.bucket(bucket_of(head.root_key))}:{kind}"


def bucket_of(root_key: str) -> int:
    """The bucket of a tree: CRC16 (XMODEM, as Redis Cluster) of the root key, modulo 64."""
    return crc_hqx(root_key.encode(), 0) % BUCKETS


def _ms(time_: Any) -> int:
    seconds, micros = time_
    return int(seconds) * 1000 + int(micros) // 1000


def _steady() -> int:
    return time.monotonic_ns() // 1_000_000


class _RedisLive:
    """Live text as a capped, expiring stream for each run."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def publish(self, items: Sequence[tuple[str, bytes]]) -> None:
        try:
            pipe = self._store.client.pipeline(transaction=False)
            for key, body in items:
                pipe.xadd(self._store.name("x", key), {"b": body}, maxlen=_LIVE_CAP, approximate=True)
            for key in {key for key, _ in items}:
                pipe.expire(self._store.name("x", key), _LIVE_SECONDS)
            pipe.execute()
            self._store.client.publish(self._store.channel, "")
        except redis.RedisError:
            return

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
            now = _ms(self._store._time(self._store.client))
        except redis.RedisError:
            return {}
        return {"": f"{now - 1}-0"}


class _RedisPoller(Poller):
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


def _connect(url: str) -> Any:
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


def _store_error(url: str, error: redis.RedisError) -> StoreError:
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, redis.OutOfMemoryError) or "maxmemory" in said or said.startswith("OOM"):
        return StoreError("store_full", f"{url} has no memory left ({said}); raise maxmemory, nothing was changed")
    if isinstance(error, redis.AuthenticationError):
        return StoreError("store_unavailable", f"{url} refused the password; check the URL")
    return StoreError("store_unavailable", f"{url} did not answer ({said}); check that it runs and the URL is right")
