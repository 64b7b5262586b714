"""Noticing that a store changed: one thread asks the database, only while somebody waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Poller:
    """Asks once whether something changed; blocks at most `timeout` seconds."""

    def poll(self, timeout: float) -> bool:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class ChangeWatch:
    """A version that rises with every change; one thread asks the database, only while somebody waits."""

    _LINGER = 2.0

    def __init__(self, poller: Callable[[], Poller]) -> None:
        self._poller = poller
        self._changed = threading.Condition()
        self._version = 1
        self._waiters = 0
        self._thread: threading.Thread | None = None
        self._stopped = False

    def bump(self) -> None:
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def wait(self, version: int, timeout: float) -> int:
        with self._changed:
            if self._version == version and not self._stopped:
                self._waiters += 1
                if self._thread is None:
                    self._thread = threading.Thread(target=self._watch, name="vv-store-watch", daemon=True)
                    self._thread.start()
                self._changed.wait_for(lambda: self._version != version or self._stopped, timeout)
                self._waiters -= 1
            return self._version

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(2.0)

    def _watch(self) -> None:
        idle = time.monotonic() + self._LINGER
        try:
            poller = self._poller()
            try:
                while not self._stopped:
                    if poller.poll(0.25):
                        self.bump()
                    with self._changed:
                        if self._waiters:
                            idle = time.monotonic() + self._LINGER
                        elif time.monotonic() > idle:
                            return
            finally:
                poller.close()
        except Exception:  # the store went away: waiters time out and their next read says so
            time.sleep(0.2)
        finally:
            with self._changed:
                self._thread = None
