"""Cancellation: a flag that several threads may watch, with the reason it was set for."""

from __future__ import annotations

import threading
from collections.abc import Callable


class CancellationToken:
    """Set once, never reset. A child is cancelled with its parent, not the other way round.

    `cancel` may be called from any thread; callbacks run in the calling thread, each at most once, and must not
    block. A callback that is added after the cancellation runs at once.
    """

    def __init__(self, parent: CancellationToken | None = None) -> None:
        self._lock = threading.Lock()
        self._event: threading.Event | None = None
        """Made for the first one that waits: a cycle makes four tokens, and nobody waits for most of them."""
        self._reason: str | None = None
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._next = 0
        self._detach = parent.on_cancel(lambda: self.cancel(parent.reason)) if parent else None

    @property
    def cancelled(self) -> bool:
        return self._reason is not None

    @property
    def reason(self) -> str | None:
        """Why, once cancelled; `None` before."""
        return self._reason

    def cancel(self, reason: str | None = None) -> bool:
        """Cancel; True only for the call that did it."""
        with self._lock:
            if self._reason is not None:
                return False
            self._reason = reason or "Operation was cancelled"
            if self._event is not None:
                self._event.set()
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
        for callback in callbacks:
            callback()
        return True

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` when cancelled; the returned function takes it back."""
        with self._lock:
            if self._reason is None:
                number = self._next
                self._next += 1
                self._callbacks[number] = callback
                return lambda: self._remove(number)
        callback()
        return lambda: None

    def child(self) -> CancellationToken:
        """A token that is cancelled with this one; `close` it when its work is over."""
        return CancellationToken(self)

    def close(self) -> None:
        """Let go of the parent (a long-lived parent would otherwise keep every child)."""
        if self._detach:
            self._detach()
            self._detach = None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds; True if cancelled."""
        with self._lock:
            if self._reason is not None:
                return True
            if self._event is None:
                self._event = threading.Event()
        return self._event.wait(timeout)

    def _remove(self, number: int) -> None:
        with self._lock:
            self._callbacks.pop(number, None)
