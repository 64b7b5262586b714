"""The SQL store: one set of tables for SQLite (the embedded default) and PostgreSQL.

The statements of the verbs are compiled once and run on the driver's connection: SQLAlchemy would hold SQLite's one
write lock about 2.5 times longer (measured). SQLite runs in WAL mode and takes a file lock before `BEGIN
IMMEDIATE`, so that waiting is fair; a commit is `synchronous=FULL` only where the change must survive power loss.
PostgreSQL locks rows and sets `synchronous_commit` the same way.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    bindparam,
    create_engine,
    delete,
    event,
    exc,
    func,
    insert,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.sql import ClauseElement

from vv_agent.checkpoint.record import Entry, EntryKind, Filter, Head, ParkReason, Presence, Signal, State
from vv_agent.checkpoint.store import CheckpointStore, Cursor, T, Transaction
from vv_agent.checkpoint.watch import ChangeWatch, Poller
from vv_agent.errors import StoreError

SCHEMA = "1"
_BIG = BigInteger().with_variant(Integer, "sqlite")
_TABLES = MetaData()

RUN = Table(
    "vv_run", _TABLES,
    Column("id", _BIG, primary_key=True),
    Column("key", Text, nullable=False, unique=True), Column("root_key", Text, nullable=False),
    Column("parent_key", Text), Column("run_id", Text, nullable=False), Column("queue", Text),
    Column("definition", Text, nullable=False), Column("schema", SmallInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("state", Text, nullable=False), Column("reason", Text), Column("status", Text, nullable=False),
    Column("ending", Boolean, nullable=False), Column("cycle", Integer, nullable=False),
    Column("revision", Integer, nullable=False), Column("token", Text), Column("owner", Text),
    Column("lease_until", BigInteger, nullable=False), Column("due", BigInteger),
    Column("recoveries", Integer, nullable=False), Column("attempt", Integer, nullable=False),
    Column("dispatches", Integer, nullable=False), Column("refused_at", BigInteger), Column("refusal", Text),
    Column("entry_n", Integer, nullable=False), Column("signal_n", Integer, nullable=False),
    Column("write_token", Text), Column("write_no", Integer, nullable=False),
    Column("write_revision", Integer, nullable=False), Column("updated_at", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False), Column("journal", LargeBinary),
    Column("stamp", BigInteger, nullable=False),  # random, replaced by each write of the row
    sqlite_autoincrement=True,  # ids stand inside entry ids, so one is never used again
    postgresql_with={"fillfactor": 50, "autovacuum_vacuum_scale_factor": 0, "autovacuum_vacuum_threshold": 1000},
)  # fmt: skip
Index(
    "vv_run_due", RUN.c.queue, RUN.c.due, sqlite_where=RUN.c.due.is_not(None), postgresql_where=RUN.c.due.is_not(None)
)
Index("vv_run_created", RUN.c.created_at)
Index("vv_run_root", RUN.c.root_key)
ENTRY = Table(  # log and events share a sequence and a table: fewer pages a write
    "vv_entry", _TABLES, Column("id", _BIG, primary_key=True, autoincrement=False),
    Column("kind", SmallInteger, nullable=False), Column("body", LargeBinary, nullable=False),
)  # fmt: skip
BLOB = Table(
    "vv_blob", _TABLES, Column("run", _BIG, primary_key=True), Column("name", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False), sqlite_with_rowid=False,
)  # fmt: skip
SIGNAL = Table(
    "vv_signal", _TABLES, Column("run", _BIG, primary_key=True), Column("signal_id", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False), Column("at", BigInteger, nullable=False),
    Column("kind", Text, nullable=False), Column("body", LargeBinary, nullable=False),
    Column("consumed", Boolean, nullable=False), sqlite_with_rowid=False,
)  # fmt: skip
DEFINITION = Table(
    "vv_definition", _TABLES, Column("digest", Text, primary_key=True), Column("body", LargeBinary, nullable=False)
)
META = Table("vv_meta", _TABLES, Column("name", Text, primary_key=True), Column("value", Text, nullable=False))
WORKER = Table(
    "vv_worker", _TABLES, Column("id", Text, primary_key=True), Column("queues", Text, nullable=False),
    Column("free", Integer, nullable=False), Column("wake", Text), Column("seen_at", BigInteger, nullable=False),
)  # fmt: skip
_ENTRY_BITS = 24
_DEADLOCKS = 5
"""Transactions in a row that PostgreSQL may sacrifice to a deadlock (a cancel of a tree against a child's end)."""
_HEAD = Head._fields
_PARAMETERS = tuple(f"v_{name}" for name in _HEAD)
_NOW = {
    "sqlite": "SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)",
    "postgresql": "SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint",
}


class _Updates:
    """The statements that write a record's row, each naming only the columns that changed: SQLite rewrites an index
    whose column is named, changed or not. The verbs change a few dozen different sets of columns."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._made: dict[tuple[str, ...], _Statement] = {}

    def of(self, parameters: tuple[str, ...]) -> _Statement:
        """The statement for parameters `v_<column>` and the row's id `i`."""
        statement = self._made.get(parameters)
        if statement is None:
            values: dict[str, Any] = {name.removeprefix("v_"): bindparam(name) for name in parameters}
            clause = update(RUN).where(RUN.c.id == bindparam("i")).values(values)
            statement = self._made[parameters] = _Statement(clause, self._engine)
        return statement


class _Statement:
    """A statement compiled once: its text, and how the driver wants the values."""

    def __init__(self, clause: ClauseElement, engine: Engine) -> None:
        compiled = clause.compile(dialect=engine.dialect)
        self.text = str(compiled)
        positions = getattr(compiled, "positiontup", None)
        self._names = tuple(positions) if positions else None
        self._fixed = {name: value for name, value in compiled.params.items() if value is not None}

    def bind(self, values: Mapping[str, Any]) -> Any:
        if self._names is None:
            return {**self._fixed, **values}
        return [values[name] if name in values else self._fixed[name] for name in self._names]


def _clock_column(dialect: str) -> Any:
    """The time, read with a row: on SQLite the lock was taken before. Elsewhere it is asked for once the row is
    locked."""
    return literal_column(_NOW["sqlite"].removeprefix("SELECT ") if dialect == "sqlite" else "NULL")


def _row_columns(dialect: str) -> list[Any]:
    """What `_Row.of` reads."""
    return [RUN.c.id, RUN.c.journal, RUN.c.stamp, _clock_column(dialect), *(RUN.c[name] for name in _HEAD)]


@dataclass(frozen=True, slots=True)
class _Row:
    """A record's row, decoded. `stamp` tells whether it still is what the table holds."""

    id: int
    stamp: int
    head: Head
    journal: bytes | None

    @classmethod
    def of(cls, row: Sequence[Any]) -> _Row:
        return cls(row[0], row[2], _decode(row[4:]), None if row[1] is None else bytes(row[1]))


class _RecentRows:
    """The rows this process wrote last. Reading 36 columns takes as long as writing them; whether a row is still
    the same is told by its stamp alone. Random, not counted: a store that lost writes cannot repeat one."""

    _SIZE = 1024

    def __init__(self) -> None:
        self._rows: OrderedDict[str, _Row] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> _Row | None:
        return self._rows.get(key)

    def keep(self, rows: Iterable[_Row]) -> None:
        with self._lock:
            for row in rows:
                self._rows[row.head.key] = row
                self._rows.move_to_end(row.head.key)
            while len(self._rows) > self._SIZE:
                self._rows.popitem(last=False)


def _statements(engine: Engine) -> dict[str, _Statement]:
    b = bindparam
    head = select(*_row_columns(engine.dialect.name))
    conflict = _upserts(engine)
    clauses: dict[str, ClauseElement] = {
        "head": head.where(RUN.c.key == b("k")),
        "lock": head.where(RUN.c.key == b("k")).with_for_update(),
        "due": head.where(RUN.c.queue == b("q"), RUN.c.due <= b("t")).order_by(RUN.c.due).limit(b("n")),
        "lock_due": head.where(RUN.c.queue == b("q"), RUN.c.due <= b("t")).order_by(RUN.c.due).limit(b("n"))
        .with_for_update(skip_locked=True),
        "stamp": select(RUN.c.id, RUN.c.stamp, _clock_column(engine.dialect.name)).where(RUN.c.key == b("k")),
        "insert": conflict["run"],
        "remove": delete(RUN).where(RUN.c.id == b("i")),
        "append": insert(ENTRY).values(id=b("i"), kind=b("kind"), body=b("body")),
        "entries": select(ENTRY.c.id, ENTRY.c.kind, ENTRY.c.body)
        .where(ENTRY.c.id > b("low"), ENTRY.c.id <= b("high")).order_by(ENTRY.c.id).limit(b("n")),
        "log": select(ENTRY.c.id, ENTRY.c.kind, ENTRY.c.body)
        .where(ENTRY.c.id > b("low"), ENTRY.c.id <= b("high"), ENTRY.c.kind == int(EntryKind.LOG)).order_by(ENTRY.c.id),
        "remove_entries": delete(ENTRY).where(ENTRY.c.id > b("low"), ENTRY.c.id <= b("high")),
        "blobs": select(BLOB.c.name, BLOB.c.body).where(BLOB.c.run == b("i")),
        "set_blob": conflict["blob"],
        "remove_blob": delete(BLOB).where(BLOB.c.run == b("i"), BLOB.c.name == b("n")),
        "remove_blobs": delete(BLOB).where(BLOB.c.run == b("i")),
        "signals": select(SIGNAL.c.signal_id, SIGNAL.c.kind, SIGNAL.c.body, SIGNAL.c.seq, SIGNAL.c.at)
        .where(SIGNAL.c.run == b("i"), SIGNAL.c.consumed.is_(False)).order_by(SIGNAL.c.seq),
        "signal": select(SIGNAL.c.signal_id, SIGNAL.c.kind, SIGNAL.c.body, SIGNAL.c.seq, SIGNAL.c.at)
        .where(SIGNAL.c.run == b("i"), SIGNAL.c.signal_id == b("s")),
        "next_signal": select(func.coalesce(func.max(SIGNAL.c.seq), 0) + 1).where(SIGNAL.c.run == b("i")),
        "add_signal": insert(SIGNAL).values(
            run=b("i"), signal_id=b("s"), seq=b("seq"), at=b("t"), kind=b("kind"), body=b("body"), consumed=False),
        "consume": update(SIGNAL).where(SIGNAL.c.run == b("i"), SIGNAL.c.signal_id == b("s")).values(consumed=True),
        "consumed": select(SIGNAL.c.signal_id).where(SIGNAL.c.run == b("i"), SIGNAL.c.consumed.is_(True))
        .order_by(SIGNAL.c.seq.desc()),
        "remove_signal": delete(SIGNAL).where(SIGNAL.c.run == b("i"), SIGNAL.c.signal_id == b("s")),
        "remove_signals": delete(SIGNAL).where(SIGNAL.c.run == b("i")),
        "definition": select(DEFINITION.c.body).where(DEFINITION.c.digest == b("d")),
        "add_definition": conflict["definition"],
        "workers": select(WORKER.c.id, WORKER.c.queues, WORKER.c.free, WORKER.c.wake, WORKER.c.seen_at),
        "show": conflict["worker"],
        "forget_workers": delete(WORKER).where(WORKER.c.seen_at < b("t")),
    }  # fmt: skip
    return {name: _Statement(clause, engine) for name, clause in clauses.items()}


def _upserts(engine: Engine) -> dict[str, ClauseElement]:
    """The statements both dialects spell with ON CONFLICT, which SQLAlchemy has per dialect only."""
    from sqlalchemy.dialects import postgresql, sqlite

    dialect: Any = sqlite if engine.dialect.name == "sqlite" else postgresql
    b = bindparam
    blob = dialect.insert(BLOB).values(run=b("i"), name=b("n"), body=b("body"))
    worker = dialect.insert(WORKER).values(
        id=b("i"), queues=b("queues"), free=b("free"), wake=b("wake"), seen_at=b("t")
    )
    run = dialect.insert(RUN).values({name: b(name) for name in (*_HEAD, "stamp")})
    definition = dialect.insert(DEFINITION).values(digest=b("d"), body=b("body"))
    return {
        "blob": blob.on_conflict_do_update(index_elements=["run", "name"], set_={"body": blob.excluded.body}),
        "run": run.on_conflict_do_nothing(index_elements=["key"]).returning(RUN.c.id),
        "definition": definition.on_conflict_do_nothing(index_elements=["digest"]),
        "worker": worker.on_conflict_do_update(
            index_elements=["id"],
            set_={name: worker.excluded[name] for name in ("queues", "free", "wake", "seen_at")},
        ),
    }


class SqlStore(CheckpointStore):
    """Keeps records in a SQLite file or a PostgreSQL database; opening makes the tables. `clock` is for tests."""

    def __init__(self, url: str, *, create: bool = True, clock: Callable[[], int] | None = None) -> None:
        target = _target(url, create)
        self.url = target.render_as_string(hide_password=True)
        self._clock = clock
        self._sqlite = target.get_backend_name() == "sqlite"
        self._pid = os.getpid()
        self._engine = _engine(target)
        self._statements = _statements(self._engine)
        self._updates = _Updates(self._engine)
        self._connections = _Connections(self._engine)
        self._recent = _RecentRows()
        self._watch = ChangeWatch(self._poller)
        with self._errors():
            self.id = self._open()
        self.live = _SqlLive(_engine(_live_url(target), live=True) if self._sqlite else self._engine)

    def _open(self) -> str:
        with self._engine.begin() as connection:
            if not self._sqlite:  # two processes must not create the tables at once
                connection.execute(text("SELECT pg_advisory_xact_lock(7653421)"))
            _TABLES.create_all(connection)
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
            self._connections = _Connections(self._engine)
            self._pid = os.getpid()
            self._watch = ChangeWatch(self._poller)
        with self._errors():
            connection = self._connections.take()
            try:
                connection.begin(write=write, durable=durable)
                tx = _Transaction(connection, self._statements, self._updates, self._recent, self._clock, write=write)
                answer = work(tx)
                written = tx.flush()
                connection.commit()
                if self._sqlite and written:  # elsewhere a second question costs more than the columns
                    self._recent.keep(written)
            except BaseException:
                connection.rollback()
                raise
            finally:
                self._connections.give(connection)
        if write:
            self._watch.bump()
        return answer

    def _errors(self) -> _DriverErrors:
        return _DriverErrors(self.url, self._engine)

    def _poller(self) -> Poller:
        return _SqlitePoller(self._engine) if self._sqlite else _PostgresPoller(self._engine)

    def wait(self, version: int, timeout: float) -> int:
        return self._watch.wait(version, timeout)

    def close(self) -> None:
        self._watch.stop()
        self._connections.close()
        self._engine.dispose()
        self.live.close()  # type: ignore[attr-defined]


class _Transaction:
    """The verbs' view of one open transaction. Head and journal of a record are written once, by `flush`."""

    def __init__(
        self, connection: _Connection, statements: dict[str, _Statement], updates: _Updates, recent: _RecentRows,
        clock: Callable[[], int] | None, *, write: bool,
    ) -> None:  # fmt: skip
        self._cursor = connection.driver.cursor()
        self._statements = statements
        self._updates = updates
        self._recent = recent
        self._clock = clock
        self._write = write
        self._dialect = connection.dialect
        self._rows: dict[str, _Row] = {}
        """The records of this transaction as they stand in the table."""
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
                self._now = int(self._cursor.execute(_NOW[self._dialect]).fetchone()[0])
        return self._now

    def _run(self, name: str, **values: Any) -> Any:
        statement = self._statements[name]
        return self._cursor.execute(statement.text, statement.bind(values))

    def head(self, key: str) -> Head | None:
        if key in self._heads:
            return self._heads[key]
        if (recent := self._recent.get(key)) is not None:
            now = self._run("stamp", k=key).fetchone()
            if now is not None and now[:2] == (recent.id, recent.stamp):
                return self._remember(recent, now[2])
        row = self._run("lock" if self._write else "head", k=key).fetchone()
        return self._remember(_Row.of(row), row[3]) if row else None

    def _remember(self, row: _Row, now: int | None) -> Head:
        head = row.head
        self._rows[head.key], self._heads[head.key], self._journals[head.key] = row, head, row.journal
        if self._now is None and self._clock is None:
            self._now = now
        return head

    def insert(self, head: Head) -> bool:
        stamp = secrets.randbits(63)
        row = self._run("insert", stamp=stamp, **head._asdict()).fetchone()
        if row is None:
            return False
        self._remember(_Row(row[0], stamp, head, None), None)
        return True

    def update(self, head: Head) -> None:
        self._heads[head.key] = head
        self._changed.add(head.key)

    def flush(self) -> list[_Row]:
        """Write what changed; the rows as they stand in the table then."""
        written = []
        for key in self._changed:
            row, head, journal = self._rows[key], self._heads[key], self._journals[key]
            before = zip(_PARAMETERS, head, row.head, strict=True)
            values = {name: value for name, value, old in before if value != old}
            if journal != row.journal:
                values["v_journal"] = journal
            if values:
                values["v_stamp"] = stamp = secrets.randbits(63)
                statement = self._updates.of(tuple(values))
                self._cursor.execute(statement.text, statement.bind({**values, "i": row.id}))
                written.append(_Row(row.id, stamp, head, journal))
        if self._dialect == "postgresql" and self._changed:
            self._cursor.execute("SELECT pg_notify('vv_agent', '')")
        return written

    def remove(self, key: str) -> None:
        run = self._rows[key].id
        low, high = run << _ENTRY_BITS, (run + 1) << _ENTRY_BITS
        self._run("remove_entries", low=low, high=high - 1)
        for name in ("remove_blobs", "remove_signals", "remove"):
            self._run(name, i=run)
        self._changed.discard(key)
        del self._heads[key]

    def append(self, key: str, entries: Sequence[Entry]) -> None:
        base = self._rows[key].id << _ENTRY_BITS
        statement = self._statements["append"]
        rows = [statement.bind({"i": base | e.seq, "kind": int(e.kind), "body": e.body}) for e in entries]
        if rows:
            self._cursor.executemany(statement.text, rows)

    def entries(self, key: str, after: int, limit: int | None, kind: EntryKind | None) -> list[Entry]:
        if key not in self._rows and self.head(key) is None:
            return []
        base = self._rows[key].id << _ENTRY_BITS
        high = base | ((1 << _ENTRY_BITS) - 1)
        if kind is EntryKind.LOG and limit is None:
            rows = self._run("log", low=base | after, high=high).fetchall()
        else:
            rows = self._run("entries", low=base | after, high=high, n=limit or 1 << 24).fetchall()
        return [Entry(row[0] - base, EntryKind(row[1]), bytes(row[2])) for row in rows]

    def blobs(self, key: str) -> dict[str, bytes]:
        return {row[0]: bytes(row[1]) for row in self._run("blobs", i=self._rows[key].id).fetchall()}

    def set_blobs(self, key: str, changed: Mapping[str, bytes | None]) -> None:
        for name, body in changed.items():
            if body is None:
                self._run("remove_blob", i=self._rows[key].id, n=name)
            else:
                self._run("set_blob", i=self._rows[key].id, n=name, body=body)

    def journal(self, key: str) -> bytes | None:
        body = self._journals[key]
        return None if body is None else bytes(body)

    def set_journal(self, key: str, journal: bytes | None) -> None:
        self._journals[key] = journal
        self._changed.add(key)

    def signals(self, key: str) -> list[Signal]:
        return [_signal(row) for row in self._run("signals", i=self._rows[key].id).fetchall()]

    def signal(self, key: str, signal_id: str) -> Signal | None:
        row = self._run("signal", i=self._rows[key].id, s=signal_id).fetchone()
        return _signal(row) if row else None

    def add_signal(self, key: str, signal: Signal) -> Signal:
        run = self._rows[key].id
        seq = self._run("next_signal", i=run).fetchone()[0]
        stored = replace(signal, seq=seq, at=self.now)
        self._run("add_signal", i=run, s=signal.id, seq=seq, t=self.now, kind=signal.kind, body=signal.body)
        return stored

    def consume(self, key: str, ids: Iterable[str], keep: int) -> None:
        run = self._rows[key].id
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
        heads = [self._remember(_Row.of(row), row[3]) for row in rows]
        return sorted(heads, key=lambda head: head.due or 0)[:limit]

    def find(self, filter_: Filter) -> list[Head]:
        query = select(*_row_columns(self._dialect))
        values = {
            RUN.c.queue: filter_.queue,
            RUN.c.root_key: filter_.root_key,
        }
        for column, value in values.items():
            if value is not None:
                query = query.where(column == value)
        if filter_.states is not None:
            query = query.where(RUN.c.state.in_(sorted(filter_.states)))
        if filter_.statuses is not None:
            query = query.where(RUN.c.status.in_(sorted(filter_.statuses)))
        if filter_.host is not None:
            held = RUN.c.owner.startswith(filter_.host, autoescape=True)
            query = query.where(held, RUN.c.due.is_not(None))  # each claim is due: the index of the unfinished runs
        if filter_.before is not None:
            query = query.where(RUN.c.created_at < filter_.before)
        newest_first = (RUN.c.created_at.desc(), RUN.c.id.desc())
        if filter_.host is not None:  # as expressions, or SQLite walks all runs by their time to save itself a sort
            newest_first = (-RUN.c.created_at, -RUN.c.id)
        query = query.order_by(*newest_first).limit(filter_.limit)
        compiled = query.compile(dialect=_DIALECTS[self._dialect](), compile_kwargs={"render_postcompile": True})
        positions = getattr(compiled, "positiontup", None)
        params = [compiled.params[name] for name in positions] if positions else compiled.params
        return [_Row.of(row).head for row in self._cursor.execute(str(compiled), params).fetchall()]

    def presences(self) -> list[Presence]:
        return [Presence(r[0], tuple(r[1].split("\n")), r[2], r[3], r[4]) for r in self._run("workers").fetchall()]

    def show(self, presence: Presence) -> None:
        self._run(
            "show", i=presence.id, queues="\n".join(presence.queues), free=presence.free, wake=presence.wake, t=self.now
        )
        self._run("forget_workers", t=self.now - 86_400_000)


def _sqlite_dialect() -> Any:
    from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

    return SQLiteDialect_pysqlite()


def _postgres_dialect() -> Any:
    from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

    return PGDialect_psycopg()  # type: ignore[no-untyped-call]


_DIALECTS: dict[str, Callable[[], Any]] = {"sqlite": _sqlite_dialect, "postgresql": _postgres_dialect}


def _decode(row: Sequence[Any]) -> Head:
    head = Head._make(row)
    try:
        return head._replace(
            state=State(head.state), reason=ParkReason(head.reason) if head.reason else None, ending=bool(head.ending),
            body=bytes(head.body),
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        raise StoreError(
            "store_corrupt", f"the record {head.key!r} cannot be read: {error}; restore it from a backup"
        ) from error


def _signal(row: Sequence[Any]) -> Signal:
    return Signal(id=row[0], kind=row[1], body=bytes(row[2]), seq=row[3], at=row[4])


# Connections.


def _target(url: str, create: bool) -> URL:
    try:
        target = make_url(url)
    except exc.ArgumentError as error:
        raise StoreError("store_url_invalid", f"{url!r} is not a store URL; use sqlite:///PATH") from error
    if target.get_backend_name() == "sqlite":
        if not target.database or target.database == ":memory:":
            raise StoreError("store_url_invalid", "sqlite needs a file: sqlite:///PATH (or memory:// for tests)")
        path = Path(target.database)
        if not create and not path.exists():
            raise StoreError(
                "store_unavailable", f"there is no store at {path}; start a run first, or set VV_AGENT_STORE"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError("store_unavailable", f"the folder of {path} cannot be made: {error.strerror}") from error
        return target.set(drivername="sqlite+pysqlite")
    return target.set(drivername="postgresql+psycopg")


def _live_url(target: URL) -> URL:
    return target.set(database=f"{target.database}-live")


def _engine(target: URL, *, live: bool = False) -> Engine:
    if target.get_backend_name() != "sqlite":
        asked = target.query.get("options", "")
        options = {"options": f"{asked} -c synchronous_commit=off".strip(), "connect_timeout": 5}
        return create_engine(target, pool_size=8, max_overflow=-1, connect_args=options, pool_pre_ping=False)
    engine = create_engine(target, pool_size=8, max_overflow=-1, pool_reset_on_return=None)

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, record: Any) -> None:
        connection.isolation_level = None
        for pragma in (
            "page_size=2048",  # before WAL, only new files: 30 instead of 47 KB of WAL a cycle (measured)
            "busy_timeout=30000",
            "journal_mode=WAL",
            f"synchronous={'OFF' if live else 'NORMAL'}",
            "journal_size_limit=16777216",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


class _Connection:
    """A driver's connection, and how its transactions begin and end."""

    dialect: str

    def __init__(self, pooled: Any) -> None:
        self.pooled = pooled
        self.driver = pooled.driver_connection

    def begin(self, *, write: bool, durable: bool) -> None:
        raise NotImplementedError

    def commit(self) -> None:
        raise NotImplementedError

    def rollback(self) -> None:
        """End the transaction that was begun, or was to begin, without a trace."""
        raise NotImplementedError

    @property
    def usable(self) -> bool:
        return True


class _SqliteConnection(_Connection):
    dialect = "sqlite"

    def __init__(self, pooled: Any) -> None:
        super().__init__(pooled)
        path = self.driver.execute("PRAGMA database_list").fetchone()[2]
        self._lock = _FairLock(f"{path}.lock")
        self._durable = False

    def begin(self, *, write: bool, durable: bool) -> None:
        if not write:
            self.driver.execute("BEGIN")
            return
        self._lock.acquire()
        if durable is not self._durable:  # refused inside a transaction
            self.driver.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            self._durable = durable
        self.driver.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self.driver.execute("COMMIT")
        self._lock.release()

    def rollback(self) -> None:
        try:
            if self.driver.in_transaction:
                self.driver.execute("ROLLBACK")
        finally:
            self._lock.release()

    @property
    def usable(self) -> bool:
        return not self.driver.in_transaction


class _FairLock:
    """A file lock around the write transaction: SQLite's own busy handler lets single writers wait for half a
    second. Its descriptor is closed with the connection that owns it."""

    def __init__(self, path: str) -> None:
        self._descriptor: int | None = None
        self._held = False
        try:
            import fcntl
        except ImportError:  # no flock on this system: the busy timeout alone orders the writers
            return
        self._flock, self._on, self._off = fcntl.flock, fcntl.LOCK_EX, fcntl.LOCK_UN
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def acquire(self) -> None:
        if self._descriptor is not None:
            self._flock(self._descriptor, self._on)
            self._held = True

    def release(self) -> None:
        if self._held and self._descriptor is not None:
            self._held = False
            self._flock(self._descriptor, self._off)

    def __del__(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


class _PostgresConnection(_Connection):
    dialect = "postgresql"

    def begin(self, *, write: bool, durable: bool) -> None:
        if durable:
            self.driver.execute("SET LOCAL synchronous_commit TO on")
        elif not write:
            self.driver.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def commit(self) -> None:
        self.driver.commit()

    def rollback(self) -> None:
        if not self.driver.closed:
            self.driver.rollback()

    @property
    def usable(self) -> bool:
        return not (self.driver.closed or self.driver.broken)


class _Connections:
    """Connections between two transactions. They stay checked out of SQLAlchemy's pool, which makes them: its
    checkout and return take a fifth of a short write (measured)."""

    _KEPT = 8

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kind = _SqliteConnection if engine.dialect.name == "sqlite" else _PostgresConnection
        self._idle: list[_Connection] = []

    def take(self) -> _Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._kind(self._engine.raw_connection())

    def give(self, connection: _Connection) -> None:
        if not connection.usable:
            connection.pooled.invalidate()
        elif len(self._idle) < self._KEPT:
            self._idle.append(connection)
        else:
            connection.pooled.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().pooled.close()


class _DriverErrors:
    """Turns the driver's errors into the operator's."""

    def __init__(self, url: str, engine: Engine) -> None:
        self._url = url
        self._engine = engine

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, exc.DBAPIError):
            raise _store_error(self._url, error.orig or error) from error
        if isinstance(error, self._engine.dialect.dbapi.Error):  # type: ignore[union-attr]
            raise _store_error(self._url, error) from error


def _store_error(url: str, error: BaseException) -> StoreError:
    """The operator's error for a driver's error."""
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    lowered = said.lower()
    if "full" in lowered or "no space" in lowered:
        return StoreError("store_full", f"{url} has no room left ({said}); free some space, nothing was changed")
    if "deadlock" in lowered:
        return StoreError("store_deadlock", f"{url}: two transactions waited for each other ({said}); try again")
    if "locked" in lowered:
        return StoreError("store_busy", f"{url} is locked by another program ({said}); try again")
    if "malformed" in lowered or "not a database" in lowered:
        return StoreError("store_corrupt", f"{url} is damaged or not a vv-agent store ({said}); restore a backup")
    if "readonly" in lowered or "read-only" in lowered or "permission" in lowered:
        return StoreError("store_unavailable", f"{url} cannot be written ({said}); check its permissions")
    if type(error).__name__ == "ProgrammingError" or isinstance(error.__cause__, TypeError):
        return StoreError(
            "store_incompatible", f"{url} refused a statement ({said}); its tables are not this version's"
        )
    return StoreError("store_unavailable", f"{url} did not answer ({said}); check that it runs and the URL is right")


# Noticing changes of other processes.


class _SqlitePoller(Poller):
    """`PRAGMA data_version` on one pinned connection: it tells of other connections' commits."""

    _INTERVAL = 0.012

    def __init__(self, engine: Engine) -> None:
        self._pooled = engine.raw_connection()
        self._last = self._version()

    def _version(self) -> int:
        connection: Any = self._pooled.driver_connection
        return int(connection.execute("PRAGMA data_version").fetchone()[0])

    def poll(self, timeout: float) -> bool:
        time.sleep(min(self._INTERVAL, timeout))
        before, self._last = self._last, self._version()
        return self._last != before

    def close(self) -> None:
        self._pooled.close()


class _PostgresPoller(Poller):
    """LISTEN on a connection of its own; every write notifies."""

    def __init__(self, engine: Engine) -> None:
        self._pooled = engine.raw_connection()
        connection: Any = self._pooled.driver_connection
        self._connection = connection
        self._connection.autocommit = True
        self._connection.execute("LISTEN vv_agent")

    def poll(self, timeout: float) -> bool:
        return any(True for _ in self._connection.notifies(timeout=timeout, stop_after=1))

    def close(self) -> None:
        self._pooled.invalidate()


def _live_table(*, unlogged: bool) -> Table:
    return Table(
        "vv_live",
        MetaData(),
        Column("id", _BIG, primary_key=True),
        Column("run_key", Text, nullable=False),
        Column("body", LargeBinary, nullable=False),
        sqlite_autoincrement=True,
        prefixes=["UNLOGGED"] if unlogged else [],
    )


class _SqlLive:
    """Live text in a file (or unlogged table) of its own: deltas must not wait for, or delay, a commit."""

    _CAP = 20_000

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._table = _live_table(unlogged=engine.dialect.name != "sqlite")
        self._pid = os.getpid()
        self._ready = False

    def _connect(self) -> Any:
        if os.getpid() != self._pid:
            self._engine.dispose(close=False)
            self._pid = os.getpid()
        if not self._ready:
            self._table.metadata.create_all(self._engine)
            self._ready = True
        return self._engine.begin()

    def publish(self, items: Sequence[tuple[str, bytes]]) -> None:
        rows = [{"run_key": key, "body": body} for key, body in items]
        self._quietly(lambda c: self._append(c, rows), None)

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

    def _quietly(self, work: Callable[[Any], Any], otherwise: Any) -> Any:
        """Live text is a convenience: a store that cannot carry it must not stop a run."""
        try:
            with self._connect() as connection:
                return work(connection)
        except exc.DBAPIError:
            return otherwise

    def close(self) -> None:
        self._engine.dispose()
