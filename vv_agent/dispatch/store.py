"""The dispatcher without a broker: the store is the queue, and a byte on a worker's socket is the hint."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import tempfile
from pathlib import Path

from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.errors import StoreError
from vv_agent.runtime.recipe import CycleRecipe


class StoreDispatcher:
    """Leaves the run to workers on the same store; wakes one of them at random.

    No message is sent, so a commit makes the run due at once (`hold_ms` 0). Where there is no unix socket (Windows) the
    workers' own polling finds the run.
    """

    hold_ms = 0

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store

    def dispatch(self, recipe: CycleRecipe) -> bool:
        try:
            presences = [p for p in self._store.presences() if recipe.queue in p.queues and p.wake]
        except StoreError:
            return False
        free = [p for p in presences if p.free > 0] or presences
        random.shuffle(free)
        return any(wake(str(presence.wake)) for presence in free)  # a killed worker's socket hears nothing


def wake(path: str) -> bool:
    """Send a byte to a worker's socket; False when nobody listens there (any more)."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(b"x", path)
    except (OSError, AttributeError):
        return False
    return True


class WakeSocket:
    """A worker's end of the hint. `wait` returns at once when a byte lies there."""

    def __init__(self) -> None:
        self.path: str | None = None
        self._socket: socket.socket | None = None
        with contextlib.suppress(OSError, AttributeError):
            folder = Path(tempfile.gettempdir()) / f"vv-agent-{os.getuid()}"
            folder.mkdir(mode=0o700, exist_ok=True)
            path = str(folder / f"{os.getpid()}-{os.urandom(4).hex()}.sock")
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.bind(path)
            self.path = path

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a hint; eats all that came."""
        if self._socket is None:
            import time

            time.sleep(timeout)
            return False
        self._socket.settimeout(max(timeout, 0.001))
        try:
            self._socket.recv(16)
            self._socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._socket.recv(16)
        except TimeoutError:
            return False
        except OSError:
            return False
        return True

    def nudge(self) -> None:
        """Wake the own waiter."""
        if self.path is not None:
            wake(self.path)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self.path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
