"""Runs as JSON, to be kept, looked at elsewhere, or gone on with in another store.

An export holds whole trees: every record as it stands (head, log and events, blobs, journal, unread signals) and the
definitions they name. Bodies stay the opaque bytes they are, in base64. Sessions, workspaces and the ids of signals
that were taken in are not part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_serializer

from vv_agent.checkpoint import transitions
from vv_agent.checkpoint.record import Entry, Head, Serves, Signal, State
from vv_agent.checkpoint.store import CheckpointStore, Transaction, already_exists, not_worked_on, tree_of
from vv_agent.definition import LINK, RunDefinition
from vv_agent.errors import CheckpointError


class _Wire(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, ser_json_bytes="base64", val_json_bytes="base64"
    )


class Record(_Wire):
    """One record as it stood."""

    head: Head
    entries: tuple[Entry, ...]
    blobs: dict[str, bytes]
    journal: bytes | None
    signals: tuple[Signal, ...]

    @field_serializer("head")
    def _named(self, head: Head) -> dict[str, Any]:
        return head._asdict()


class Export(_Wire):
    """Whole trees, the records of each beside one another with the root first, and their definitions by digest."""

    format: Literal["vv-agent.runs.v1"] = "vv-agent.runs.v1"
    definitions: dict[str, bytes]
    runs: tuple[Record, ...]

    @classmethod
    def read(cls, text: str | bytes) -> Export:
        """What `model_dump_json` wrote; `export_invalid` for anything else, also for a tree with a hole."""
        try:
            found = cls.model_validate_json(text)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            at = "/".join(map(str, fault["loc"])) or "the file"
            raise _invalid(f"{at}: {fault['msg']}") from error
        for tree in found.trees:
            _check_tree(tree)
        for digest, body in found.definitions.items():
            RunDefinition.decode(body).check_digest(digest)
        try:
            _closure((record.head.definition for record in found.runs), found.definitions.__getitem__)
        except KeyError as missing:
            raise _invalid(f"the definition {missing} is not in it") from None
        return found

    @property
    def trees(self) -> tuple[tuple[Record, ...], ...]:
        return tuple(tuple(tree) for _, tree in groupby(self.runs, key=lambda record: record.head.root_key))


def _invalid(problem: str) -> CheckpointError:
    return CheckpointError("export_invalid", f"this is no export of runs that this version reads: {problem}")


def _check_tree(tree: Sequence[Record]) -> None:
    known: set[str | None] = {None}
    for record in tree:
        head = record.head
        if head.schema not in Serves().schemas:
            raise _invalid(f"run {head.key!r} has schema {head.schema}; upgrade vv-agent")
        if head.parent_key not in known or (head.parent_key is None) is not (head.key == head.root_key):
            raise _invalid(f"run {head.key!r} stands without the run above it")
        if [entry.seq for entry in record.entries] != list(range(1, head.entry_n + 1)):
            raise _invalid(f"run {head.key!r} has {head.entry_n} entries, not all of them are here")
        if len(record.signals) != head.signal_n:
            raise _invalid(f"run {head.key!r} has {head.signal_n} signals, {len(record.signals)} are here")
        known.add(head.key)


def export_runs(store: CheckpointStore, keys: Iterable[str]) -> Export:
    """Each run with all of its tree, in one consistent view of it; a key of a run below another stands for its root.

    Raises `checkpoint_not_found`, and `checkpoint_claim_active` for a tree in which a run is being worked on: its
    copy could repeat what is being done.
    """
    records: dict[str, Record] = {}
    for key in dict.fromkeys(keys):
        look = store.look(key)
        if look is None:
            raise CheckpointError("checkpoint_not_found", f"there is no run {key!r} in this store; nothing was written")
        if look.head.root_key not in records:
            tree = store._atomically(partial(_read, root=look.head.root_key), write=False)
            records |= {record.head.key: record for record in tree}
    definitions = _closure((record.head.definition for record in records.values()), store.definition)
    return Export(definitions=definitions, runs=tuple(records.values()))


def _closure(digests: Iterable[str], read: Callable[[str], bytes]) -> dict[str, bytes]:
    """Definitions and all that they name, by digest."""
    found: dict[str, bytes] = {}
    missing = set(digests)
    while missing:
        some = {digest: read(digest) for digest in sorted(missing)}
        refs = [ref.id for body in some.values() for ref in RunDefinition.decode(body).capability_refs.values()]
        found |= some
        missing = {name.removeprefix(LINK) for name in refs if name.startswith(LINK)} - found.keys()
    return found


def _read(tx: Transaction, root: str) -> list[Record]:
    tree = tree_of(tx, root)
    not_worked_on(tree, tx.now)
    return [
        Record(
            head=head, entries=tuple(tx.entries(head.key, 0, None, None)), blobs=tx.blobs(head.key),
            journal=tx.journal(head.key), signals=tuple(tx.signals(head.key)),
        )
        for head in tree
    ]  # fmt: skip


def import_runs(store: CheckpointStore, export: Export) -> tuple[str, ...]:
    """Insert the trees, each in one transaction; the keys of their roots. A run that was ready or held is due at once.

    A key that is there raises `checkpoint_already_exists`, before anything is written; only a tree that stands exactly
    as it was exported is passed over, so an import that was interrupted can be repeated.
    """

    def taken(tx: Transaction, tree: Sequence[Record]) -> bool:
        found = [(record.head, tx.head(record.head.key)) for record in tree]
        if all(_same(there, head) for head, there in found):
            return True
        for head, there in found:
            if there is not None:
                raise already_exists(head.key)
        return False

    def insert(tx: Transaction, tree: Sequence[Record]) -> None:
        if taken(tx, tree):
            return
        named = _closure((record.head.definition for record in tree), export.definitions.__getitem__)
        for record in tree:
            _insert(tx, record)
        for digest, body in named.items():
            tx.add_definition(digest, body)

    for tree in export.trees:
        store._atomically(partial(taken, tree=tree), write=False)
    for tree in export.trees:
        store._atomically(partial(insert, tree=tree), durable=True)
    return tuple(tree[0].head.key for tree in export.trees)


def _same(there: Head | None, head: Head) -> bool:
    """Whether the stored record is the exported one, not changed since."""
    return there is not None and _version(there) == _version(head)


def _version(head: Head) -> tuple[object, ...]:
    return head.run_id, head.created_at, head.revision, head.entry_n, head.signal_n, head.state


def _insert(tx: Transaction, record: Record) -> None:
    head = _arriving(record.head, tx.now)
    if not tx.insert(head):
        raise already_exists(head.key)
    tx.append(head.key, record.entries)
    if record.blobs:
        tx.set_blobs(head.key, record.blobs)
    if record.journal is not None:
        tx.set_journal(head.key, record.journal)
    for signal in record.signals:
        tx.add_signal(head.key, signal)


def _arriving(head: Head, now: int) -> Head:
    """The head in another store: nobody holds the run here, and nobody here refused it."""
    fresh = head._replace(dispatches=0, refused_at=None, refusal=None)
    if head.state is State.CLAIMED:
        return transitions.expire(fresh, now)
    return fresh._replace(due=now) if head.state is State.READY else fresh


def remove_exported(store: CheckpointStore, tree: Sequence[Record]) -> bool:
    """Remove a tree that was exported, unless something happened in it since: then nothing is done, and the answer is
    False."""

    def work(tx: Transaction) -> bool:
        there = {head.key: head for head in tree_of(tx, tree[0].head.key)}
        if len(there) != len(tree) or not all(_same(there.get(one.head.key), one.head) for one in tree):
            return False
        for key in there:
            tx.remove(key)
        return True

    return store._atomically(work)
