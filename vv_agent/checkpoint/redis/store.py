"""The verbs of the Redis store, over transactions that know slots and races."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import uuid
from binascii import crc_hqx
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vv_agent.checkpoint import transitions
from vv_agent.checkpoint.record import Claim, Filter, Head, NewRun, Presence, Renewed, State
from vv_agent.checkpoint.redis.client import connect, errors, in_ms, is_cluster, server_time
from vv_agent.checkpoint.redis.live import RedisLive, RedisPoller
from vv_agent.checkpoint.redis.marks import WAITS, Marks
from vv_agent.checkpoint.redis.transaction import COMMIT, Known, LostRace, Transaction
from vv_agent.checkpoint.store import CheckpointStore, T, already_exists
from vv_agent.checkpoint.store import Transaction as AnyTransaction
from vv_agent.checkpoint.urls import without_password
from vv_agent.checkpoint.watch import ChangeWatch
from vv_agent.errors import StoreError

log = logging.getLogger("vv_agent.store")

SCHEMA = b"1"
BUCKETS = 64
_RACES = 64
"""Times in a row a verb may find somebody faster; each time somebody else did make progress."""
_WAIT_MS = 20
"""How long others let a verb pass that lost twice: one that saves every millisecond would be faster for ever."""
_MOST_KNOWN = 4096


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
        self._make: Callable[[], Any] = (lambda: client) if client is not None else (lambda: connect(url))
        self._pid = os.getpid()
        self._open_client()
        with errors(self.url):
            self.id = self._meta()

    def _open_client(self) -> None:
        self._client = self._make()
        self._commit = self._client.register_script(COMMIT)
        self._watch = ChangeWatch(lambda: RedisPoller(self.client, self.channel))
        self.live: RedisLive = RedisLive(self)
        self._trees: dict[str, str] = {}
        self._known: dict[str, Known] = {}
        self._known_lock = threading.Lock()
        self._yields_until = 0.0
        self._writer, self._writes = os.urandom(8), itertools.count()

    @property
    def channel(self) -> str:
        """Where every write is announced."""
        return f"{self.prefix}:changed"

    @property
    def client(self) -> Any:
        """The client of this process; a fork makes its own."""
        self._follow_fork()
        return self._client

    def _follow_fork(self) -> None:
        if os.getpid() != self._pid:
            self._pid = os.getpid()
            self._open_client()

    @property
    def marks(self) -> Marks:
        """The marks of records."""
        return Marks(self.client)

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

    def _atomically(self, work: Callable[[AnyTransaction], T], *, write: bool = True, durable: bool = False) -> T:
        del durable  # the server's appendfsync decides
        lost: LostRace | None = None
        with errors(self.url):
            for attempt in range(_RACES):
                if write and attempt == 0 and time.monotonic() < self._yields_until:
                    time.sleep(0.002)
                tx = Transaction(self, from_memory=write and attempt == 0, after=lost)
                lost = None
                try:
                    answer = work(tx)
                    tx.commit(self._commit) if write else tx.verify()
                except LostRace as race:
                    lost = race
                    if write and attempt % 4 == 1:
                        self.marks.wait(self.name("h", race.key), _WAIT_MS)
                    continue
                except Exception:
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
        def work(tx: AnyTransaction) -> None:
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
        def work(tx: AnyTransaction) -> Head | None:
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
        def work(tx: AnyTransaction) -> bool:
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

    # For the transaction.

    def new_version(self) -> bytes:
        """A version that no record ever had: random for each process, counted within it."""
        self._follow_fork()  # a child must not count on beside its parent
        return self._writer + next(self._writes).to_bytes(6, "big")

    @property
    def tests_clock(self) -> Callable[[], int] | None:
        return self._clock

    def server_time(self) -> int:
        """The server's clock, in ms."""
        return server_time(self.client, f"{self.prefix}:meta")

    def record(self, key: str, *, timed: bool) -> tuple[Any, int | None]:
        """Version, head and journal of a record, with the clock's time from the same round trip if asked for."""
        name = self.name("h", key)
        if not timed or self._clock is not None or is_cluster(self.client):
            return self.client.hmget(name, "v", "head", "journal"), None
        pipe = self.client.pipeline(transaction=False)
        pipe.hmget(name, "v", "head", "journal")
        pipe.time()
        fields, now = pipe.execute()
        return fields, in_ms(now)

    def write_loose(self, commands: Sequence[Sequence[Any]]) -> None:
        """Write what stands outside of all slots, and look whether this is still the store that was opened: a server
        that was emptied has another id, and its recipes are refused by whoever keeps the old one."""
        pipe = self.client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        pipe.hget(f"{self.prefix}:meta", "store_id")
        store_id = pipe.execute()[-1]
        if store_id is None or store_id.decode() != self.id:
            self.id = self._meta()
            log.warning("%s was emptied while this process used it; it goes on with the empty store", self.url)

    def told(self, key: str, marks: int) -> None:
        """What a commit said of a record: who reads it, and whether another process waits to write it."""
        self.live.told(key, marks)
        if marks & WAITS:
            self._yields_until = time.monotonic() + 0.005

    def plant(self, child: str, root: str) -> None:
        """Remember which tree a child belongs to."""
        if len(self._trees) > 10_000:
            self._trees.clear()
        self._trees[child] = root

    def uproot(self, child: str) -> None:
        self._trees.pop(child, None)

    def root_of(self, key: str) -> str:
        """The root of a key's tree; a key that is no child is its own root."""
        if not key.startswith("c_"):
            return key
        if key not in self._trees:
            stored = self.client.get(f"{self.prefix}:tree:{key}")
            if stored is None:
                return key
            self.plant(key, stored.decode())
        return self._trees[key]

    def name(self, kind: str, key: str) -> str:
        """A record's key of one kind."""
        return self.in_bucket_of(self.root_of(key), f"{kind}:{key}")

    def in_bucket_of(self, root_key: str, what: str) -> str:
        """A key in the slot of a tree."""
        return f"{self.prefix}:{{{bucket_of(root_key)}}}:{what}"

    def in_all_buckets(self, what: str) -> list[str]:
        """The keys of that name in all slots."""
        return [f"{self.prefix}:{{{number}}}:{what}" for number in range(BUCKETS)]

    def known(self, key: str) -> Known | None:
        """What this process last wrote of a record; a commit finds out when it is old."""
        return self._known.get(key)

    def remember(self, key: str, known: Known | None) -> None:
        with self._known_lock:
            self._known.pop(key, None)
            if known is not None and known.stored.head is not None and known.stored.head.state is not State.ENDED:
                self._known[key] = known
                if len(self._known) > _MOST_KNOWN:
                    self._known.pop(next(iter(self._known)))

    def forget(self, keys: Iterable[str]) -> None:
        with self._known_lock:
            for key in keys:
                self._known.pop(key, None)


def bucket_of(root_key: str) -> int:
    """The bucket of a tree: CRC16 (XMODEM, as Redis Cluster) of the root key, modulo 64."""
    return crc_hqx(root_key.encode(), 0) % BUCKETS
