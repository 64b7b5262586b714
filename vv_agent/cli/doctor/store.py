"""The store: there, whole, durable, on time, and served."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator

from vv_agent.checkpoint.record import (
    UNFINISHED,
    Change,
    Claimed,
    End,
    Filter,
    NewRun,
    State,
)
from vv_agent.checkpoint.store import CheckpointStore, open_store
from vv_agent.cli.doctor.finding import Finding, note, ok, problem
from vv_agent.cli.text import command
from vv_agent.cli.view import label, place
from vv_agent.errors import StoreError
from vv_agent.settings import Settings

_SKEW_MS = 2_000


def check(settings: Settings) -> Iterator[Finding]:
    """Everything about the store of the settings; it is made if it is not there."""
    url = settings.store
    if url.startswith("memory:"):
        yield problem(
            "store", "memory:// forgets every run when its process ends",
            "set VV_AGENT_STORE to sqlite:///PATH, postgresql://... or redis://...",
        )  # fmt: skip
        return
    store = open_store(url)
    try:
        yield ok("store", f"{place(store)} opened, id {store.id}")
        yield from _of_its_kind(url)
        yield from round_trip(store)
        yield from clocks(store)
        yield from workers(store, settings.queue)
        yield from unserved(store)
    finally:
        store.close()


def _of_its_kind(url: str) -> Iterator[Finding]:
    scheme = url.partition(":")[0].partition("+")[0]
    if scheme in ("redis", "rediss"):
        from vv_agent.cli.doctor import redis

        yield from redis.check(url, "store", keeps_runs=True)
    else:
        from vv_agent.cli.doctor import sql

        yield from sql.check(url)


def round_trip(store: CheckpointStore) -> Iterator[Finding]:
    """A record of its own is made, claimed, ended durably, read and removed."""
    key = f"doctor_{secrets.token_hex(8)}"
    new = NewRun(key=key, run_id=key, definition="doctor", definition_body=b"", body=b"", log=(b"log",))
    began = time.monotonic()
    try:
        store.create([new])
        claimed = store.claim(key, 1, secrets.token_hex(16), owner="doctor/0/0", lease=30_000)
        if not isinstance(claimed, Claimed):
            raise StoreError("store_corrupt", f"the claim on a new record was refused ({claimed.why})")
        change = Change(1, End(), status="completed", ending=True, durable=True, log=(b"end",))
        store.save(claimed.claim, change)
        read = store.load(key)
        if read is None or read.head.state is not State.ENDED or [e.body for e in read.log] != [b"log", b"end"]:
            raise StoreError("store_corrupt", "what was written is not what was read back")
        store.delete(key)
    except StoreError as error:
        yield problem("round trip", error.message, "the store cannot keep runs; nothing works until this is repaired")
        return
    took = (time.monotonic() - began) * 1000
    yield ok("round trip", f"a record was made, claimed, saved durably, read and removed in {took:.0f} ms")


def clocks(store: CheckpointStore, now: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Leases use the store's clock; times that people compare use ours."""
    skew = store.now() - int(now() * 1000)
    if abs(skew) > _SKEW_MS:
        yield problem(
            "clocks", f"the store's clock is {skew / 1000:+.1f} s from this machine's",
            "let both hosts synchronise their clocks (chrony, systemd-timesyncd)",
        )  # fmt: skip
    else:
        yield ok("clocks", f"the store's clock is {skew / 1000:+.1f} s from this machine's")


def workers(store: CheckpointStore, queue: str) -> Iterator[Finding]:
    """Who serves the queue now."""
    there = [presence for presence in store.presences() if queue in presence.queues]
    if there:
        yield ok("workers", f"{len(there)} of queue {queue}, {sum(p.free for p in there)} free slots")
    else:
        yield note("workers", f"none of queue {queue}; start one: {command('worker')}")


def unserved(store: CheckpointStore) -> Iterator[Finding]:
    """Runs that no worker could serve for ten minutes."""
    now = store.now()
    heads = store.find(Filter(states=UNFINISHED, limit=1000))
    stuck = [head for head in heads if label(head, now)]
    if stuck:
        yield problem(
            "runs", f"{len(stuck)} cannot be served by any worker, such as {stuck[0].key} ({stuck[0].refusal})",
            f"give a worker what it lacks: {command('runs', 'show', stuck[0].key)}",
        )  # fmt: skip
    else:
        yield ok("runs", f"{len(heads)} unfinished, all can be served")
