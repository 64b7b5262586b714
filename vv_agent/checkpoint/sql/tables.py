"""The tables, and the statements of the verbs compiled once.

A record is one row: what is searched by in columns of its own, the whole head packed beside it. Reading and writing
thirty columns took longer than everything else a verb does (measured).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from sqlalchemy import (
    DDL,
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
    delete,
    event,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.engine import Engine
from sqlalchemy.sql import ClauseElement

from vv_agent.checkpoint.record import EntryKind, Filter

BIG = BigInteger().with_variant(Integer, "sqlite")
TABLES = MetaData()

RUN = Table(
    "vv_run", TABLES,
    Column("id", BIG, primary_key=True), Column("key", Text, nullable=False, unique=True),
    Column("root_key", Text, nullable=False), Column("queue", Text), Column("created_at", BigInteger, nullable=False),
    Column("state", Text, nullable=False), Column("status", Text, nullable=False), Column("due", BigInteger),
    Column("head", LargeBinary, nullable=False), Column("journal", LargeBinary),
    sqlite_autoincrement=True,  # ids stand inside entry ids, so one is never used again
)  # fmt: skip
_VACUUM = "fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000"
for _ddl in (  # as options of the table they would load the dialect of PostgreSQL into every process
    DDL("CREATE INDEX vv_run_due ON vv_run (queue, due) WHERE due IS NOT NULL"),  # type: ignore[no-untyped-call]
    DDL(f"ALTER TABLE vv_run SET ({_VACUUM})").execute_if(dialect="postgresql"),  # type: ignore[no-untyped-call]
):
    event.listen(RUN, "after_create", _ddl)
Index("vv_run_created", RUN.c.created_at)
Index("vv_run_root", RUN.c.root_key)
ENTRY = Table(  # log and events share a sequence and a table: fewer pages a write
    "vv_entry", TABLES, Column("id", BIG, primary_key=True, autoincrement=False),
    Column("kind", SmallInteger, nullable=False), Column("body", LargeBinary, nullable=False),
)  # fmt: skip
BLOB = Table(
    "vv_blob", TABLES, Column("run", BIG, primary_key=True), Column("name", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False), sqlite_with_rowid=False,
)  # fmt: skip
SIGNAL = Table(
    "vv_signal", TABLES, Column("run", BIG, primary_key=True), Column("signal_id", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False), Column("at", BigInteger, nullable=False),
    Column("kind", Text, nullable=False), Column("body", LargeBinary, nullable=False),
    Column("consumed", Boolean, nullable=False), sqlite_with_rowid=False,
)  # fmt: skip
DEFINITION = Table(
    "vv_definition", TABLES, Column("digest", Text, primary_key=True), Column("body", LargeBinary, nullable=False)
)
META = Table("vv_meta", TABLES, Column("name", Text, primary_key=True), Column("value", Text, nullable=False))
WORKER = Table(
    "vv_worker", TABLES, Column("id", Text, primary_key=True), Column("queues", Text, nullable=False),
    Column("free", Integer, nullable=False), Column("wake", Text), Column("seen_at", BigInteger, nullable=False),
)  # fmt: skip
ENTRY_BITS = 24
"""An entry's id is its run's id, shifted by this, with its number in the low bits."""
CLOCK = {
    "sqlite": "SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)",
    "postgresql": "SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint",
}


class Statement:
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


def head_columns(dialect: str) -> list[Any]:
    """id, head, journal and the time: on SQLite the lock was taken before; elsewhere the clock is asked once the row is
    locked."""
    now: Any = literal_column(CLOCK["sqlite"].removeprefix("SELECT ") if dialect == "sqlite" else "NULL")
    return [RUN.c.id, RUN.c.head, RUN.c.journal, now]


class Statements(dict[str, Statement]):
    """The statements of the verbs by name, each compiled when it is first used: a listing needs two of them."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self._clauses = _clauses(engine)

    def __missing__(self, name: str) -> Statement:
        compiled = self[name] = Statement(self._clauses[name], self._engine)
        return compiled


def _clauses(engine: Engine) -> dict[str, ClauseElement]:
    b = bindparam
    head = select(*head_columns(engine.dialect.name))
    due = head.where(RUN.c.queue == b("q"), RUN.c.due <= b("t")).order_by(RUN.c.due).limit(b("n"))
    conflict = _upserts(engine)
    row = update(RUN).where(RUN.c.id == b("i"))
    written: dict[str, Any] = {"head": b("head"), "journal": b("journal")}
    searched: dict[str, Any] = {name: b(f"new_{name}") for name in ("state", "status", "due")}
    return {
        "head": head.where(RUN.c.key == b("k")),
        "lock": head.where(RUN.c.key == b("k")).with_for_update(),
        "due": due,
        "lock_due": due.with_for_update(skip_locked=True),
        "insert": conflict["run"],
        "update": row.values(written),
        "update_searched": row.values({**written, **searched}),  # SQLite rewrites an index whose column is named
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


def _upserts(engine: Engine) -> dict[str, ClauseElement]:
    """The statements both dialects spell with ON CONFLICT, which SQLAlchemy has per dialect only."""
    dialect: Any = import_module(f"sqlalchemy.dialects.{engine.dialect.name}")
    b = bindparam
    blob = dialect.insert(BLOB).values(run=b("i"), name=b("n"), body=b("body"))
    worker = dialect.insert(WORKER).values(
        id=b("i"), queues=b("queues"), free=b("free"), wake=b("wake"), seen_at=b("t")
    )
    columns = ("key", "root_key", "queue", "created_at", "state", "status", "due", "head")
    run = dialect.insert(RUN).values({name: b(name) for name in columns})
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


def listing(filter_: Filter, dialect: str) -> Any:
    """The query of `find`; the host of a claim is not in a column, so the caller looks at the heads too."""
    query = select(*head_columns(dialect))
    for column, value in ((RUN.c.queue, filter_.queue), (RUN.c.root_key, filter_.root_key)):
        if value is not None:
            query = query.where(column == value)
    if filter_.roots:
        query = query.where(RUN.c.root_key == RUN.c.key)
    if filter_.states is not None:
        query = query.where(RUN.c.state.in_(sorted(filter_.states)))
    if filter_.statuses is not None:
        query = query.where(RUN.c.status.in_(sorted(filter_.statuses)))
    if filter_.before is not None:
        query = query.where(RUN.c.created_at < filter_.before)
    if filter_.host is not None:  # a claim is always due; by expressions, or SQLite walks all runs ever made
        query = query.where(RUN.c.due.is_not(None), RUN.c.state == "claimed")
        return query.order_by(-RUN.c.created_at, -RUN.c.id)
    return query.order_by(RUN.c.created_at.desc(), RUN.c.id.desc()).limit(filter_.limit)
