"""Sessions in SQLite or PostgreSQL. The layout in SQLite is fixed (spec 14): other programs read the same file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    delete,
    event,
    exc,
    insert,
    inspect,
    select,
)  # fmt: skip
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from vv_agent.checkpoint.urls import without_password
from vv_agent.errors import StoreError
from vv_agent.sessions.base import Once, StoredSession

VERSION = 1
TABLES = MetaData()
ITEM = Table(
    "session_items", TABLES, Column("session_id", Text, nullable=False),
    Column("item_index", Integer, primary_key=True, autoincrement=True), Column("payload", Text, nullable=False),
    sqlite_autoincrement=True,
)  # fmt: skip
INDEX = Index("idx_session_items_session_id_item_index", ITEM.c.session_id, ITEM.c.item_index)
COMMIT = Table(
    "session_commits", TABLES, Column("session_id", Text, primary_key=True),
    Column("commit_id", Text, primary_key=True), Column("payload_digest", Text, nullable=False),
)  # fmt: skip


class SqlSessionStore:
    """Sessions in a database: `sqlite:///PATH` (a file of its own) or `postgresql://...`.

    Raises `StoreError`: `store_unavailable`, or `store_incompatible` for a file that holds something else, which is
    left as it was.
    """

    def __init__(self, url: str) -> None:
        try:
            target = make_url(url)
        except exc.ArgumentError:
            raise _no_url(url) from None
        if target.get_backend_name() not in ("sqlite", "postgresql", "postgres"):
            raise _no_url(url)
        if target.get_backend_name() == "sqlite":
            path = Path(target.database or "").expanduser().resolve()
            path.parent.mkdir(parents=True, exist_ok=True)
            target = target.set(database=str(path))
            self.ref: str | None = f"sqlite:///{path}"
        else:
            target = target.set(drivername="postgresql+psycopg")
            self.ref = without_password(url)
        self._engine = create_engine(target, poolclass=NullPool)  # few and short uses; nothing to close or to fork
        if self._engine.dialect.name == "sqlite":
            event.listen(self._engine, "connect", _set_up)
            event.listen(self._engine, "begin", _begin)
        with self._transaction() as connection:
            _open(connection, self.ref)
        if self._engine.dialect.name == "sqlite":  # lasts in the file, so only once it is known to be ours
            raw = self._engine.raw_connection()
            raw.cursor().execute("PRAGMA journal_mode = WAL")
            raw.close()

    def session(self, session_id: str) -> StoredSession:
        return StoredSession(self, session_id)

    def read(self, session_id: str, limit: int | None) -> Sequence[str]:
        query = select(ITEM.c.payload).where(ITEM.c.session_id == session_id).order_by(ITEM.c.item_index.desc())
        with self._transaction() as connection:
            return list(connection.execute(query.limit(limit)).scalars())[::-1]

    def append(self, session_id: str, rows: Sequence[str], once: Once | None = None) -> str | None:
        with self._transaction() as connection:
            if once is not None and (before := _commit(connection, session_id, once)) is not None:
                return before
            if rows:
                connection.execute(insert(ITEM), [{"session_id": session_id, "payload": row} for row in rows])
        return None

    def pop(self, session_id: str, row: str) -> bool:
        newest = select(ITEM.c.item_index, ITEM.c.payload).where(ITEM.c.session_id == session_id)
        with self._transaction() as connection:
            found = connection.execute(newest.order_by(ITEM.c.item_index.desc()).limit(1).with_for_update()).first()
            if found is None or found.payload != row:
                return False
            removed = connection.execute(delete(ITEM).where(ITEM.c.item_index == found.item_index))
            return removed.rowcount == 1

    def clear(self, session_id: str) -> None:
        with self._transaction() as connection:
            for table in (ITEM, COMMIT):
                connection.execute(delete(table).where(table.c.session_id == session_id))

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except exc.SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            raise StoreError("store_unavailable", f"the session store {self.ref} did not answer: {cause}") from error


def _no_url(url: object) -> StoreError:
    shown = without_password(url) if isinstance(url, str) else url
    return StoreError(
        "store_url_invalid", f"{shown!r} names no store of sessions; use sqlite:///PATH or postgresql://..."
    )


class SqliteSessionStore(SqlSessionStore):
    """Sessions in a SQLite file of their own; its folder is made."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(f"sqlite:///{os.fspath(path)}")


class SqliteSession(StoredSession):
    """One session in a SQLite file."""

    def __init__(self, path: str | Path, session_id: str) -> None:
        super().__init__(SqliteSessionStore(path), session_id)


def _set_up(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # BEGIN is ours
    connection.execute("PRAGMA busy_timeout = 5000")
    connection.execute("PRAGMA synchronous = FULL")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _commit(connection: Connection, session_id: str, once: Once) -> str | None:
    """Note the append; the digest of the one that was made before under its id."""
    if connection.dialect.name != "sqlite":  # two at once are one after the other
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtextextended(%(id)s, 7))", {"id": once.commit_id})
    known = select(COMMIT.c.payload_digest).where(
        COMMIT.c.session_id == session_id, COMMIT.c.commit_id == once.commit_id
    )
    before: str | None = connection.execute(known).scalar()
    if before is None:
        connection.execute(insert(COMMIT).values(session_id=session_id, **once._asdict()))
    return before


def _open(connection: Connection, name: str | None) -> None:
    """Make the tables in an empty database; refuse one that is not ours as it is."""
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7738140101)")
        TABLES.create_all(connection)
        return
    version = connection.exec_driver_sql("PRAGMA user_version").scalar()
    found = inspect(connection)
    tables = set(found.get_table_names())
    if not tables and version == 0:
        TABLES.create_all(connection)
        connection.exec_driver_sql(f"PRAGMA user_version = {VERSION}")
        return
    columns = {table: [column["name"] for column in found.get_columns(table)] for table in tables}
    wanted = {table.name: [column.name for column in table.columns] for table in TABLES.tables.values()}
    indexes = {index["name"] for index in found.get_indexes(ITEM.name)} if ITEM.name in tables else set()
    if version != VERSION or columns != wanted or INDEX.name not in indexes:
        raise StoreError(
            "store_incompatible",
            f"{name} is no session store of version {VERSION} (user_version {version}, tables "
            f"{', '.join(sorted(tables)) or 'none'}); sessions need a file of their own",
        )
