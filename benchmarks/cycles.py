"""Measures of one run in one process: inline overhead, store cost, growth, one large file."""

from __future__ import annotations

import gc
import os
import random
import sqlite3
import string
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import floor
from benchmarks.figures import Figure, Watch, slope
from benchmarks.job import AGENT, Released, provider
from vv_agent import CheckpointConfig, NoToolPolicy, RunConfig, Runner, RunResult
from vv_agent.agent import Agent
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.sql import SqlStore
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.dispatch.base import Backend
from vv_agent.dispatch.inline import InlineBackend
from vv_agent.testing import ScriptedProvider, call, say
from vv_agent.tools.builtin import build_default_registry

Times = list[float]
FORMS: dict[str, Callable[[], Backend]] = {"released": Released, "kept": InlineBackend}


def run_job(cycles: int, store: CheckpointStore | None = None, form: str = "kept") -> tuple[Watch, Times]:
    """Run the job; what the whole call took, and when each cycle began in ms of CPU."""
    began_at: Times = []

    def note(event: Any) -> None:
        if event.type == "cycle_started":
            began_at.append(time.process_time() * 1000)

    checkpoint = CheckpointConfig(store=store, key="bench") if store is not None else None
    config = RunConfig(
        max_cycles=cycles, stream=note, checkpoint_config=checkpoint, execution_backend=FORMS[form]()
    )  # fmt: skip
    runner = Runner(model_provider=provider(cycles), workspace=_workspace())
    gc.collect()
    with Watch() as watch:
        result = runner.run_sync(AGENT, "go", run_config=config)
    assert result.final_output == "done", result
    return watch, began_at


@cache
def _workspace() -> str:
    """A folder for agents that use none, so that no run makes one where it is started."""
    return tempfile.mkdtemp(prefix="vv-bench-")


def inline_overhead(cycles: int, rounds: int) -> list[Figure]:
    """`run_sync` in memory with its events on, less the bare loop with the same model and tool."""
    with one_core():
        (quiet,) = _inline_overhead(cycles, rounds)
    (free,) = _inline_overhead(cycles, max(1, rounds // 3))
    return [quiet, replace(free, name="inline overhead, all cores")]


def _inline_overhead(cycles: int, rounds: int) -> list[Figure]:
    model = provider(cycles).client(None)  # type: ignore[arg-type]
    ours, bare = [], []
    run_job(10)
    for _ in range(rounds):
        with Watch() as watch:
            floor.bare_loop(model, cycles)
        bare.append(watch)
        ours.append(run_job(cycles)[0])
    cycle, least = (median(one.cpu for one in side) / cycles for side in (ours, bare))
    wall = median(one.wall for one in ours) / cycles
    note = f"CPU; a cycle takes {cycle:.3f} ms (wall clock {wall:.3f}), the bare loop {least:.3f}"
    over = median(a.cpu - b.cpu for a, b in zip(ours, bare, strict=True)) / cycles
    return [Figure("inline overhead per cycle", over, "ms", 0.5, note)]


@contextmanager
def one_core() -> Iterator[None]:
    """Stay on one core: a run and its helper threads take turns, and the journey from core to core would be measured
    instead of them (it doubles every figure on a small virtual machine)."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def sqlite_store() -> Iterator[tuple[SqlStore, Path]]:
    with tempfile.TemporaryDirectory(prefix="vv-bench-") as folder:
        path = Path(folder) / "runs.db"
        store = SqlStore(f"sqlite:///{path}")
        try:
            yield store, path
        finally:
            store.close()


def store_cost(cycles: int, rounds: int, form: str) -> list[Figure]:
    """A cycle on SQLite less a cycle in memory, against the same writes by plain sqlite3.

    Two figures for it: against a tight loop of nothing but these writes, and against the writes made where the store
    makes its own, between model and tool calls. A tight loop keeps the processor's caches to itself; the raw writes in
    place already take two to three times as long as that.
    """
    costs, floors, in_place = [], [], []
    for _ in range(rounds):
        with sqlite_store() as (store, path):
            stored, _ = run_job(cycles, store, form)
            in_memory, _ = run_job(cycles, MemoryStore(), form)
            writes = floor.writes_of(path, kept=form == "kept")
            raw = floor.raw_writes(path.with_name("raw.db"), writes)
            beside = floor.RawBeside(path.with_name("beside.db"), writes)
            with_raw, _ = run_job(cycles, beside, form)
            beside.raw.db.close()
        costs.append((stored.cpu - in_memory.cpu) / cycles)
        floors.append(raw.cpu / cycles)
        in_place.append((with_raw.cpu - in_memory.cpu) / cycles)
    cost, beside_ours, loop = median(costs), median(in_place), median(floors)
    limit = 2.0 if form == "released" else None
    against = {"a tight loop": loop, "raw writes in place": beside_ours}
    return [
        Figure(
            f"store cost against {name}, {form}", cost / floor_ms, "x", limit,
            f"CPU; {cost:.3f} ms a cycle against {floor_ms:.3f}",
        )
        for name, floor_ms in against.items()
    ]  # fmt: skip


def postgres_cost(url: str, cycles: int, rounds: int) -> list[Figure]:
    """A cycle on PostgreSQL less a cycle in memory."""
    costs = []
    store = SqlStore(url)
    try:
        for _ in range(rounds):
            stored, _ = run_job(cycles, store, "released")
            store.delete("bench")
            in_memory, _ = run_job(cycles, MemoryStore(), "released")
            costs.append((stored.wall - in_memory.wall) / cycles)
    finally:
        store.close()
    return [Figure("store cost, PostgreSQL, released", median(costs), "ms", note="wall clock")]


def stored_bytes(path: Path) -> int:
    """Bytes of all files of a store, once what lies in the write-ahead log is in the database."""
    for file in (path, path.with_name(f"{path.name}-live")):
        if file.exists():
            with closing(sqlite3.connect(file)) as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def growth(cycles: int, rounds: int, form: str) -> list[Figure]:
    """How the time of a cycle and the bytes of a run grow between a tenth of its cycles and all of them."""
    spans: list[Times] = []
    for _ in range(rounds):
        with sqlite_store() as (store, _):
            _, began = run_job(cycles, store, form)
        spans.append([later - one for one, later in pairwise(began)])
    typical = [min(row) for row in zip(*spans, strict=True)]  # of the same cycle in several runs: a busy machine adds
    width = max(1, cycles // 50)
    bins = [
        (at + width / 2, median(typical[at : at + width]))
        for at in range(cycles // 10, len(typical) - width + 1, width)
    ]
    sizes = []
    for count in (cycles // 10, cycles // 4, cycles // 2, cycles):
        with sqlite_store() as (store, path):
            empty = stored_bytes(path)
            run_job(count, store, form)
            sizes.append((count, stored_bytes(path) - empty))
    per_thousand = sizes[-1][1] / cycles * 1000 / 1e6
    first, last = bins[0][1], bins[-1][1]
    return [
        Figure(f"growth of ms per cycle, {form}", slope(bins), "exponent", 0.05, f"{first:.3f} to {last:.3f} ms"),
        Figure(f"growth of bytes, {form}", slope(sizes), "exponent", 1.05, f"{sizes[0][1]} to {sizes[-1][1]} bytes"),
        Figure(f"1,000 cycles, {form}", per_thousand, "MB", 1.5, "added to an empty store"),
    ]


def _write_file_run(content: str) -> int:
    write_file = build_default_registry().get("write_file")
    agent = Agent(name="writer", instructions="Write.", tools=[write_file], no_tool_policy=NoToolPolicy.FINISH)
    steps = [call("write_file", {"path": "big.txt", "content": content}), say("done")]
    with sqlite_store() as (store, path), tempfile.TemporaryDirectory(prefix="vv-bench-") as workspace:
        config = RunConfig(checkpoint_config=CheckpointConfig(store=store, key="bench"), stream=lambda event: None)
        runner = Runner(model_provider=ScriptedProvider(steps), workspace=workspace)
        result: RunResult = runner.run_sync(agent, "go", run_config=config)
        assert result.final_output == "done", result
        assert (Path(workspace) / "big.txt").read_text() == content
        return stored_bytes(path)


def large_file() -> list[Figure]:
    """What one write_file of 1 MB adds to all files of the store: its journal, its events and its receipts."""
    letters = string.ascii_letters + string.digits + string.punctuation + " \n"
    text = "".join(random.Random(2).choices(letters, k=1_000_000))  # what compression can do little for
    wide = "".join(random.Random(3).choices([chr(n) for n in range(0x4E00, 0x9FA5)], k=333_333))
    small = _write_file_run("x")
    added = (_write_file_run(text) - small) / 1e6
    note = f"random ASCII; the same bytes of random Chinese: {(_write_file_run(wide) - small) / 1e6:.2f} MB"
    return [Figure("one write_file of 1 MB", added, "MB", 1.2, note)]
