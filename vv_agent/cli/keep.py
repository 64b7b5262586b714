"""`vv-agent runs prune`, `export` and `import`: what a store keeps, and what goes into another one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vv_agent.checkpoint.store import open_store
from vv_agent.cli import render
from vv_agent.cli.runs import _store, table_of
from vv_agent.cli.view import row
from vv_agent.errors import ConfigError
from vv_agent.settings import read_settings

if TYPE_CHECKING:
    from vv_agent.checkpoint.exchange import Export
    from vv_agent.checkpoint.store import CheckpointStore

_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
ENDED = ("completed", "failed", "max_cycles")


def _age(text: str) -> int:
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None:
        raise ConfigError("usage_invalid", f"--older-than {text!r} is no age; write e.g. 30d, 12h, 90m or 45s")
    return int(found[1]) * _UNITS[found[2]]


def prune(
    *, older_than: str | None, keep: int | None, statuses: Sequence[str], queue: str | None, dry_run: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Remove runs that are over."""
    from vv_agent.checkpoint.retention import Rule
    from vv_agent.checkpoint.retention import prune as carry_out

    if older_than is None and keep is None:
        raise ConfigError("usage_invalid", "there is no rule; give --older-than AGE (30d), --keep N, or both")
    if unknown := set(statuses) - set(ENDED):
        raise ConfigError(
            "usage_invalid", f"--status {min(unknown)!r} is no status of a run that is over; use {', '.join(ENDED)}"
        )
    rule = Rule(_age(older_than) if older_than else 0, keep or 0, frozenset(statuses) or None, queue)
    with _store() as (store, _):
        now = store.now()
        rows = [row(head, now) for head in carry_out(store, rule, dry_run=dry_run)]
    if as_json:
        render.as_json({"dry_run": dry_run, "runs": rows})
        return 0
    if dry_run and rows:
        render.table({"key": "Key", "status": "Status", "updated_at": "Ended"}, rows)
    render.say(f"{len(rows)} runs {'would be' if dry_run else 'were'} removed, each with the runs below it")
    return 0


def export(keys: Sequence[str], *, out: str | None, move: bool) -> int:
    """Write runs to a file that no one had before, or to stdout."""
    from vv_agent.checkpoint.exchange import export_runs

    if move and out is None:
        raise ConfigError("usage_invalid", "--move removes what was written; give the file: --out FILE")
    with _store() as (store, _):
        found = export_runs(store, keys)
        if out is None:
            sys.stdout.write(found.model_dump_json() + "\n")
            return 0
        _write(Path(out), found, "xb")
        stayed = _remove(store, found, Path(out)) if move else []
    roots = [tree[0].head.key for tree in found.trees if tree[0].head.key not in stayed]
    render.say(f"{out}: {', '.join(roots) or 'no run'}{'; removed from this store' if move and roots else ''}")
    if stayed:
        sys.stderr.write(f"vv-agent: went on while they were exported and stay here: {', '.join(stayed)}\n")
    return 1 if stayed else 0


def _remove(store: CheckpointStore, found: Export, out: Path) -> list[str]:
    """Remove what was written; a run that changed meanwhile stays, and its copy goes."""
    from vv_agent.checkpoint.exchange import remove_exported

    stayed = [tree[0].head.key for tree in found.trees if not remove_exported(store, tree)]
    if stayed:
        left = tuple(record for record in found.runs if record.head.root_key not in stayed)
        _write(out, found.model_copy(update={"runs": left}), "wb")
    return stayed


def _write(path: Path, found: Export, mode: str) -> None:
    """Durably, for the owner's eyes: it holds all that the model was told."""
    try:
        with open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(found.model_dump_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise ConfigError("usage_invalid", f"{path} exists; give a name that is free") from error
    except OSError as error:
        raise ConfigError("usage_invalid", f"{path} cannot be written: {error.strerror}") from error


def import_(file: str, *, as_json: bool) -> int:
    """Put runs of a file (`-`: stdin) into the store of the settings, which is made if there is none."""
    from vv_agent.checkpoint.exchange import Export, import_runs

    try:
        text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise ConfigError("usage_invalid", f"{file} cannot be read: {error.strerror}") from error
    found = Export.read(text)
    store = open_store(read_settings().store)
    try:
        keys = import_runs(store, found)
        heads = [look.head for look in map(store.look, keys) if look is not None]
        now = store.now()
    finally:
        store.close()
    return table_of(heads, now, as_json=as_json)
