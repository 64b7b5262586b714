"""Below the SQL store: URLs, engines, connections with their transactions and locks, and the driver's errors.

Statements run on the driver's connection: SQLAlchemy would hold SQLite's one write lock about 2.5 times longer
(measured). SQLite runs in WAL mode and takes a file lock before `BEGIN IMMEDIATE`, so that waiting is fair; a commit
is `synchronous=FULL` only where the change must survive power loss. PostgreSQL sets `synchronous_commit` the same
way.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import create_engine, event, exc
from sqlalchemy.engine import URL, Engine, make_url

from vv_agent.checkpoint.urls import without_password
from vv_agent.checkpoint.watch import Poller
from vv_agent.errors import StoreError


def _sqlite_dialect() -> Any:
    from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

    return SQLiteDialect_pysqlite()


def _postgres_dialect() -> Any:
    from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

    return PGDialect_psycopg()  # type: ignore[no-untyped-call]


DIALECTS: dict[str, Callable[[], Any]] = {"sqlite": _sqlite_dialect, "postgresql": _postgres_dialect}


def parse_url(url: str, create: bool) -> URL:
    try:
        target = make_url(url)
    except exc.ArgumentError:
        raise _url_invalid(url, "it is not a store URL; use sqlite:///PATH") from None
    except ValueError:  # its text is the port as given, perhaps a password
        raise _url_invalid(url, "the port is not a number; use postgresql://USER:PASSWORD@HOST:PORT/DATABASE") from None
    if "@" in (target.host or ""):
        raise _url_invalid(url, "the password has an @; write it as %40")
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


def _url_invalid(url: str, wrong: str) -> StoreError:
    return StoreError("store_url_invalid", f"{without_password(url)!r}: {wrong}")


def live_url(target: URL) -> URL:
    return target.set(database=f"{target.database}-live")


def make_engine(target: URL, *, live: bool = False) -> Engine:
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
        reads = connection.get_execution_options().get("vv_reads", False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


class Connection:
    """A driver's connection, and how its transactions begin and end."""

    dialect: str

    def __init__(self, pooled: Any) -> None:
        self.pooled = pooled
        self.driver = pooled.driver_connection
        self.was_idle = False

    def begin(self, *, write: bool, durable: bool) -> None:
        raise NotImplementedError

    def commit(self) -> None:
        raise NotImplementedError

    def rollback(self) -> None:
        """End the transaction that was begun, or was to begin, without a trace."""
        raise NotImplementedError

    @property
    def usable(self) -> bool:
        return not self.broken

    @property
    def broken(self) -> bool:
        """Whether the server let go of it: then it did of the others too."""
        return False


class SqliteConnection(Connection):
    dialect = "sqlite"

    def __init__(self, pooled: Any) -> None:
        super().__init__(pooled)
        path = self.driver.execute("PRAGMA database_list").fetchone()[2]
        self._lock = FairLock(f"{path}.lock")
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


class FairLock:
    """A file lock around the write transaction: SQLite's own busy handler lets single writers wait for half a
    second. Its descriptor is closed with the connection that owns it.

    It makes waiting fair, SQLite's own lock makes it correct: after `limit` seconds (a process that was stopped in the
    middle of a write holds it) writers go on without it, until it is free again.
    """

    limit = 30.0

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._held = False
        self._ignored = False
        try:
            import fcntl
        except ImportError:  # no flock on this system: the busy timeout alone orders the writers
            return
        self._flock, self._on, self._off = fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_UN
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise self._unavailable("opened", error, "raise the limit of open files (ulimit -n)") from error
            hint = "it must be a file that this user may write; remove what stands there"
            raise self._unavailable("opened", error, hint) from error

    def _unavailable(self, what: str, error: OSError, hint: str) -> StoreError:
        said = f"the lock file {self._path} cannot be {what} ({error.strerror}); {hint}"
        return StoreError("store_unavailable", said)

    def acquire(self) -> bool:
        """Whether the lock is held now."""
        if self._descriptor is None:
            return False
        if self._try(self._descriptor):
            return True
        waited, begun = 0.0, time.monotonic()
        while not self._ignored and waited < self.limit:
            # Who waits longer asks more often, so that nobody is passed over for long.
            time.sleep(0.0003 if waited < 0.005 else 0.0001 if waited < 1.0 else 0.005)
            if self._try(self._descriptor):
                return True
            waited = time.monotonic() - begun
        self._ignored = True
        return False

    def _try(self, descriptor: int) -> bool:
        try:
            self._flock(descriptor, self._on)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._unavailable("locked", error, "keep the store on a file system with locks") from error
        self._held, self._ignored = True, False
        return True

    def release(self) -> None:
        if self._held and self._descriptor is not None:
            self._held = False
            self._flock(self._descriptor, self._off)

    def __del__(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


class PostgresConnection(Connection):
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
    def broken(self) -> bool:
        return bool(self.driver.closed or self.driver.broken)


class Connections:
    """Connections between two transactions. They stay checked out of SQLAlchemy's pool, which makes them: its
    checkout and return take a fifth of a short write (measured)."""

    _KEPT = 8

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kind = SqliteConnection if engine.dialect.name == "sqlite" else PostgresConnection
        self._idle: list[Connection] = []
        self._closed = False

    def take(self) -> Connection:
        if self._closed:
            raise StoreError("store_closed", "the store was closed in this process; open it again")
        try:
            return self._idle.pop()
        except IndexError:
            pooled = self._engine.raw_connection()
        try:
            return self._kind(pooled)
        except BaseException:
            pooled.close()
            raise

    def give(self, connection: Connection) -> None:
        if not connection.usable:
            connection.pooled.invalidate()
            if connection.broken:  # or each of the others would cost an error of its own
                for idle in self._all_idle():
                    idle.pooled.invalidate()
                self._engine.dispose()
        elif self._closed:
            connection.pooled.invalidate()
        elif len(self._idle) < self._KEPT:
            connection.was_idle = True
            self._idle.append(connection)
        else:
            connection.pooled.close()

    def _all_idle(self) -> Iterator[Connection]:
        with suppress(IndexError):  # other threads take from it too
            while True:
                yield self._idle.pop()

    def drop(self) -> None:
        """Let go of what is idle; the next transaction makes a new one."""
        for idle in self._all_idle():
            idle.pooled.close()

    def close(self) -> None:
        self._closed = True
        self.drop()


class StaleConnection(StoreError):
    """A connection was lost while idle. Its transaction never came to a commit, so it can be done again."""

    def __init__(self, url: str) -> None:
        super().__init__("store_unavailable", f"{url} closed the connection; check that it runs")


class DriverErrors:
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


class SqlitePoller(Poller):
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


class PostgresPoller(Poller):
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
