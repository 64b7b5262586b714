"""The SQL store: one set of tables for SQLite (the embedded default) and PostgreSQL."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import insert, inspect, select, text

from vv_agent.checkpoint.record import Entry, EntryKind, Filter, Head, Presence, Signal, pack_head, unpack_head
from vv_agent.checkpoint.sql.driver import (
    DIALECTS,
    Connection,
    Connections,
    DriverErrors,
    PostgresPoller,
    SqlitePoller,
    StaleConnection,
    live_url,
    make_engine,
    parse_url,
)
from vv_agent.checkpoint.sql.live import SqlLive
from vv_agent.checkpoint.sql.tables import CLOCK, ENTRY_BITS, META, TABLES, Statements, listing
from vv_agent.checkpoint.store import CheckpointStore, T, Transaction
from vv_agent.checkpoint.urls import without_password
from vv_agent.checkpoint.watch import ChangeWatch, Poller
from vv_agent.errors import StoreError

SCHEMA = "1"
_DEADLOCKS = 5
"""Transactions in a row that PostgreSQL may sacrifice to a deadlock (a cancel of a tree against a child's end)."""


def _identity(path: str | None) -> tuple[int, int] | None:
    """Device and inode of a file; None if there is none."""
    try:
        found = os.stat(path) if path else None
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found else None


class SqlStore(CheckpointStore):
    """Keeps records in a SQLite file or a PostgreSQL database; opening makes the tables. `clock` is for tests."""

    def __init__(self, url: str, *, create: bool = True, clock: Callable[[], int] | None = None) -> None:
        target = parse_url(url, create)
        self._create = create
        shown = without_password(target.render_as_string(hide_password=True))
        self.url = shown.replace("+pysqlite", "", 1).replace("+psycopg", "", 1)
        self._clock = clock
        self._sqlite = target.get_backend_name() == "sqlite"
        self._pid = os.getpid()
        self._engine = make_engine(target)
        self._statements = Statements(self._engine)
        self._connections = Connections(self._engine)
        self._watch = ChangeWatch(self._poller)
        self.id = self._open_patiently()
        self._path = os.path.abspath(target.database) if self._sqlite and target.database else None
        self._file = _identity(self._path)
        self.live: SqlLive = SqlLive(make_engine(live_url(target), live=True) if self._sqlite else self._engine)

    def _open_patiently(self) -> str:
        """Two processes may make a store at once: SQLite refuses one of them without waiting for its busy timeout."""
        end = time.monotonic() + 5.0
        while True:
            try:
                with self._errors():
                    return self._open()
            except StoreError as error:
                if error.code != "store_busy" or time.monotonic() > end:
                    raise
            time.sleep(0.02)

    def _open(self) -> str:
        with self._engine.begin() as connection:
            if not self._sqlite:  # two processes must not create the tables at once
                connection.execute(text("SELECT pg_advisory_xact_lock(7653421)"))
            _refuse_sessions(connection, self.url)
            if self._sqlite and not self._create and not inspect(connection).has_table(META.name):
                raise StoreError("store_unavailable", f"{self.url} is no store of runs; set VV_AGENT_STORE to one")
            TABLES.create_all(connection)
            known = {row[0]: str(row[1]) for row in connection.execute(select(META.c.name, META.c.value))}
            if not known:
                known = {"schema": SCHEMA, "store_id": uuid.uuid4().hex}
                connection.execute(insert(META), [{"name": n, "value": v} for n, v in known.items()])
        if known.get("schema") != SCHEMA:
            raise StoreError(
                "store_schema_unsupported",
                f"{self.url} has schema {known.get('schema')!r}, this version reads {SCHEMA}; upgrade vv-agent, "
                "or use another store",
            )
        return known["store_id"]

    def _atomically(self, work: Callable[[Transaction], T], *, write: bool = True, durable: bool = False) -> T:
        try:
            return self._despite_deadlocks(work, write=write, durable=durable)
        except StaleConnection:
            return self._despite_deadlocks(work, write=write, durable=durable)

    def _despite_deadlocks(self, work: Callable[[Transaction], T], *, write: bool, durable: bool) -> T:
        for _ in range(_DEADLOCKS):
            try:
                return self._once(work, write=write, durable=durable)
            except StoreError as error:
                if error.code != "store_deadlock":
                    raise
        raise StoreError("store_busy", f"{self.url}: {_DEADLOCKS} transactions in a row met a deadlock; try again")

    def _once(self, work: Callable[[Transaction], T], *, write: bool, durable: bool) -> T:
        if os.getpid() != self._pid:  # connections do not survive a fork
            self._engine.dispose(close=False)
            self._connections = Connections(self._engine)
            self._pid = os.getpid()
            self._watch = ChangeWatch(self._poller)
        if write and _identity(self._path) != self._file:  # SQLite goes on writing into a file that is gone
            raise StoreError(
                "store_unavailable",
                f"{self.url} was deleted or replaced while it was open; put it back and start this process again",
            )
        with self._errors():
            connection = self._connections.take()
            committing = False
            try:
                connection.begin(write=write, durable=durable)
                tx = _Transaction(connection, self._statements, self._clock, write=write)
                answer = work(tx)
                tx.flush()
                committing = True
                connection.commit()
            except BaseException as error:
                connection.rollback()
                lost = connection.broken and isinstance(error, self._engine.dialect.dbapi.Error)  # type: ignore[union-attr]
                if lost and connection.was_idle and not committing:
                    raise StaleConnection(self.url) from error
                raise
            finally:
                self._connections.give(connection)
        if write:
            self._watch.bump()
        return answer

    def _errors(self) -> DriverErrors:
        return DriverErrors(self.url, self._engine)

    def _poller(self) -> Poller:
        return SqlitePoller(self._engine) if self._sqlite else PostgresPoller(self._engine)

    def wait(self, version: int, timeout: float) -> int:
        return self._watch.wait(version, timeout)

    def close(self) -> None:
        self._watch.stop()
        self._connections.close()
        self._engine.dispose()
        self.live.close()


class _Transaction:
    """The verbs' view of one open transaction. Head and journal of a record are written once, by `flush`."""

    def __init__(
        self, connection: Connection, statements: Statements, clock: Callable[[], int] | None, *, write: bool
    ) -> None:
        self._cursor = connection.driver.cursor()
        self._statements = statements
        self._clock = clock
        self._write = write
        self._dialect = connection.dialect
        self._ids: dict[str, int] = {}
        self._stored: dict[str, Head] = {}
        """Heads as they stand in the table."""
        self._heads: dict[str, Head] = {}
        self._journals: dict[str, bytes | None] = {}
        self._changed: set[str] = set()
        self._now: int | None = None

    @property
    def now(self) -> int:
        if self._now is None:
            if self._clock is not None:
                self._now = self._clock()
            else:
                self._now = int(self._cursor.execute(CLOCK[self._dialect]).fetchone()[0])
        return self._now

    def _run(self, name: str, **values: Any) -> Any:
        statement = self._statements[name]
        return self._cursor.execute(statement.text, statement.bind(values))

    def head(self, key: str) -> Head | None:
        if key in self._heads:
            return self._heads[key]
        row = self._run("lock" if self._write else "head", k=key).fetchone()
        return self._remember(row) if row else None

    def _remember(self, row: Any) -> Head:
        run, packed, journal, now = row
        head = unpack_head(bytes(packed), f"row {run}")
        self._ids[head.key], self._stored[head.key], self._heads[head.key] = run, head, head
        self._journals[head.key] = None if journal is None else bytes(journal)
        if self._now is None and self._clock is None:
            self._now = now
        return head

    def insert(self, head: Head) -> bool:
        row = self._run(
            "insert", key=head.key, root_key=head.root_key, queue=head.queue, created_at=head.created_at,
            state=head.state, status=head.status, due=head.due, head=pack_head(head),
        ).fetchone()  # fmt: skip
        if row is None:
            return False
        self._ids[head.key], self._stored[head.key], self._heads[head.key] = row[0], head, head
        self._journals[head.key] = None
        return True

    def update(self, head: Head) -> None:
        self._heads[head.key] = head
        self._changed.add(head.key)

    def flush(self) -> None:
        """Write the heads and journals that changed."""
        for key in self._changed:
            head, old = self._heads[key], self._stored[key]
            values = {"i": self._ids[key], "head": pack_head(head), "journal": self._journals[key]}
            if (head.state, head.status, head.due) == (old.state, old.status, old.due):
                self._run("update", **values)
            else:
                self._run("update_searched", **values, new_state=head.state, new_status=head.status, new_due=head.due)
        if self._dialect == "postgresql" and self._changed:
            self._cursor.execute("SELECT pg_notify('vv_agent', '')")

    def remove(self, key: str) -> None:
        run = self._ids[key]
        low, high = run << ENTRY_BITS, (run + 1) << ENTRY_BITS
        self._run("remove_entries", low=low, high=high - 1)
        for name in ("remove_blobs", "remove_signals", "remove"):
            self._run(name, i=run)
        self._changed.discard(key)
        del self._heads[key]

    def append(self, key: str, entries: Sequence[Entry]) -> None:
        base = self._ids[key] << ENTRY_BITS
        statement = self._statements["append"]
        rows = [statement.bind({"i": base | e.seq, "kind": int(e.kind), "body": e.body}) for e in entries]
        if rows:
            self._cursor.executemany(statement.text, rows)

    def entries(self, key: str, after: int, limit: int | None, kind: EntryKind | None) -> list[Entry]:
        if key not in self._ids and self.head(key) is None:
            return []
        base = self._ids[key] << ENTRY_BITS
        high = base | ((1 << ENTRY_BITS) - 1)
        if kind is EntryKind.LOG and limit is None:
            rows = self._run("log", low=base | after, high=high).fetchall()
        else:
            rows = self._run("entries", low=base | after, high=high, n=limit or 1 << 24).fetchall()
        return [Entry(row[0] - base, EntryKind(row[1]), bytes(row[2])) for row in rows]

    def blobs(self, key: str) -> dict[str, bytes]:
        return {row[0]: bytes(row[1]) for row in self._run("blobs", i=self._ids[key]).fetchall()}

    def set_blobs(self, key: str, changed: Mapping[str, bytes | None]) -> None:
        for name, body in changed.items():
            if body is None:
                self._run("remove_blob", i=self._ids[key], n=name)
            else:
                self._run("set_blob", i=self._ids[key], n=name, body=body)

    def journal(self, key: str) -> bytes | None:
        body = self._journals[key]
        return None if body is None else bytes(body)

    def set_journal(self, key: str, journal: bytes | None) -> None:
        self._journals[key] = journal
        self._changed.add(key)

    def signals(self, key: str) -> list[Signal]:
        return [_signal(row) for row in self._run("signals", i=self._ids[key]).fetchall()]

    def signal(self, key: str, signal_id: str) -> Signal | None:
        row = self._run("signal", i=self._ids[key], s=signal_id).fetchone()
        return _signal(row) if row else None

    def add_signal(self, key: str, signal: Signal) -> Signal:
        run = self._ids[key]
        seq = self._run("next_signal", i=run).fetchone()[0]
        stored = replace(signal, seq=seq, at=self.now)
        self._run("add_signal", i=run, s=signal.id, seq=seq, t=self.now, kind=signal.kind, body=signal.body)
        return stored

    def consume(self, key: str, ids: Iterable[str], keep: int) -> None:
        run = self._ids[key]
        for signal_id in ids:
            self._run("consume", i=run, s=signal_id)
        for row in self._run("consumed", i=run).fetchall()[keep:]:
            self._run("remove_signal", i=run, s=row[0])

    def definition(self, digest: str) -> bytes | None:
        row = self._run("definition", d=digest).fetchone()
        return bytes(row[0]) if row else None

    def add_definition(self, digest: str, body: bytes) -> None:
        self._run("add_definition", d=digest, body=body)

    def due(self, queues: Sequence[str], limit: int) -> list[Head]:
        statement = "lock_due" if self._write else "due"
        rows = [row for q in queues for row in self._run(statement, q=q, t=self.now, n=limit).fetchall()]
        return sorted(map(self._remember, rows), key=lambda head: head.due or 0)[:limit]

    def find(self, filter_: Filter) -> list[Head]:
        compiled = listing(filter_, self._dialect).compile(
            dialect=DIALECTS[self._dialect](), compile_kwargs={"render_postcompile": True}
        )
        positions = getattr(compiled, "positiontup", None)
        params = [compiled.params[name] for name in positions] if positions else compiled.params
        rows = self._cursor.execute(str(compiled), params).fetchall()
        heads = (unpack_head(bytes(row[1]), f"row {row[0]}") for row in rows)
        return [head for head in heads if filter_.matches(head)][: filter_.limit]

    def presences(self) -> list[Presence]:
        return [Presence(r[0], tuple(r[1].split("\n")), r[2], r[3], r[4]) for r in self._run("workers").fetchall()]

    def show(self, presence: Presence) -> None:
        self._run(
            "show", i=presence.id, queues="\n".join(presence.queues), free=presence.free, wake=presence.wake, t=self.now
        )
        self._run("forget_workers", t=self.now - 86_400_000)


def _signal(row: Sequence[Any]) -> Signal:
    return Signal(id=row[0], kind=row[1], body=bytes(row[2]), seq=row[3], at=row[4])


def _refuse_sessions(connection: Any, url: str) -> None:
    """A file that sessions began in: they need one of their own, and could not be opened any more."""
    if connection.dialect.name == "sqlite" and inspect(connection).has_table("session_items"):
        raise StoreError("store_incompatible", f"{url} holds sessions; runs need a file of their own")
