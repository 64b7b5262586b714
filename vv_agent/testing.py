"""Helpers for tests of agents: a scripted model, a clock that is moved by hand, and named crash points.

A crash point makes the process kill itself with SIGKILL at a boundary. `VV_AGENT_CRASH` names it as `boundary:side` or
`boundary:side:n` (the n-th time, from 1):

    store.create, store.claim, store.renew, store.post        a verb of the store
    store.save.progress, store.save.started, store.save.commit,
    store.save.release, store.save.park, store.save.end       a save, by what it is
    model, tool                                               a call of a model or a tool
    session                                                   the append to a session at the end
    dispatch                                                  the hint to a worker

with the side `before` or `after`. With `VV_AGENT_CRASH_FILE` set to a path, the process first appends its pid and the
point to that file, so that a test can tell a crash from an accident.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from vv_agent.checkpoint.record import (
    Change,
    Claim,
    Claimed,
    Commit,
    End,
    NewRun,
    Park,
    Posted,
    Refused,
    Release,
    Saved,
    Signal,
)
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.errors import SettingsError
from vv_agent.llm.scripted import ScriptedModel, ScriptedProvider, call, calls, say

__all__ = ["CrashPlan", "CrashingStore", "FakeClock", "ScriptedModel", "ScriptedProvider", "call", "calls", "say"]

BOUNDARIES = (
    "store.create", "store.claim", "store.renew", "store.post", "store.save.progress", "store.save.started",
    "store.save.commit", "store.save.release", "store.save.park", "store.save.end", "model", "tool", "session",
    "dispatch",
)  # fmt: skip


class FakeClock:
    """A clock in milliseconds that moves when told; every store takes one as `clock=`."""

    def __init__(self, start: int = 1_800_000_000_000) -> None:
        self.now = start

    def __call__(self) -> int:
        return self.now

    def advance(self, ms: int) -> None:
        """Move it forward."""
        self.now += ms


class CrashPlan:
    """Kills the process at the n-th passing of a boundary's side."""

    def __init__(self, boundary: str, side: str, n: int = 1, file: str | None = None) -> None:
        if boundary not in BOUNDARIES or side not in ("before", "after") or n < 1:
            raise SettingsError(
                "settings_invalid",
                f"crash point {boundary}:{side}:{n} is not known; use boundary:before|after[:n] with one of "
                f"{', '.join(BOUNDARIES)}",
            )
        self._point = (boundary, side)
        self._n = n
        self._file = file
        self._passed: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    @classmethod
    def parse(cls, text: str, file: str | None = None) -> CrashPlan:
        """Read `boundary:side` or `boundary:side:n`."""
        boundary, _, rest = text.partition(":")
        side, _, number = rest.partition(":")
        return cls(boundary, side, int(number) if number.isdigit() else (0 if number else 1), file)

    def __call__(self, boundary: str, side: str) -> None:
        """Pass a boundary (an `Engine.probe`)."""
        with self._lock:
            self._passed[boundary, side] += 1
            due = (boundary, side) == self._point and self._passed[boundary, side] == self._n
        if due:
            self._die()

    def _die(self) -> None:
        if self._file is not None:
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(descriptor, f"{os.getpid()} {':'.join(self._point)}\n".encode())
            os.close(descriptor)
        os.kill(os.getpid(), signal.SIGKILL)


_SAVES: dict[type, str] = {Commit: "commit", Release: "release", Park: "park", End: "end"}


class CrashingStore:
    """A store whose verbs are boundaries of a crash plan; everything else is the store's own."""

    def __init__(self, store: CheckpointStore, probe: Callable[[str, str], None]) -> None:
        self._store = store
        self._probe = probe

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def create(self, runs: Sequence[NewRun]) -> Any:
        return self._at("store.create", lambda: self._store.create(runs))

    def claim(self, *args: Any, **options: Any) -> Claimed | Refused:
        answer: Claimed | Refused = self._at("store.claim", lambda: self._store.claim(*args, **options))
        return answer

    def save(self, claim: Claim, change: Change) -> Saved:
        kind = "started" if change.starts else _SAVES.get(type(change.then), "progress")
        saved: Saved = self._at(f"store.save.{kind}", lambda: self._store.save(claim, change))
        return saved

    def renew(self, *args: Any, **options: Any) -> Any:
        return self._at("store.renew", lambda: self._store.renew(*args, **options))

    def post(self, key: str, note: Signal) -> Posted:
        posted: Posted = self._at("store.post", lambda: self._store.post(key, note))
        return posted

    def _at(self, boundary: str, verb: Callable[[], Any]) -> Any:
        self._probe(boundary, "before")
        answer = verb()
        self._probe(boundary, "after")
        return answer
