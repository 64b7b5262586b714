"""What is particular to SQLite and PostgreSQL."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

from vv_agent.cli.doctor.finding import Finding, ok, problem

OLDEST_SQLITE = (3, 35, 0)
"""RETURNING and upserts are used."""
_NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "vboxsf", "fuse.sshfs",
    "fuse.s3fs", "fuse.glusterfs", "fuse.vmhgfs-fuse",
}  # fmt: skip
_LEAST_FREE = 100 << 20


def check(url: str) -> Iterator[Finding]:
    """The file or the server behind a SQL store."""
    if not url.startswith("sqlite"):
        yield from postgres(_settings_of(url))
        return
    path = Path(url.partition("://")[2].removeprefix("/")).resolve()
    yield from sqlite_version(sqlite3.sqlite_version_info)
    yield from file_system(path, mounts())
    yield from room(path, shutil.disk_usage(path.parent).free)
    yield from journal_mode(path)


def sqlite_version(version: tuple[int, ...]) -> Iterator[Finding]:
    shown = ".".join(map(str, version))
    if version < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        yield problem("sqlite", f"SQLite {shown} is too old", f"use a Python that was built with {oldest} or newer")
    else:
        yield ok("sqlite", f"SQLite {shown}")


def mounts() -> str:
    """The mounts of this system, as /proc/mounts has them; empty where there is none."""
    try:
        return Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def file_system(path: Path, mounted: str) -> Iterator[Finding]:
    """The write-ahead log needs memory that all processes share: one host, no network file system."""
    kinds = {fields[1]: fields[2] for fields in (line.split() for line in mounted.splitlines()) if len(fields) > 2}
    place = next((str(folder) for folder in [path, *path.parents] if str(folder) in kinds), None)
    kind = kinds[place] if place is not None else "unknown"
    if kind in _NETWORK:
        yield problem(
            "file system", f"{path} lies on {place}, which is {kind}: SQLite may be damaged there",
            "put the store on a local disk, or use postgresql:// or redis://",
        )  # fmt: skip
    else:
        yield ok("file system", f"{path} lies on {kind}")


def room(path: Path, free: int) -> Iterator[Finding]:
    if free < _LEAST_FREE:
        yield problem(
            "room", f"the disk of {path} has {free >> 20} MB left", "free some space; a full disk stops every run"
        )
    else:
        yield ok("room", f"{free >> 20} MB free")


def journal_mode(path: Path) -> Iterator[Finding]:
    """Without the write-ahead log readers stop writers, and a durable save costs far more."""
    with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True) as connection:
        mode = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    connection.close()
    if mode != "wal":
        yield problem(
            "durability", f"{path} does not use the write-ahead log but {mode!r}",
            "let this store be opened by vv-agent alone, on a disk that allows shared memory",
        )  # fmt: skip
    else:
        yield ok("durability", "write-ahead log; ends and unsafe calls are synced to the disk")


def postgres(settings: Mapping[str, str]) -> Iterator[Finding]:
    """The settings of a server without which an acknowledged write can be lost."""
    wrong = [name for name in ("fsync", "full_page_writes") if settings.get(name) == "off"]
    for name in wrong:
        yield problem(
            "durability", f"PostgreSQL has {name} = off: it may lose or damage what it acknowledged",
            f"set {name} = on in postgresql.conf and restart",
        )  # fmt: skip
    if not wrong:
        yield ok("durability", f"PostgreSQL {settings.get('server_version', '?')}, fsync on")


def _settings_of(url: str) -> Mapping[str, str]:
    from sqlalchemy import create_engine, make_url, text

    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    try:
        with engine.connect() as connection:
            names = ("fsync", "full_page_writes", "server_version")
            return {name: str(connection.execute(text(f"SHOW {name}")).scalar()) for name in names}
    finally:
        engine.dispose()
