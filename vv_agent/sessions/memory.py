"""Sessions in memory: for one process, gone with it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from vv_agent.sessions.base import Once, StoredSession


class MemorySessionStore:
    """Sessions by id in this process."""

    ref: str | None = None

    def __init__(self) -> None:
        self._rows: dict[str, list[str]] = {}
        self._commits: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()

    def session(self, session_id: str) -> StoredSession:
        return StoredSession(self, session_id)

    def read(self, session_id: str, limit: int | None) -> Sequence[str]:
        with self._lock:
            rows = self._rows.get(session_id, [])
            return rows[-limit:] if limit else list(rows)

    def append(self, session_id: str, rows: Sequence[str], once: Once | None = None) -> str | None:
        with self._lock:
            if once is not None:
                name = (session_id, once.commit_id)
                if (before := self._commits.get(name)) is not None:
                    return before
                self._commits[name] = once.payload_digest
            self._rows.setdefault(session_id, []).extend(rows)
            return None

    def pop(self, session_id: str, row: str) -> bool:
        with self._lock:
            rows = self._rows.get(session_id, [])
            if not rows or rows[-1] != row:
                return False
            rows.pop()
            return True

    def clear(self, session_id: str) -> None:
        with self._lock:
            self._rows.pop(session_id, None)
            self._commits = {name: kept for name, kept in self._commits.items() if name[0] != session_id}


class MemorySession(StoredSession):
    """A session with a memory of its own."""

    def __init__(self, session_id: str) -> None:
        super().__init__(MemorySessionStore(), session_id)
