"""Helper threads: blocking calls run here, so that whoever waits for them can also see a cancel or a lost lease."""

from __future__ import annotations

import contextvars
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Call(Generic[T]):
    """A call that runs in a helper thread. `done` is called once, in that thread, after the outcome is set."""

    def __init__(self, work: Callable[[], T], done: Callable[[Call[T]], None]) -> None:
        self._work = work
        self._done = done
        self._context = contextvars.copy_context()
        self.finished = threading.Event()
        self._value: T | None = None
        self.error: BaseException | None = None
        self.ended: int | None = None
        """When it was over (`time.monotonic_ns`)."""

    def run(self) -> None:
        try:
            self._value = self._context.run(self._work)
        except BaseException as error:
            self.error = error
        self.ended = time.monotonic_ns()
        self.finished.set()
        self._done(self)

    def result(self) -> T:
        """The value, or the error raised again."""
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]


class Helpers:
    """Daemon threads, kept `idle` seconds for the next call. One that never returns is counted, not waited for."""

    MAX_ABANDONED = 50
    """More calls that never came back than this, and the process takes no more work."""

    def __init__(self, *, idle: float = 30.0) -> None:
        self._wait = idle
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._idle: list[queue.SimpleQueue[Call[Any]]] = []
        self._abandoned: set[Call[Any]] = set()

    def submit(self, work: Callable[[], T], done: Callable[[Call[T]], None]) -> Call[T]:
        call = Call(work, done)
        with self._lock:
            if os.getpid() != self._pid:  # threads do not survive a fork
                self._pid, self._idle, self._abandoned = os.getpid(), [], set()
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name="vv-helper", daemon=True).start()
        inbox.put(call)
        return call

    def abandon(self, call: Call[Any]) -> None:
        """Give up on a call that does not stop."""
        with self._lock:
            if not call.finished.is_set():
                self._abandoned.add(call)

    @property
    def exhausted(self) -> bool:
        """True when too many calls never came back."""
        with self._lock:
            self._abandoned = {call for call in self._abandoned if not call.finished.is_set()}
            return len(self._abandoned) > self.MAX_ABANDONED

    def _serve(self, inbox: queue.SimpleQueue[Call[Any]]) -> None:
        while (call := self._next(inbox)) is not None:
            call.run()
            del call
            with self._lock:
                if os.getpid() != self._pid:
                    return
                self._idle.append(inbox)

    def _next(self, inbox: queue.SimpleQueue[Call[Any]]) -> Call[Any] | None:
        """The next call, or None when the thread was idle for long enough."""
        try:
            return inbox.get(timeout=self._wait)
        except queue.Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    return None
        return inbox.get()  # submit took the inbox a moment ago
