"""The engine: everything a process needs to advance runs, in one object that is made once per process and store."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vv_agent.checkpoint.record import Presence, Serves
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.runtime.feed import EventSink, LivePublisher
from vv_agent.runtime.helpers import Helpers
from vv_agent.runtime.lease import LeaseKeeper
from vv_agent.runtime.owner import process_owner
from vv_agent.runtime.transcript import SCHEMA, Transcript

if TYPE_CHECKING:
    from vv_agent.runtime.program import Programs

Probe = Callable[[str, str], None]
"""Told (boundary, before | after) around every model call, tool call and dispatch; tests make a process die there."""


@dataclass(frozen=True, slots=True)
class Cached:
    """What a process keeps of a record whose cycle it committed. Never needed, only faster."""

    run_id: str
    revision: int
    entry_n: int
    transcript: Transcript
    blobs: Mapping[str, bytes]


class RecordCache:
    """A bounded cache by key; an entry is taken out to be used, so that two threads never share a transcript."""

    def __init__(self, size: int = 256) -> None:
        self._size = size
        self._entries: OrderedDict[str, Cached] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, key: str) -> Cached | None:
        with self._lock:
            return self._entries.pop(key, None)

    def keep(self, key: str, cached: Cached) -> None:
        with self._lock:
            self._entries[key] = cached
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)


class Engine:
    """The store, the code a run needs, leases, helper threads and live events of one process.

    `queues` are those whose runs it may take (None: any run that is asked for by key). `clock` gives seconds since 1970
    for the times of events; leases use the store's clock and a steady one. `grace` is how long, in seconds, a tool
    gets to stop by itself.
    """

    def __init__(
        self,
        store: CheckpointStore,
        programs: Programs,
        *,
        lease_ms: int = 30_000,
        queues: frozenset[str] | None = None,
        presence: Callable[[], Presence | None] = lambda: None,
        clock: Callable[[], float] = time.time,
        probe: Probe | None = None,
        grace: float = 5.0,
    ) -> None:
        self.store = store
        self.programs = programs
        self.serves = Serves(queues, frozenset({SCHEMA}))
        self.pid = os.getpid()
        self.owner = process_owner()
        self.keeper = LeaseKeeper(store, lease_ms, presence)
        self.helpers = Helpers()
        self.cache = RecordCache()
        self.live = LivePublisher(store.live)
        self.clock = clock
        self.probe: Probe = probe or (lambda boundary, side: None)
        self.grace = grace
        self.stopping = False
        self._lock = threading.Lock()
        self._sinks: dict[str, tuple[EventSink, ...]] = {}
        self._alone: set[str] = set()

    def token(self) -> str:
        """A new claim token: 128 random bits, so that no store that lost writes can hand out the same one again."""
        return secrets.token_hex(16)

    def new_id(self, kind: str) -> str:
        """A new public id: `run_` or `trace_` with 32 hex digits."""
        return f"{kind}_{secrets.token_hex(16)}"

    def leave_alone(self, key: str, alone: bool) -> None:
        """A run that nobody else knows of: it cannot be cancelled, so its calls need no thread of their own."""
        (self._alone.add if alone else self._alone.discard)(key)

    def is_alone(self, key: str) -> bool:
        return key in self._alone

    def listen(self, key: str, sink: EventSink) -> None:
        """Send a run's events to `sink` while this process advances it; there may be several."""
        with self._lock:
            self._sinks[key] = (*self._sinks.get(key, ()), sink)

    def unlisten(self, key: str, sink: EventSink) -> None:
        with self._lock:
            left = tuple(other for other in self._sinks.pop(key, ()) if other is not sink)
            if left:
                self._sinks[key] = left

    def sinks(self, key: str) -> tuple[EventSink, ...]:
        return self._sinks.get(key, ())

    def stop(self) -> None:
        """Take no new cycles; running model calls are aborted, running tools get their grace."""
        self.stopping = True
        self.keeper.stop_all()

    def close(self) -> None:
        """Stop the threads that use the store, once what they have in hand is done."""
        self.keeper.close()
        self.live.close()
