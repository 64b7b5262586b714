"""The memory store: the reference the others are compared with, and the home of inline runs without a checkpoint."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vv_agent.checkpoint.record import Entry, EntryKind, Filter, Head, Presence, Signal
from vv_agent.checkpoint.store import CheckpointStore, Cursor, Live, T, Transaction

Clock = Callable[[], int]
"""A clock in milliseconds."""


def steady_clock() -> Clock:
    """The wall time of now, going on monotonically: a step of the wall clock ends no lease."""
    start = time.time_ns() - time.monotonic_ns()
    return lambda: (start + time.monotonic_ns()) // 1_000_000


@dataclass(slots=True)
class _Record:
    head: Head
    entries: list[Entry] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    journal: bytes | None = None
    unread: dict[str, Signal] = field(default_factory=dict)
    read: dict[str, Signal] = field(default_factory=dict)


class MemoryStore(CheckpointStore):
    """Keeps records in this process; gone with it. `clock` is for tests."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.url, self.id = "memory://", uuid.uuid4().hex
        self.live: Live = MemoryLive()
        self._clock = clock or steady_clock()
        self._changed = threading.Condition(threading.RLock())
        self._version = 0
        self._records: dict[str, _Record] = {}
        self._definitions: dict[str, bytes] = {}
        self._presences: dict[str, Presence] = {}
        self._signal_seq = 0

    def _atomically(self, work: Callable[[Transaction], T], *, write: bool = True, durable: bool = False) -> T:
        with self._changed:
            undo: list[Callable[[], object]] = []
            try:
                answer = work(_Transaction(self, self._clock(), undo))
            except BaseException:
                for step in reversed(undo):
                    step()
                raise
            if undo:
                self._version += 1
                self._changed.notify_all()
            return answer

    def wait(self, version: int, timeout: float) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._version != version, timeout)
            return self._version

    def close(self) -> None:
        return


class _Transaction:
    """A transaction under the store's lock; each write notes how to take it back."""

    def __init__(self, store: MemoryStore, now: int, undo: list[Callable[[], object]]) -> None:
        self.now: int = now
        self._store = store
        self._records = store._records
        self._undo = undo

    def head(self, key: str) -> Head | None:
        record = self._records.get(key)
        return record.head if record else None

    def insert(self, head: Head) -> bool:
        self._undo.append(lambda: self._records.pop(head.key, None))
        self._records[head.key] = _Record(head)
        return True

    def update(self, head: Head) -> None:
        record = self._records[head.key]
        old = record.head
        self._undo.append(lambda: setattr(record, "head", old))
        record.head = head

    def remove(self, key: str) -> None:
        old = self._records.pop(key)
        self._undo.append(lambda: self._records.__setitem__(key, old))

    def append(self, key: str, entries: Sequence[Entry]) -> None:
        kept = self._records[key].entries
        length = len(kept)
        self._undo.append(lambda: kept.__delitem__(slice(length, None)))
        kept.extend(entries)

    def entries(self, key: str, after: int, limit: int | None, kind: EntryKind | None) -> list[Entry]:
        record = self._records.get(key)
        later = record.entries[after:] if record else []  # seq is the position, from 1
        found = [entry for entry in later if kind is None or entry.kind is kind]
        return found if limit is None else found[:limit]

    def blobs(self, key: str) -> dict[str, bytes]:
        return dict(self._records[key].blobs)

    def set_blobs(self, key: str, changed: Mapping[str, bytes | None]) -> None:
        record = self._records[key]
        old = record.blobs
        self._undo.append(lambda: setattr(record, "blobs", old))
        record.blobs = {name: body for name, body in {**old, **changed}.items() if body is not None}

    def journal(self, key: str) -> bytes | None:
        return self._records[key].journal

    def set_journal(self, key: str, journal: bytes | None) -> None:
        record = self._records[key]
        old = record.journal
        self._undo.append(lambda: setattr(record, "journal", old))
        record.journal = journal

    def signals(self, key: str) -> list[Signal]:
        return list(self._records[key].unread.values())

    def signal(self, key: str, signal_id: str) -> Signal | None:
        record = self._records[key]
        return record.unread.get(signal_id) or record.read.get(signal_id)

    def add_signal(self, key: str, signal: Signal) -> Signal:
        self._store._signal_seq += 1
        stored = replace(signal, seq=self._store._signal_seq, at=self.now)
        unread = self._records[key].unread
        self._undo.append(lambda: unread.pop(signal.id, None))
        unread[signal.id] = stored
        return stored

    def consume(self, key: str, ids: Iterable[str], keep: int) -> None:
        record = self._records[key]
        unread, read = record.unread, record.read
        self._undo.append(lambda: setattr(record, "unread", unread))
        self._undo.append(lambda: setattr(record, "read", read))
        taken = {name: unread[name] for name in ids if name in unread}
        record.unread = {name: signal for name, signal in unread.items() if name not in taken}
        record.read = dict(list({**read, **taken}.items())[-keep:])

    def definition(self, digest: str) -> bytes | None:
        return self._store._definitions.get(digest)

    def add_definition(self, digest: str, body: bytes) -> None:
        self._store._definitions.setdefault(digest, body)

    def due(self, queues: Sequence[str], limit: int) -> list[Head]:
        heads = [r.head for r in self._records.values() if r.head.queue in queues and r.head.due is not None]
        due = sorted((h for h in heads if h.due is not None and h.due <= self.now), key=lambda h: h.due or 0)
        return due[:limit]

    def find(self, filter_: Filter) -> list[Head]:
        heads = [r.head for r in self._records.values() if filter_.matches(r.head)]
        return sorted(heads, key=lambda h: -h.created_at)[: filter_.limit]

    def presences(self) -> list[Presence]:
        return list(self._store._presences.values())

    def show(self, presence: Presence) -> None:
        self._store._presences[presence.id] = replace(presence, seen_at=self.now)


class MemoryLive:
    """Live text within one process."""

    _CAP = 10_000

    def __init__(self) -> None:
        self._items: deque[tuple[int, str, bytes]] = deque(maxlen=self._CAP)
        self._lock = threading.Lock()
        self._number = 0

    def wanted(self, key: str) -> bool:
        return True

    def listen(self, keys: Sequence[str], *, reading: bool = True) -> None:
        return

    def publish(self, items: Sequence[tuple[str, bytes]]) -> None:
        with self._lock:
            for key, body in items:
                self._number += 1
                self._items.append((self._number, key, body))

    def read(self, keys: Sequence[str], after: Cursor, limit: int = 1000) -> tuple[Cursor, list[tuple[str, bytes]]]:
        with self._lock:
            found = [item for item in self._items if item[0] > after and item[1] in keys][:limit]
        return (found[-1][0] if found else after), [(key, body) for _, key, body in found]

    def last(self) -> Cursor:
        return self._number
