"""Live text beside the SQL store: in a file of its own on SQLite, an unlogged table on PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
)
from sqlalchemy.engine import Engine

from vv_agent.checkpoint.store import Cursor


def _live_table(*, unlogged: bool) -> Table:
    return Table(
        "vv_live",
        MetaData(),
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
        Column("run_key", Text, nullable=False),
        Column("body", LargeBinary, nullable=False),
        sqlite_autoincrement=True,
        prefixes=["UNLOGGED"] if unlogged else [],
    )


class SqlLive:
    """Live text in a file (or unlogged table) of its own: deltas must not wait for, or delay, a commit."""

    _CAP = 20_000

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reader = engine.execution_options(vv_reads=True)  # readers must not wait for the writers' lock
        self._table = _live_table(unlogged=engine.dialect.name != "sqlite")
        self._pid = os.getpid()
        self._ready = self._closed = False

    def _connect(self, *, reads: bool) -> Any:
        if self._closed:
            raise RuntimeError("closed")
        if os.getpid() != self._pid:
            self._engine.dispose(close=False)
            self._pid = os.getpid()
        if not self._ready:
            self._table.metadata.create_all(self._engine)
            self._ready = True
        return (self._reader if reads else self._engine).begin()

    def wanted(self, key: str) -> bool:
        return True

    def listen(self, keys: Sequence[str], *, reading: bool = True) -> None:
        return

    def publish(self, items: Sequence[tuple[str, bytes]]) -> None:
        rows = [{"run_key": key, "body": body} for key, body in items]
        self._quietly(lambda c: self._append(c, rows), None, reads=False)

    def _append(self, connection: Any, rows: list[dict[str, Any]]) -> None:
        connection.execute(insert(self._table), rows)
        newest = connection.execute(select(func.max(self._table.c.id))).scalar() or 0
        if newest % 1000 < 100:
            connection.execute(delete(self._table).where(self._table.c.id <= newest - self._CAP))

    def read(self, keys: Sequence[str], after: Cursor, limit: int = 1000) -> tuple[Cursor, list[tuple[str, bytes]]]:
        query = (
            select(self._table.c.id, self._table.c.run_key, self._table.c.body)
            .where(self._table.c.id > after, self._table.c.run_key.in_(list(keys)))
            .order_by(self._table.c.id)
            .limit(limit)
        )
        found: list[tuple[int, str, bytes]] = self._quietly(
            lambda c: [(row[0], row[1], bytes(row[2])) for row in c.execute(query)], []
        )
        return (found[-1][0] if found else after), [(key, body) for _, key, body in found]

    def last(self) -> Cursor:
        newest: int = self._quietly(lambda c: c.execute(select(func.max(self._table.c.id))).scalar() or 0, 0)
        return newest

    def _quietly(self, work: Callable[[Any], Any], otherwise: Any, *, reads: bool = True) -> Any:
        """Live text is a convenience: a store that cannot carry it must not stop a run."""
        pool = self._engine.pool
        try:
            with self._connect(reads=reads) as connection:
                return work(connection)
        except Exception:
            return otherwise
        finally:
            if self._closed:  # while this was under way: what it gave back is let go of as well
                pool.dispose()

    def close(self) -> None:
        self._closed = True
        self._engine.dispose()
