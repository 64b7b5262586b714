"""Where a host keeps the events of runs: a JSONL file, or memory."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast, runtime_checkable

from vv_agent._json import digest
from vv_agent.errors import CheckpointError, EventStoreError
from vv_agent.events import RunEvent, parse_event


@runtime_checkable
class RunEventStore(Protocol):
    """Keeps events in the order in which they were appended. All methods may be called by several threads."""

    def append(self, event: RunEvent) -> None:
        """Keep one more event; `EventStoreError` when it could not be kept."""
        ...

    def replay(self, run_id: str, include_children: bool = True) -> Iterator[RunEvent]:
        """The events of a run, and those whose `parent_run_id` is that run; lazily, in order of append."""
        ...


@dataclass(frozen=True, slots=True)
class AppendOnceResult:
    """Whether the event is new in the store, and where it stands there (`{"sequence": n}`, from 1)."""

    inserted: bool
    cursor: Mapping[str, Any] | None


@runtime_checkable
class IdempotentRunEventStore(RunEventStore, Protocol):
    """An event store to which the same event can be sent again after a crash."""

    def append_once(self, event_id: str, payload_digest: str, event: RunEvent) -> AppendOnceResult:
        """Keep the event unless its id is known; a repeat gives the first cursor, `inserted` False.

        `payload_digest` is `event_digest(event)`. Codes: `event_identity_conflict` when the id is known with another
        digest, `event_payload_digest_mismatch` when the digest or the id is not that of the event.
        """
        ...


def event_digest(event: RunEvent) -> str:
    """Lowercase SHA-256 of the RFC 8785 form of the whole event.

    `EventStoreError` `event_store_serialization_error` when its open maps hold something that is not JSON.
    """
    try:
        return digest(event.to_wire())
    except CheckpointError as error:
        raise _not_json(event, error) from error


class MemoryRunEventStore:
    """The reference of an idempotent store: a list in this process. `append` is idempotent by event id too."""

    def __init__(self) -> None:
        self._events: list[RunEvent] = []
        self._known: dict[str, tuple[str, AppendOnceResult]] = {}
        self._lock = threading.Lock()

    def append(self, event: RunEvent) -> None:
        self.append_once(event.event_id, event_digest(event), event)

    def append_once(self, event_id: str, payload_digest: str, event: RunEvent) -> AppendOnceResult:
        with self._lock:
            known = self._known.get(event_id)
            if known is not None and known[0] != payload_digest:
                raise _identity_conflict(event_id)
            _check_identity(event_id, payload_digest, event)
            if known is not None:
                return known[1]
            self._events.append(event)
            cursor = {"sequence": len(self._events)}
            self._known[event_id] = (payload_digest, AppendOnceResult(inserted=False, cursor=cursor))
        return AppendOnceResult(inserted=True, cursor=cursor)

    def replay(self, run_id: str, include_children: bool = True) -> Iterator[RunEvent]:
        with self._lock:
            events = tuple(self._events)
        return (event for event in events if _belongs(event, run_id, include_children))


class JsonlRunEventStore:
    """One event a line in a UTF-8 file, which other processes may append to as well.

    `append_once` keeps the ids of the whole file in memory and reads what is new under a lock of the file, so that
    workers of one host never write an event twice; on a network file system that is only as good as its locks. The file
    and its folders are created by the first append; a file that is not there replays nothing. Codes:
    `event_store_io_error`, `event_store_serialization_error`, and `event_store_corrupt_line`, which `replay` raises
    when it comes to a line that is no event: with `.line_number`, after all good events before it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._index = _Index()

    @property
    def ref(self) -> str:
        """The name by which workers open the same file."""
        return f"{_JSONL}{self.path.absolute()}"

    def append(self, event: RunEvent) -> None:
        with self._opened() as file:
            _write(file, _line(event))

    def append_once(self, event_id: str, payload_digest: str, event: RunEvent) -> AppendOnceResult:
        """`sequence` is the number of the event's line among those that are not blank."""
        _check_identity(event_id, payload_digest, event)
        with self._opened() as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            self._index.read(file)
            known = self._index.lines.get(event_id)
            if known is None:
                _write(file, _line(event))
                self._index.read(file)
                return AppendOnceResult(True, {"sequence": self._index.lines[event_id][0]})
            sequence, start = known
            file.seek(start)
            if event_digest(_event(file.readline(), sequence)) != payload_digest:
                raise _identity_conflict(event_id)
            return AppendOnceResult(False, {"sequence": sequence})

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        try:
            with self._lock:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("ab+", buffering=0) as file:
                    yield cast(BinaryIO, file)
        except OSError as error:
            raise self._io_error(error) from error

    def replay(self, run_id: str, include_children: bool = True) -> Iterator[RunEvent]:
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.strip():
                        continue
                    event = _event(line, number)
                    if _belongs(event, run_id, include_children):
                        yield event
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._io_error(error) from error

    def _io_error(self, error: OSError) -> EventStoreError:
        return EventStoreError("event_store_io_error", f"event store {self.path}: {error.strerror or error}")


_JSONL = "jsonl:"
_opened: dict[str, JsonlRunEventStore] = {}


def open_event_store(ref: str) -> JsonlRunEventStore | None:
    """The store of a name like `jsonl:/path`, one per process; None for a name of another kind."""
    if not ref.startswith(_JSONL):
        return None
    return _opened.setdefault(ref, JsonlRunEventStore(ref.removeprefix(_JSONL)))


class _Index:
    """Event id -> number and start of its line, as far as the file was read."""

    def __init__(self) -> None:
        self.lines: dict[str, tuple[int, int]] = {}
        self._count = 0
        self._end = 0
        self._file: tuple[int, int] | None = None

    def read(self, file: BinaryIO) -> None:
        """Read what was added. A file that was replaced or cut is read anew; lines that are no event have no id."""
        status = os.fstat(file.fileno())
        which = (status.st_dev, status.st_ino)
        if which != self._file or status.st_size < self._end:
            self.lines, self._count, self._end, self._file = {}, 0, 0, which
        file.seek(self._end)
        rest = b""
        while added := file.read(_PIECE):
            *whole, rest = (rest + added).split(b"\n")
            for line in whole:
                self._note(line)

    def _note(self, line: bytes) -> None:
        if line.strip():
            self._count += 1
            with suppress(ValueError, LookupError, TypeError):
                self.lines.setdefault(json.loads(line)["event_id"], (self._count, self._end))
        self._end += len(line) + 1


_PIECE = 1 << 20
"""Bytes read at once."""


def _line(event: RunEvent) -> bytes:
    try:
        text = json.dumps(event.to_wire(), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode("utf-8") + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_json(event, error) from error


def _check_identity(event_id: str, payload_digest: str, event: RunEvent) -> None:
    if event_digest(event) != payload_digest or event.event_id != event_id:
        raise EventStoreError(
            "event_payload_digest_mismatch", f"the digest or the id given for event {event_id!r} is not its own"
        )


def _identity_conflict(event_id: str) -> EventStoreError:
    return EventStoreError(
        "event_identity_conflict",
        f"event {event_id!r} is stored with another payload; an event id must never be used twice",
    )


def _write(file: Any, line: bytes) -> None:
    """Append in one write, on a line of its own even if a writer was killed in the middle of the last one."""
    if (end := file.seek(0, 2)) > 0:
        file.seek(end - 1)
        if file.read(1) != b"\n":
            line = b"\n" + line
    if file.write(line) != len(line):
        raise OSError("the line could only be written in part")


def _event(line: bytes, number: int) -> RunEvent:
    try:
        return parse_event(line)
    except ValueError as cause:
        error = EventStoreError("event_store_corrupt_line", f"event store corrupt line {number}")
        error.line_number = number
        raise error from cause


def _belongs(event: RunEvent, run_id: str, include_children: bool) -> bool:
    return event.run_id == run_id or (include_children and event.parent_run_id == run_id)


def _not_json(event: RunEvent, error: Exception) -> EventStoreError:
    return EventStoreError("event_store_serialization_error", f"event {event.event_id!r} cannot be stored: {error}")
