"""Sessions in SQLite or PostgreSQL. The layout in SQLite is fixed (spec 14): other programs read the same file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
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
from sqlalchemy.pool import NullPool, Pool

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


class Database:
    """A database with the tables of one purpose: `sqlite:///PATH` (a file of its own) or `postgresql://...`.

    Raises `StoreError`: `store_unavailable`, or `store_incompatible` for a file that holds something else, which is
    left as it was.
    """

    def __init__(
        self, url: str, tables: MetaData, version: int, holds: str, *, pool: type[Pool] = NullPool,
        synchronous: str = "FULL",
    ) -> None:  # fmt: skip
        try:
            target = make_url(url)
        except exc.ArgumentError:
            raise _no_url(url) from None
        if target.get_backend_name() not in ("sqlite", "postgresql", "postgres"):
            raise _no_url(url)
        self._holds = holds
        in_memory = target.database is None
        if in_memory:
            self.ref: str | None = None
        elif target.get_backend_name() == "sqlite":
            path = Path(target.database or "").expanduser().resolve()
            path.parent.mkdir(parents=True, exist_ok=True)
            target = target.set(database=str(path))
            self.ref = f"sqlite:///{path}"
        else:
            target = target.set(drivername="postgresql+psycopg")
            self.ref = without_password(url)
        options: dict[str, Any] = {"connect_args": {"check_same_thread": False}} if in_memory else {}
        self._engine = create_engine(target, poolclass=pool, **options)
        if self._engine.dialect.name == "sqlite":
            event.listen(self._engine, "connect", partial(_set_up, synchronous))
            event.listen(self._engine, "begin", _begin)
        with self.transaction() as connection:
            _open(connection, tables, version, f"{self.ref} is no {holds} of version {version}")
        if self._engine.dialect.name == "sqlite":  # lasts in the file, so only once it is known to be ours
            raw = self._engine.raw_connection()
            raw.cursor().execute("PRAGMA journal_mode = WAL")
            raw.close()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except exc.SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            raise StoreError("store_unavailable", f"the {self._holds} {self.ref} did not answer: {cause}") from error

    def connect(self) -> Connection:
        """A connection of the caller's own."""
        return self._engine.connect()

    def close(self) -> None:
        self._engine.dispose()


class SqlSessionStore:
    """Sessions in a database of their own. Raises what `Database` does."""

    def __init__(self, url: str) -> None:
        self._database = Database(url, TABLES, VERSION, "session store")  # few and short uses: no pool to fork
        self.ref = self._database.ref
        self._transaction = self._database.transaction

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


def _set_up(synchronous: str, connection: Any, _: Any) -> None:
    connection.isolation_level = None  # BEGIN is ours
    connection.execute("PRAGMA busy_timeout = 5000")
    connection.execute(f"PRAGMA synchronous = {synchronous}")


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


def _open(connection: Connection, wanted: MetaData, version: int, refusal: str) -> None:
    """Make the tables in an empty database; refuse one that is not ours as it is."""
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7738140101)")
        wanted.create_all(connection)
        return
    stands = connection.exec_driver_sql("PRAGMA user_version").scalar()
    found = inspect(connection)
    tables = set(found.get_table_names())
    if not tables and stands == 0:
        wanted.create_all(connection)
        connection.exec_driver_sql(f"PRAGMA user_version = {version}")
        return
    columns = {table: [column["name"] for column in found.get_columns(table)] for table in tables}
    indexes = {index["name"] for table in tables for index in found.get_indexes(table)}
    same = columns == {table.name: [column.name for column in table.columns] for table in wanted.tables.values()}
    needed = {index.name for table in wanted.tables.values() for index in table.indexes}
    if stands != version or not same or needed - indexes:
        raise StoreError(
            "store_incompatible",
            f"{refusal} (user_version {stands}, tables {', '.join(sorted(tables)) or 'none'}); it needs a file of its "
            "own",
        )
