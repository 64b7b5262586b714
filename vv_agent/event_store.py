"""Where a host keeps the events of runs: a JSONL file, or memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

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
        computed = event_digest(event)
        with self._lock:
            known = self._known.get(event_id)
            if known is not None and known[0] != payload_digest:
                raise EventStoreError(
                    "event_identity_conflict",
                    f"event {event_id!r} is stored with another payload; an event id must never be used twice",
                )
            if computed != payload_digest or event.event_id != event_id:
                raise EventStoreError(
                    "event_payload_digest_mismatch", f"the digest or the id given for event {event_id!r} is not its own"
                )
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

    The file and its folders are created by the first append; a file that is not there replays nothing. Codes:
    `event_store_io_error`, `event_store_serialization_error`, and `event_store_corrupt_line`, which `replay` raises
    when it comes to a line that is no event: with `.line_number`, after all good events before it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()

    def append(self, event: RunEvent) -> None:
        try:
            text = json.dumps(event.to_wire(), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            line = text.encode("utf-8") + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise _not_json(event, error) from error
        try:
            with self._lock:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("ab+", buffering=0) as file:
                    _write(file, line)
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
