"""Live events within a process, and on their way to other processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from vv_agent.checkpoint.store import Live
from vv_agent.events import RunEvent


class EventSink(Protocol):
    """Gets the events of one run as they happen, in order, in the thread that makes them."""

    def put(self, event: RunEvent) -> None: ...


class EventFeed:
    """A run's events in order, from the first one on, for any number of readers. `close` ends their iteration."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []
        self._more = threading.Condition()
        self._closed = False

    def put(self, event: RunEvent) -> None:
        with self._more:
            self.events.append(event)
            self._more.notify_all()

    def close(self) -> None:
        with self._more:
            self._closed = True
            self._more.notify_all()

    def __iter__(self) -> Iterator[RunEvent]:
        position = 0
        while True:
            with self._more:
                self._more.wait_for(lambda at=position: self._closed or len(self.events) > at)  # type: ignore[misc]
                fresh = self.events[position:]
                if not fresh:
                    return
            position += len(fresh)
            yield from fresh


class LivePublisher:
    """Carries live items to the store's channel, in batches, from a thread of its own. It drops, never blocks."""

    _INTERVAL = 0.05
    _MOST = 5_000

    def __init__(self, live: Live) -> None:
        self._live = live
        self._items: list[tuple[str, bytes]] = []
        self._ready = threading.Condition()
        self._urgent = False
        self._thread: threading.Thread | None = None
        self._closed = False

    def publish(self, key: str, body: bytes) -> None:
        with self._ready:
            if self._closed:
                return
            if len(self._items) < self._MOST:
                self._items.append((key, body))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="vv-live", daemon=True)
                self._thread.start()
            if len(self._items) == 1:  # to wake the thread for each costs more than all else
                self._ready.notify()

    def wanted(self, key: str) -> bool:
        """Whether to publish a run's items; most of the time nobody reads, and then they are not even made."""
        return self._live.wanted(key)

    def hurry(self) -> None:
        """Do not wait for the rest of the interval: a save follows that readers will see."""
        with self._ready:
            if self._items:
                self._urgent = True
                self._ready.notify()

    def close(self) -> None:
        """Send what is there and stop; nothing touches the store afterwards."""
        with self._ready:
            self._closed = self._urgent = True
            self._ready.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(2.0)

    def _run(self) -> None:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: bool(self._items) or self._closed, 10.0)
                if not self._items:
                    self._thread = None
                    return
                end = time.monotonic() + self._INTERVAL
                self._ready.wait_for(lambda: self._urgent or self._closed, max(0.0, end - time.monotonic()))
                batch, self._items, self._urgent = self._items, [], False
            with suppress(Exception):  # live text may be lost, the thread that carries it not
                self._live.publish(batch)
