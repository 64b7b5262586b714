"""What a session is: the protocol, the one wire form of an item, and the identity that makes an append happen once.

Every kind of session is a `StoredSession` over the four things its store can do with rows of text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, unquote

from vv_agent._json import digest, utf16_order
from vv_agent.checkpoint.urls import without_password
from vv_agent.errors import CannotServe, CheckpointError, ConfigError
from vv_agent.messages import Message, ToolCall

SessionItem = Message
"""An item of a session is a message."""

COMMIT_PREFIX = "vv-agent:checkpoint-v2:session:"
PAYLOAD_VERSION = "vv-agent.session-commit.v1"


class SessionAppendOutcome(StrEnum):
    """What `add_items_once` did."""

    COMMITTED = "committed"
    REPLAYED = "replayed"


class Session(Protocol):
    """The history of one conversation. Items are given out as copies, oldest first.

    `supports_add_items_once` and the method may be absent; a checkpointed run needs them, or a resumed run would write
    its messages twice.
    """

    session_id: str
    supports_add_items_once: bool

    def get_items(self, limit: int | None = None) -> list[SessionItem]:
        """All items, or the newest `limit` of them; in order of time."""
        ...

    def add_items(self, items: Iterable[SessionItem]) -> None:
        """Append; no items is no change."""
        ...

    def pop_item(self) -> SessionItem | None:
        """Take the newest item off; None when there is none. One that cannot be read is an error and stays."""
        ...

    def clear(self) -> None:
        """Forget all items, and which appends were made."""
        ...

    def add_items_once(self, commit_id: str, payload_digest: str, items: Iterable[SessionItem]) -> SessionAppendOutcome:
        """Append unless an append of this id was made. `session_commit_identity_conflict` if it had other items."""
        ...


def appends_once(session: Session) -> bool:
    """Whether a session can tell an append that was made already; one of the host's own need not."""
    return bool(getattr(session, "supports_add_items_once", False))


class Once(NamedTuple):
    """The identity of an append."""

    commit_id: str
    payload_digest: str


class SessionStore(Protocol):
    """A place for sessions. `ref` is its URL (a password left out), None where no other process could open it.

    Rows are texts; each of the four is atomic.
    """

    ref: str | None

    def session(self, session_id: str) -> StoredSession: ...
    def read(self, session_id: str, limit: int | None) -> Sequence[str]:
        """The newest `limit` rows (None: all), oldest first."""
        ...

    def append(self, session_id: str, rows: Sequence[str], once: Once | None = None) -> str | None:
        """Append rows. With `once`: unless an append of that id was made, whose digest is then the answer."""
        ...

    def pop(self, session_id: str, row: str) -> bool:
        """Remove the newest row if it is this one."""
        ...

    def clear(self, session_id: str) -> None: ...


class StoredSession:
    """A session over the rows of a store."""

    supports_add_items_once = True

    def __init__(self, store: SessionStore, session_id: str) -> None:
        if not isinstance(session_id, str) or not session_id.strip():
            raise ConfigError(
                "session_invalid", f"a session needs an id, a text such as 'thread-1'; not {session_id!r}"
            )
        if any("\ud800" <= character <= "\udfff" for character in session_id):
            raise ConfigError(
                "session_invalid", f"session id {session_id!r} has half a character; no store can hold it"
            )
        self.session_id = session_id
        self._store = store

    @property
    def ref(self) -> str | None:
        """What another process opens it by."""
        return None if self._store.ref is None else f"{self._store.ref}#{quote(self.session_id, safe='')}"

    def get_items(self, limit: int | None = None) -> list[SessionItem]:
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise ConfigError("session_invalid", f"limit is {limit!r}; give 0 or more items, or None for all")
        return [] if limit == 0 else [decode_item(row) for row in self._store.read(self.session_id, limit)]

    def add_items(self, items: Iterable[SessionItem]) -> None:
        if rows := [encode_item(item) for item in items]:
            self._store.append(self.session_id, rows)

    def pop_item(self) -> SessionItem | None:
        while rows := self._store.read(self.session_id, 1):
            item = decode_item(rows[0])
            if self._store.pop(self.session_id, rows[0]):
                return item
        return None

    def clear(self) -> None:
        self._store.clear(self.session_id)

    clear_session = clear

    def add_items_once(self, commit_id: str, payload_digest: str, items: Iterable[SessionItem]) -> SessionAppendOutcome:
        kept = tuple(items)
        _check_identity(commit_id, payload_digest, kept)
        rows = [encode_item(item) for item in kept]
        before = self._store.append(self.session_id, rows, Once(commit_id, payload_digest))
        if before is None:
            return SessionAppendOutcome.COMMITTED
        if before == payload_digest:
            return SessionAppendOutcome.REPLAYED
        raise CheckpointError(
            "session_commit_identity_conflict",
            f"session {self.session_id!r} holds other items under the commit {commit_id}; the run and the session do "
            "not belong together, give the run a new key",
        )


def commit_id(key: str, segment: int = 0) -> str:
    """The id under which a segment of a run appends its messages."""
    name = key if segment == 0 else f"{key}\0{segment}"
    return COMMIT_PREFIX + hashlib.sha256(name.encode()).hexdigest()


def payload_digest(items: Iterable[SessionItem]) -> str:
    """SHA-256 of the canonical JSON of what is appended."""
    wires = [item_to_wire(item) for item in items]
    return digest({"schema_version": PAYLOAD_VERSION, "items": wires}, code="session_item_invalid")


def _check_identity(name: str, digest_given: str, items: Sequence[SessionItem]) -> None:
    if not re.fullmatch(re.escape(COMMIT_PREFIX) + "[0-9a-f]{64}", str(name)):
        raise CheckpointError(
            "session_commit_identity_invalid", f"{name!r} is no commit id; make it with commit_id(key)"
        )
    if not re.fullmatch("[0-9a-f]{64}", str(digest_given)):
        raise CheckpointError(
            "session_commit_payload_digest_invalid",
            f"{digest_given!r} is no SHA-256; make it with payload_digest(items)",
        )
    if digest_given != payload_digest(items):
        raise CheckpointError(
            "session_commit_payload_digest_mismatch", f"the digest given for commit {name} is not that of the items"
        )


def item_to_wire(item: SessionItem) -> dict[str, Any]:
    """The closed wire object of an item; tool arguments compact, with sorted keys at every level.

    Arguments that are no JSON object, as a model may write them, are stored as `{}`: the call failed, and its result
    says so.
    """
    if not isinstance(item, Message):
        what = (
            f"an item of a session is a Message, not {type(item).__name__}; use Message(...) or Message.from_wire(item)"
        )
        raise CheckpointError("session_item_invalid", what)
    calls = tuple(replace(call, arguments=_arguments(call)) for call in item.tool_calls)
    return replace(item, tool_calls=calls).to_wire()


def encode_item(item: SessionItem) -> str:
    return json.dumps(item_to_wire(item), ensure_ascii=False, separators=(",", ":"))


def decode_item(row: str | Mapping[str, Any]) -> SessionItem:
    """Read one stored item. Raises `session_item_invalid`, which names the field that is wrong."""
    try:
        item = Message.from_wire(json.loads(row) if isinstance(row, str) else row)
        for call in item.tool_calls:
            if not isinstance(json.loads(call.arguments), dict):
                raise ValueError(f"the arguments of tool call {call.id!r} are no JSON object")
    except (ValueError, RecursionError) as error:
        raise CheckpointError("session_item_invalid", f"a session item cannot be read: {error}") from error
    return item


def _arguments(call: ToolCall) -> str:
    try:
        value = _sorted(call.parsed())
    except (ValueError, RecursionError):
        value = {}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _sorted(value: Any) -> Any:
    match value:
        case dict():
            return {name: _sorted(value[name]) for name in sorted(value, key=utf16_order)}
        case list():
            return [_sorted(item) for item in value]
        case _:
            return value


def open_session(ref: str, urls: Iterable[str | None] = ()) -> StoredSession:
    """The session of a `ref`. Its store's password is taken from the first of `urls` that names the same store.

    Raises `CannotServe` `session_unavailable` for a name that cannot be opened here.
    """
    place, _, quoted = ref.rpartition("#")
    place, _, prefix = place.partition("|")
    session_id = unquote(quoted)
    url = next((url for url in urls if url is not None and without_password(url) == place), place)
    scheme = url.split("://", 1)[0].split("+")[0]
    if scheme in ("redis", "rediss") and ":***@" not in url:
        from vv_agent.sessions.redis import RedisSessionStore

        return (RedisSessionStore(url, prefix) if prefix else RedisSessionStore(url)).session(session_id)
    if scheme in ("sqlite", "postgresql", "postgres") and ":***@" not in url:
        from vv_agent.sessions.sql import SqlSessionStore

        return SqlSessionStore(url).session(session_id)
    why = "its password is not known here; set VV_AGENT_SESSIONS to the URL" if ":***@" in url else "no such kind"
    raise CannotServe("session_unavailable", f"the session store {place!r} cannot be opened: {why}")
