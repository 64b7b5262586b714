"""The verbs of a checkpoint store: the contract, and their one implementation over a store's transactions.

A store subclass supplies transactions (`_atomically`) and the few things that are really its own (the clock,
waiting for a change, live text). The verbs below are then the same on every store, because they are the same code
over the rules of `transitions`. `tests/contract/test_store.py` runs on all of them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, TypeVar

import msgpack

from vv_agent.checkpoint import transitions
from vv_agent.checkpoint.record import (
    Change,
    Claim,
    Claimed,
    End,
    Entry,
    EntryKind,
    Filter,
    Head,
    Look,
    NewRun,
    Posted,
    Presence,
    Refused,
    Renewed,
    Saved,
    Seen,
    Serves,
    Signal,
    Snapshot,
    State,
)
from vv_agent.checkpoint.urls import without_password
from vv_agent.errors import CheckpointError, StoreError

T = TypeVar("T")
KEPT_SIGNALS = 64
"""Consumed signals whose ids (and first bodies) a record remembers."""


class Transaction(Protocol):
    """What a store offers inside one atomic transaction; rows of one record are locked from the first read on.

    `now` is the store's clock in ms, fixed no earlier than the lock was got.
    """

    @property
    def now(self) -> int: ...
    def head(self, key: str) -> Head | None: ...
    def insert(self, head: Head) -> bool: ...  # False when another transaction took the key meanwhile
    def update(self, head: Head) -> None: ...
    def remove(self, key: str) -> None: ...
    def append(self, key: str, entries: Sequence[Entry]) -> None: ...
    def entries(self, key: str, after: int, limit: int | None, kind: EntryKind | None) -> list[Entry]: ...
    def blobs(self, key: str) -> dict[str, bytes]: ...
    def set_blobs(self, key: str, changed: Mapping[str, bytes | None]) -> None: ...
    def journal(self, key: str) -> bytes | None: ...
    def set_journal(self, key: str, journal: bytes | None) -> None: ...
    def signals(self, key: str) -> list[Signal]: ...
    def signal(self, key: str, signal_id: str) -> Signal | None: ...
    def add_signal(self, key: str, signal: Signal) -> Signal: ...
    def consume(self, key: str, ids: Iterable[str], keep: int) -> None: ...
    def definition(self, digest: str) -> bytes | None: ...
    def add_definition(self, digest: str, body: bytes) -> None: ...
    def due(self, queues: Sequence[str], limit: int) -> list[Head]: ...
    def find(self, filter_: Filter) -> list[Head]: ...
    def presences(self) -> list[Presence]: ...
    def show(self, presence: Presence) -> None: ...


LISTENS = 5.0
"""Seconds after which a reader of live text says again that he reads."""
Cursor: TypeAlias = Any
"""A place in the live channel; only the channel that gave it can read it."""


class Live(Protocol):
    """The channel for text as it is generated: not durable, capped, dropped when it lags. Never raises."""

    def wanted(self, key: str) -> bool:
        """Whether to publish a run's text: False while it is known that nobody reads it. Asks nobody."""

    def listen(self, keys: Sequence[str], *, reading: bool = True) -> None:
        """Say that this process reads these runs, again every `LISTENS` seconds; or that it does no more."""

    def publish(self, items: Sequence[tuple[str, bytes]]) -> None:
        """Append (key, body) items."""

    def read(self, keys: Sequence[str], after: Cursor, limit: int = 1000) -> tuple[Cursor, list[tuple[str, bytes]]]:
        """Items (key, body) of these runs after a cursor, each run's oldest first, and the cursor to go on from."""

    def last(self) -> Cursor:
        """Where a reader starts that wants only what comes."""


class CheckpointStore(ABC):
    """Where runs are kept between cycles.

    Every verb is atomic, and idempotent by its own token: repeated after a lost answer it gives the same answer and
    changes nothing twice (`take_due` and `live` are the two that are not). Verbs may be called from any thread of
    the process that opened the store. They raise `StoreError` when the store cannot carry them out (down, full,
    damaged); then nothing was changed. Times are the store's clock, in milliseconds; durations too.
    """

    url: str
    id: str
    """A random id of the store itself: a recipe for another store is refused as `store_mismatch`."""
    live: Live

    # What a store supplies.

    @abstractmethod
    def _atomically(self, work: Callable[[Transaction], T], *, write: bool = True, durable: bool = False) -> T:
        """Do `work` in one transaction; what it raises undoes it. `durable` must survive power loss once this returns.

        A store that finds out at the end that somebody was faster calls `work` again on a new transaction: it touches
        nothing but the transaction.
        """

    @abstractmethod
    def wait(self, version: int, timeout: float) -> int:
        """Block until the store changed since `version` or `timeout` seconds passed; returns the version now.

        May return early or say nothing of a change made by another process for a while: it is a hint.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of connections and files. The store may not be used afterwards."""

    # The verbs.

    def create(self, runs: Sequence[NewRun]) -> tuple[Head, ...]:
        """Insert records with their first entries, ready and due; they survive power loss once this returns.

        Idempotent by run id; a key that another run holds raises `checkpoint_already_exists` and nothing is inserted.
        """

        def work(tx: Transaction) -> tuple[Head, ...]:
            return tuple(_create(tx, run) for run in runs)

        return self._atomically(work, durable=True)

    def load(self, key: str, seen: Seen | None = None) -> Snapshot | None:
        """A consistent snapshot, or None when there is no such record."""

        def work(tx: Transaction) -> Snapshot | None:
            head = tx.head(key)
            return None if head is None else _snapshot(tx, head, seen or Seen())

        return self._atomically(work, write=False)

    def look(self, key: str) -> Look | None:
        """The control fields alone, or None when there is no such record."""

        def work(tx: Transaction) -> Look | None:
            head = tx.head(key)
            return None if head is None else Look(head, tx.now)

        return self._atomically(work, write=False)

    def claim(
        self, key: str, cycle: int, token: str, *, owner: str, lease: int, seen: Seen | None = None,
        serves: Serves | None = None, resume: bool = False,
    ) -> Claimed | Refused:  # fmt: skip
        """Take the open cycle of a ready run, or of a claimed one whose lease is over; never of a parked one.

        Idempotent by token. `resume` counts as a recovery even when nobody held the run. The snapshot comes with it;
        its log begins at the last reset, if that is later than what the caller has seen.
        """

        def work(tx: Transaction) -> Claimed | Refused:
            head = tx.head(key)
            if head is None:
                return Refused("not_found")
            taken, answer = transitions.claim(
                head, cycle, token, owner=owner, lease=lease, serves=serves or Serves(), now=tx.now, resume=resume
            )
            if taken is not head:
                tx.update(taken)
            if isinstance(answer, Refused):
                return answer
            claim = Claim(key, cycle, token, taken.revision, taken.lease_until)
            return Claimed(claim, _snapshot(tx, taken, seen or Seen(), claimed=head), answer)

        return self._atomically(work)

    def save(self, claim: Claim, change: Change) -> Saved:
        """Apply a change under a claim. Idempotent by (token, number).

        Raises `ClaimLost` (a stale worker), `SignalsWaiting` (see `Change.starts` and `Change.ending`),
        `CheckpointError` for an illegal change. A post to a record of the tree that ended or is gone is dropped.
        """

        others = {key for key, _ in change.posts} | {run.root_key for run in change.creates}

        def work(tx: Transaction) -> Saved:
            for key in sorted({claim.key, *others}):  # in one order, or two callers lock each other
                tx.head(key)
            head = tx.head(claim.key)
            if head is None:
                raise CheckpointError("checkpoint_not_found", f"there is no run {claim.key!r}; it was deleted")
            if transitions.repeated(head, claim.token, change.number):
                return _saved(claim, head, head.write_revision, tx.signals(claim.key))
            unread = [s for s in tx.signals(claim.key) if s.id not in change.consumed] if head.signal_n else []
            if change.creates and head.root_key != head.key:
                root = tx.head(head.root_key)
                if root is not None:
                    transitions.tree_accepts(root, tx.signals(root.key))
            saved = transitions.save(head, claim, change, unread, tx.now)
            self._write(tx, head, saved, change)
            return _saved(claim, saved, saved.revision, unread)

        return self._atomically(work, durable=change.durable)

    @staticmethod
    def _write(tx: Transaction, head: Head, saved: Head, change: Change) -> None:
        tx.update(saved)
        tx.append(head.key, _numbered(head.entry_n, change.log, change.events))
        if change.blobs:
            tx.set_blobs(head.key, change.blobs)
        over = isinstance(change.then, End) and not change.then.keep_journal
        _write_journal(tx, head, change, committed=over or saved.cycle != head.cycle)
        if change.consumed:
            tx.consume(head.key, change.consumed, KEPT_SIGNALS)
        for run in change.creates:
            _create(tx, run)
        for key, signal in change.posts:
            with suppress(CheckpointError):  # it ended, or was deleted
                _post(tx, key, signal)

    def renew(
        self, claims: Sequence[Claim], *, lease: int, owner: str = "", presence: Presence | None = None
    ) -> Renewed:
        """Move the leases of a process's claims, and say which are lost and which runs have unread signals. Touches no
        revision. `presence` shows the worker; it counts as present for ten seconds."""

        def work(tx: Transaction) -> Renewed:
            lost, signalled = set(), set()
            for claim in sorted(claims, key=lambda claim: claim.key):  # in one order, or two callers lock each other
                head = tx.head(claim.key)
                renewed = transitions.renew(head, claim.token, lease, tx.now) if head else None
                if renewed is None:
                    lost.add(claim.key)
                    continue
                tx.update(renewed)
                if renewed.signal_n:
                    signalled.add(claim.key)
            if presence is not None:
                tx.show(presence)
            return Renewed(frozenset(lost), frozenset(signalled), tx.now)

        return self._atomically(work)

    def post(self, key: str, signal: Signal) -> Posted:
        """Leave a note for a run; needs no claim. Idempotent by signal id: a second body gets the first as answer.

        Makes a parked run ready and due now. A `cancel` reaches every unfinished record below `key` in the same write.
        It survives power loss once this returns. Raises `checkpoint_not_found`, `RunFinished`.
        """

        def work(tx: Transaction) -> Posted:
            posted = _post(tx, key, signal)
            if signal.kind == "cancel" and posted.new:
                for below in _descendants(tx, posted.head):
                    if below.state is not State.ENDED and not below.ending:
                        _post(tx, below.key, signal)
            return posted

        return self._atomically(work, durable=True)

    def defer(self, key: str, cycle: int, reason: str, hold: int) -> bool:
        """Say "I cannot serve it": due again in `hold` ms, without claim or revision. False while a lease lives."""

        def work(tx: Transaction) -> bool:
            head = tx.head(key)
            deferred = transitions.defer(head, cycle, reason, hold, tx.now) if head else None
            if deferred is None:
                return False
            tx.update(deferred)
            return True

        return self._atomically(work)

    def expire(self, owner: str) -> tuple[str, ...]:
        """End every claim of a dead process now; the keys whose claims it were."""

        def work(tx: Transaction) -> tuple[str, ...]:
            held = tx.find(Filter(states=frozenset({State.CLAIMED}), host=owner, limit=10_000))
            keys = sorted(found.key for found in held)
            locked = [head for head in map(tx.head, keys) if head is not None]
            mine = [head for head in locked if head.owner == owner and head.lease_until > tx.now]
            for head in mine:
                tx.update(transitions.expire(head, tx.now))
            return tuple(head.key for head in mine)

        return self._atomically(work)

    def take_due(self, queues: Sequence[str], limit: int, hold: int = 8_000) -> tuple[Head, ...]:
        """Hand out runs that are due, at most `limit`, oldest first, and move their `due` forward (8, 16, ... 120 s by
        default) so that no second sweeper hands them out at the same time. Their heads say key and cycle."""
        if limit < 1 or not queues:
            return ()

        def work(tx: Transaction) -> tuple[Head, ...]:
            heads = tuple(transitions.hand_out(head, tx.now, hold) for head in tx.due(queues, limit))
            for head in heads:
                tx.update(head)
            return heads

        some = self._atomically(lambda tx: tx.due(queues, 1), write=False)
        return self._atomically(work) if some else ()

    def entries(self, key: str, after: int = 0, limit: int = 1000) -> tuple[Entry, ...]:
        """Entries of both kinds after a number: events, and the log texts they refer to."""
        return self._atomically(lambda tx: tuple(tx.entries(key, after, limit, None)), write=False)

    def events(self, key: str, after: int = 0, wait: float = 0.0) -> tuple[Entry, ...]:
        """Like `entries`, but waits up to `wait` seconds for the first one."""
        end = time.monotonic() + wait
        version = 0
        while True:
            found = self.entries(key, after)
            left = end - time.monotonic()
            if found or left <= 0:
                return found
            version = self.wait(version, min(left, 1.0))

    def definition(self, digest: str) -> bytes:
        """The stored definition; `checkpoint_definition_missing` when the store has none of that digest."""
        body = self._atomically(lambda tx: tx.definition(digest), write=False)
        if body is None:
            raise CheckpointError("checkpoint_definition_missing", f"the store has no definition {digest}")
        return body

    def find(self, filter_: Filter | None = None) -> tuple[Head, ...]:
        """Heads that match, newest first."""
        return self._atomically(lambda tx: tuple(tx.find(filter_ or Filter())), write=False)

    def presences(self, within: int = 10_000) -> tuple[Presence, ...]:
        """Workers that showed themselves in the last `within` ms."""
        return self._atomically(lambda tx: tuple(p for p in tx.presences() if p.seen_at > tx.now - within), write=False)

    def delete(self, key: str, *, ended_before: int | None = None) -> bool:
        """Remove a record, the runs below it and all that belongs to them; False when there is none. One that is being
        worked on is refused. With `ended_before` (store clock, ms) a tree of which any run is not over, or ended at or
        after that time, is left alone: False."""

        def work(tx: Transaction) -> bool:
            tree = tree_of(tx, key)
            if ended_before is not None and not all(
                head.state is State.ENDED and head.updated_at < ended_before for head in tree
            ):
                return False
            not_worked_on(tree, tx.now)
            for head in tree:
                tx.remove(head.key)
            return bool(tree)

        return self._atomically(work)

    def now(self) -> int:
        """The store's clock, in ms."""
        return self._atomically(lambda tx: tx.now, write=False)


def _create(tx: Transaction, run: NewRun) -> Head:
    head = transitions.create(run, tx.now)
    if tx.head(run.key) is not None or not tx.insert(head):
        existing = tx.head(run.key)
        if existing is not None and existing.run_id == run.run_id:
            return existing
        raise already_exists(run.key)
    for digest, body in ((run.definition, run.definition_body), *run.linked.items()):
        tx.add_definition(digest, body)
    tx.append(run.key, _numbered(0, run.log, run.events))
    if run.blobs:
        tx.set_blobs(run.key, run.blobs)
    return head


def already_exists(key: str) -> CheckpointError:
    """The error of a `create` whose key another run holds."""
    return CheckpointError(
        "checkpoint_already_exists",
        f"a run with the key {key!r} exists; use another key, or resume_policy='resume_if_present' to attach",
    )


def _snapshot(tx: Transaction, head: Head, seen: Seen, claimed: Head | None = None) -> Snapshot:
    """What the caller has not seen; for a claim (`claimed`: the head before it) only what it takes to go on."""
    unchanged = seen.revision == (claimed or head).revision
    after = max(seen.entries, head.log_from) if claimed else seen.entries
    journal = tx.journal(head.key)
    return Snapshot(
        head=head,
        log=tuple(tx.entries(head.key, after, None, EntryKind.LOG)) if head.entry_n > after else (),
        blobs=None if unchanged else tx.blobs(head.key),
        journal=msgpack.unpackb(journal) if journal else {},
        signals=tuple(tx.signals(head.key)) if head.signal_n else (),
        now=tx.now,
    )


def _numbered(last: int, log: Sequence[bytes], events: Sequence[bytes]) -> list[Entry]:
    kinds = [(EntryKind.LOG, body) for body in log] + [(EntryKind.EVENT, body) for body in events]
    return [Entry(seq, kind, body) for seq, (kind, body) in enumerate(kinds, last + 1)]


def _write_journal(tx: Transaction, head: Head, change: Change, *, committed: bool) -> None:
    if not change.journal and not committed:
        return
    stored = tx.journal(head.key)
    merged = {} if committed or not stored else msgpack.unpackb(stored)
    merged = {name: body for name, body in {**merged, **change.journal}.items() if body is not None}
    if merged or stored:
        tx.set_journal(head.key, msgpack.packb(merged) if merged else None)


def _saved(claim: Claim, head: Head, revision: int, unread: Sequence[Signal]) -> Saved:
    kept = head.token == claim.token and head.revision == revision
    next_claim = Claim(claim.key, head.cycle, claim.token, revision, head.lease_until) if kept else None
    return Saved(next_claim, head, tuple(unread))


def _post(tx: Transaction, key: str, signal: Signal) -> Posted:
    head = tx.head(key)
    if head is None:
        raise CheckpointError("checkpoint_not_found", f"there is no run {key!r} in this store")
    first = tx.signal(key, signal.id)
    if first is not None:
        return Posted(first, False, head)
    noted = transitions.post(head, signal, tx.now)
    stored = tx.add_signal(key, signal)
    tx.update(noted)
    return Posted(stored, True, noted)


def _descendants(tx: Transaction, top: Head) -> list[Head]:
    """Records below `top` in its tree."""
    tree = tx.find(Filter(root_key=top.root_key, limit=1 << 20))
    below, frontier = [], {top.key}
    while frontier:
        children = [head for head in tree if head.parent_key in frontier]
        below += children
        frontier = {head.key for head in children}
    return below


def tree_of(tx: Transaction, key: str) -> list[Head]:
    """A record and those below it, each after the one above it; none when there is no such record."""
    head = tx.head(key)
    below = map(tx.head, [found.key for found in _descendants(tx, head)]) if head is not None else ()
    return [one for one in (head, *below) if one is not None]


def not_worked_on(tree: Sequence[Head], now: int) -> None:
    """Raise `checkpoint_claim_active` when somebody holds a run of a tree."""
    for head in tree:
        if head.state is State.CLAIMED and head.lease_until > now:
            problem = f"run {head.key!r} is being worked on; cancel it first, or stop its workers"
            raise CheckpointError("checkpoint_claim_active", problem)


def open_store(url: str, *, create: bool = True) -> CheckpointStore:
    """The store a URL names: `memory://`, `sqlite:///path`, `postgresql://...`, `redis://...`.

    A relative SQLite path is below the working directory; its folder is made. Raises `StoreError` with code
    `store_url_invalid` or `store_unavailable`, naming the URL without its password.
    """
    scheme = url.split("://", 1)[0] if "://" in url else ""
    if scheme == "memory":
        from vv_agent.checkpoint.memory import MemoryStore

        return MemoryStore()
    if scheme.split("+")[0] in ("sqlite", "postgresql", "postgres"):
        from vv_agent.checkpoint.sql import SqlStore

        return SqlStore(url, create=create)
    if scheme.split("+")[0] in ("redis", "rediss"):
        from vv_agent.checkpoint.redis import RedisStore

        return RedisStore(url)
    raise StoreError(
        "store_url_invalid",
        f"{without_password(url)!r} names no store; use sqlite:///PATH, postgresql://HOST/DATABASE, redis://HOST or memory://",
    )
