"""Threads, their turns and items, in SQLite (a file, or memory) or PostgreSQL. One server at a time has a store.

Every change of a thread takes its next number (`seq`): an item keeps its own, a turn the number of its last change.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import QueuePool, StaticPool

from vv_agent.app_server.protocol import AppItem, AppThread, AppTurn, Part
from vv_agent.errors import StoreError
from vv_agent.sessions.base import StoredSession
from vv_agent.sessions.memory import MemorySessionStore
from vv_agent.sessions.sql import Database, SqlSessionStore

VERSION = 1
TABLES = MetaData()
THREAD = Table(
    "app_server_threads", TABLES, Column("thread_id", Text, primary_key=True), Column("n", Integer, nullable=False),
    Column("archived", Boolean, nullable=False), Column("last_seq", Integer, nullable=False),
    Column("body", Text, nullable=False),
)  # fmt: skip
TURN = Table(
    "app_server_turns", TABLES, Column("turn_id", Text, primary_key=True), Column("n", Integer, nullable=False),
    Column("thread_id", Text, nullable=False), Column("seq", Integer, nullable=False),
    Column("status", Text, nullable=False), Column("body", Text, nullable=False),
    Column("checkpoint_key", Text), Column("metadata", Text, nullable=False),
)  # fmt: skip
ITEM = Table(
    "app_server_items", TABLES, Column("thread_id", Text, primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False), Column("item_id", Text, nullable=False),
    Column("body", Text, nullable=False),
)  # fmt: skip
Index("idx_app_server_turns_thread_id_seq", TURN.c.thread_id, TURN.c.seq)
Index("idx_app_server_items_thread_id_item_id", ITEM.c.thread_id, ITEM.c.item_id, unique=True)
_LOCK = "SELECT pg_try_advisory_lock(hashtextextended('vv-agent threads ' || current_schema(), 7))"
PAGE_BYTES = 4 * 1024 * 1024
"""A page ends after so much, whatever its limit is."""


@dataclass(frozen=True)
class TurnRecord:
    """A turn, and what only the server knows of it."""

    turn: AppTurn
    checkpoint_key: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Page(NamedTuple):
    """What changed in a thread after a number; `next_after` is where the next page begins, None on the last one."""

    turns: list[AppTurn]
    items: list[AppItem]
    last_seq: int
    next_after: int | None


class ItemConflict(Exception):
    """The thread has an item of this id with other content."""


class SqlThreadStore:
    """Threads by the URL of a database; in SQLite, the sessions of the threads are in a second file beside it.

    Raises `StoreError`: `store_in_use` while another server has the store, and what `Database` raises. Opening a
    store makes threads that were running idle.
    """

    def __init__(self, url: str) -> None:
        self._lock = threading.RLock()
        self._held: Any = None
        in_memory = url == "sqlite://"
        self._database = Database(
            url, TABLES, VERSION, "thread store", pool=StaticPool if url.startswith("sqlite:") else QueuePool,
            synchronous="NORMAL",
        )  # fmt: skip
        if in_memory:
            self._sessions: Any = MemorySessionStore()
        else:
            self._hold(url)
            self._sessions = SqlSessionStore(_beside(str(self._database.ref)) if url.startswith("sqlite:") else url)
        with self._transaction() as tx:
            self._threads, self._turns = (
                tx.execute(select(func.coalesce(func.max(table.c.n), 0))).scalar_one() for table in (THREAD, TURN)
            )
            for row in tx.execute(select(THREAD).where(THREAD.c.archived.is_(False))).mappings():
                thread = _thread(row)
                if thread.status == "running":
                    _replace_thread(tx, thread.model_copy(update={"status": "idle"}))

    def close(self) -> None:
        with self._lock:
            self._database.close()
            if self._held is not None:
                self._held.close()

    def session(self, thread_id: str) -> StoredSession:
        """The session of a thread."""
        session: StoredSession = self._sessions.session(thread_id)
        return session

    # Threads.

    def new_thread(self, agent_key: str, cwd: str | None, metadata: Mapping[str, Any], now: float) -> AppThread:
        with self._transaction() as tx:
            self._threads += 1
            thread = AppThread(
                thread_id=f"thread_{self._threads}", agent_key=agent_key, cwd=cwd, created_at=now, updated_at=now,
                archived_at=None, status="idle", metadata=dict(metadata),
            )  # fmt: skip
            tx.execute(insert(THREAD).values(
                thread_id=thread.thread_id, n=self._threads, archived=False, last_seq=0, body=_text(thread),
            ))  # fmt: skip
        return thread

    def thread(self, thread_id: str) -> AppThread | None:
        with self._transaction() as tx:
            row = tx.execute(select(THREAD).where(THREAD.c.thread_id == thread_id)).mappings().first()
        return None if row is None else _thread(row)

    def threads(self, archived: bool | None, offset: int, limit: int) -> list[AppThread]:
        """The newest threads first; those that are archived or not, or (None) all."""
        query = select(THREAD).order_by(THREAD.c.n.desc()).offset(offset).limit(limit)
        if archived is not None:
            query = query.where(THREAD.c.archived.is_(archived))
        with self._transaction() as tx:
            return [_thread(row) for row in tx.execute(query).mappings()]

    def put_thread(self, thread: AppThread) -> None:
        with self._transaction() as tx:
            _replace_thread(tx, thread)

    # Turns.

    def new_turn_id(self) -> str:
        with self._lock:
            self._turns += 1
            return f"turn_{self._turns}"

    def put_turn(self, record: TurnRecord) -> None:
        """Add or replace a turn, under the thread's next number."""
        turn = record.turn
        with self._transaction() as tx:
            values = {
                "seq": _next_seq(tx, turn.thread_id), "status": turn.status, "body": _text(turn),
                "checkpoint_key": record.checkpoint_key, "metadata": json.dumps(dict(record.metadata)),
            }  # fmt: skip
            if not tx.execute(update(TURN).where(TURN.c.turn_id == turn.turn_id).values(**values)).rowcount:
                n = _number(turn.turn_id) or self._turns
                tx.execute(insert(TURN).values(turn_id=turn.turn_id, n=n, thread_id=turn.thread_id, **values))

    def drop_turn(self, turn_id: str) -> None:
        with self._transaction() as tx:
            tx.execute(delete(TURN).where(TURN.c.turn_id == turn_id))

    def turn(self, turn_id: str) -> TurnRecord | None:
        with self._transaction() as tx:
            row = tx.execute(select(TURN).where(TURN.c.turn_id == turn_id)).mappings().first()
        return None if row is None else _record(row)

    def turns_of(self, status: str, thread_id: str | None = None) -> list[TurnRecord]:
        """The turns of a status, oldest first."""
        query = select(TURN).where(TURN.c.status == status).order_by(TURN.c.n)
        if thread_id is not None:
            query = query.where(TURN.c.thread_id == thread_id)
        with self._transaction() as tx:
            return [_record(row) for row in tx.execute(query).mappings()]

    def last_status(self, thread_id: str) -> str | None:
        """Of the turn that changed last, those that wait left out."""
        query = select(TURN.c.status).where(TURN.c.thread_id == thread_id, TURN.c.status != "queued")
        with self._transaction() as tx:
            return tx.execute(query.order_by(TURN.c.seq.desc()).limit(1)).scalar()

    # Items.

    def add_item(self, item: AppItem) -> AppItem | None:
        """Keep an item and give it its number; None if it is there already. Raises `ItemConflict`."""
        with self._transaction() as tx:
            same = (ITEM.c.thread_id == item.thread_id) & (ITEM.c.item_id == item.item_id)
            there = tx.execute(select(ITEM).where(same)).mappings().first()
            if there is not None:
                if _item(there).model_copy(update={"seq": None}) != item:
                    raise ItemConflict(item.item_id)
                return None
            seq = _next_seq(tx, item.thread_id)
            tx.execute(insert(ITEM).values(
                thread_id=item.thread_id, seq=seq, item_id=item.item_id, body=_text(item)
            ))  # fmt: skip
        return item.model_copy(update={"seq": seq})

    def seq_of(self, thread_id: str, item_id: str) -> int:
        """The number of an item, 0 for one that is not known."""
        query = select(ITEM.c.seq).where(ITEM.c.thread_id == thread_id, ITEM.c.item_id == item_id)
        with self._transaction() as tx:
            return tx.execute(query).scalar() or 0

    def page(self, thread_id: str, after: int, limit: int, *, items_after: int = 0) -> Page:
        """What changed after a number, at most `limit` items (only those after `items_after`) and `limit` turns, oldest
        first."""
        items: list[Any] = []
        turns: list[Any] = []
        size, seq, upto = 0, after, None
        with self._transaction() as tx:
            last = tx.execute(select(THREAD.c.last_seq).where(THREAD.c.thread_id == thread_id)).scalar_one()
            found = [
                tx.execute(
                    select(table).where(table.c.thread_id == thread_id, table.c.seq > since)
                    .order_by(table.c.seq).limit(limit + 1)
                ).mappings()
                for table, since in ((ITEM, max(after, items_after)), (TURN, after))
            ]  # fmt: skip
            for row in heapq.merge(*found, key=lambda row: row["seq"]):
                if size > PAGE_BYTES or limit in (len(items), len(turns)):
                    upto = seq
                    break
                (items if "item_id" in row else turns).append(row)
                seq, size = row["seq"], size + len(row["body"])
        turns.sort(key=lambda row: row["n"])
        return Page([_record(row).turn for row in turns], [_item(row) for row in items], last, upto)

    # Details.

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._lock, self._database.transaction() as tx:
            if isinstance(self._held, Connection) and not self._is_held():
                self._lock_schema()
            yield tx

    def _hold(self, url: str) -> None:
        """Keep other servers out; the system lets go of it with this process."""
        try:
            if not url.startswith("sqlite:"):
                self._lock_schema()
                return
            path = str(self._database.ref).removeprefix("sqlite:///") + ".lock"
            self._held = open(path, "w", encoding="utf-8")  # noqa: SIM115
            try:
                fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise self._in_use() from None
        except StoreError:
            self.close()
            raise

    def _lock_schema(self) -> None:
        """A lock of PostgreSQL, which lasts as long as its connection."""
        held = self._database.connect()
        taken = bool(held.exec_driver_sql(_LOCK).scalar())
        held.commit()
        held.detach()  # closing it ends the connection, and the lock
        if not taken:
            held.close()
            raise self._in_use()
        self._held = held

    def _is_held(self) -> bool:
        try:
            alive = not self._held.invalidated and bool(self._held.exec_driver_sql("SELECT 1").scalar())
            self._held.commit()
        except SQLAlchemyError:
            return False
        return alive

    def _in_use(self) -> StoreError:
        return StoreError(
            "store_in_use", f"another App Server has the thread store {self._database.ref}; stop it, or use another"
        )


class MemoryThreadStore(SqlThreadStore):
    """Threads in memory, gone with the process."""

    def __init__(self) -> None:
        super().__init__("sqlite://")


def open_thread_store(place: str | None) -> SqlThreadStore:
    """The store of `--store`: a URL, the path of a SQLite file, or (None) memory."""
    if place is None:
        return MemoryThreadStore()
    return SqlThreadStore(place if "://" in place else f"sqlite:///{os.path.abspath(place)}")


def _beside(ref: str) -> str:
    path = Path(ref.removeprefix("sqlite:///"))
    return f"sqlite:///{path.with_name(f'{path.stem}-sessions{path.suffix}')}"


def _next_seq(tx: Connection, thread_id: str) -> int:
    number: int = tx.execute(
        update(THREAD).where(THREAD.c.thread_id == thread_id).values(last_seq=THREAD.c.last_seq + 1)
        .returning(THREAD.c.last_seq)
    ).scalar_one()  # fmt: skip
    return number


def _replace_thread(tx: Connection, thread: AppThread) -> None:
    values = {"archived": thread.status == "archived", "body": _text(thread)}
    tx.execute(update(THREAD).where(THREAD.c.thread_id == thread.thread_id).values(**values))


def _number(turn_id: str) -> int:
    number = turn_id.removeprefix("turn_")
    return int(number) if number.isdigit() else 0


def _text(part: Part) -> str:
    return json.dumps(part.to_wire(), separators=(",", ":"))


def _thread(row: Mapping[Any, Any]) -> AppThread:
    return AppThread.from_wire(json.loads(row["body"]))


def _record(row: Mapping[Any, Any]) -> TurnRecord:
    turn = AppTurn.from_wire(json.loads(row["body"]))
    return TurnRecord(turn, row["checkpoint_key"], json.loads(row["metadata"]))


def _item(row: Mapping[Any, Any]) -> AppItem:
    return AppItem.from_wire(json.loads(row["body"])).model_copy(update={"seq": row["seq"]})
