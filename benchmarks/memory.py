"""Measures of a long run: 500 cycles with results of 10 KB against a provider with a window of 128,000 tokens.

The provider is a process of its own; it counts tokens with a vocabulary that the package does not use and keeps what it
received. Time is the CPU of this process, which holds the run and the client but not the provider.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cycles import one_core, sqlite_store, stored_bytes
from benchmarks.figures import Figure, slope
from tests.long_run import AGENT, TASKS, WINDOW, models
from vv_agent import CheckpointConfig, RunConfig, Runner

_BIN = 40
"""Cycles of one point of the slope: a round of filling up and compacting takes about as many."""


@dataclass
class Watched:
    """What was seen of a run: when cycles began in ms of CPU, its bytes at some of them, and those that compacted."""

    began: list[float] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    changed: set[int] = field(default_factory=set)


@contextmanager
def _provider(cycles: int, language: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.long_run", str(cycles), language]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def long_run(cycles: int, language: str) -> list[Figure]:
    """One run: prompts against the window, bodies against each other, bytes and time against the cycle."""
    watched = Watched()
    first = cycles // 5

    def note(event: Any) -> None:
        if event.type == "cycle_started":
            watched.began.append(time.process_time() * 1000)
            if event.cycle_index >= first and event.cycle_index % max(1, cycles // 10) == 0:
                watched.sizes.append((event.cycle_index, stored_bytes(path) - empty))
                watched.began[-1] = time.process_time() * 1000  # the measuring is not the run's
        elif event.type == "memory_compact_completed" and event.changed:
            watched.changed.add(event.cycle_index)

    with (
        _provider(cycles, language) as process,
        sqlite_store() as (store, path),
        tempfile.TemporaryDirectory() as folder,
    ):
        assert process.stdout is not None
        assert process.stdin is not None
        provider = models(process.stdout.readline().strip(), Path(folder))
        empty = stored_bytes(path)
        config = RunConfig(
            model="long", max_cycles=cycles + 1, stream=note,
            checkpoint_config=CheckpointConfig(store=store, key="bench"),
        )  # fmt: skip
        result = Runner(model_provider=provider, workspace=Path(folder) / "work").run_sync(
            AGENT, TASKS[language], run_config=config
        )
        assert result.final_output == "done", result
        process.stdin.write("report\n")
        process.stdin.flush()
        report = json.loads(process.stdout.readline())
    return _figures(language, cycles, report, watched)


def _figures(language: str, cycles: int, report: dict[str, Any], watched: Watched) -> list[Figure]:
    began, sizes, changed = watched.began, watched.sizes, watched.changed
    assert report["task"], "the task is not in the last prompt"
    assert report["fact"], "the fact of cycle 20 is not in the last prompt"
    spans = [later - one for one, later in pairwise(began)]
    width = min(_BIN, max(1, cycles // 10))
    bins = [
        (at + width / 2, median(spans[at : at + width])) for at in range(cycles // 5, len(spans) - width + 1, width)
    ]
    same = [part for cycle, part in enumerate(report["shared"], 2) if cycle not in changed]
    grown = f"{sizes[0][1]:,} to {sizes[-1][1]:,} bytes from cycle {sizes[0][0]} to {sizes[-1][0]}"
    slower = f"{bins[0][1]:.2f} to {bins[-1][1]:.2f} ms of CPU"
    tokens = sum(report["sizes"]) / len(report["sizes"])
    note = (
        f"{report['summaries']} summaries, {len(changed)} compactions, {report['refused']} refused; mean {tokens:,.0f}"
    )
    return [
        Figure(f"largest prompt, {language}", report["peak"], "tokens", WINDOW, note),
        Figure(
            f"most of a body that the next does not begin with, {language}", 100 * (1 - min(same)), "%", 10.0,
            f"{len(same)} of {cycles - 1} cycles without compaction; mean {100 * (1 - sum(same) / len(same)):.4f} %",
        ),
        Figure(f"growth of bytes, {language}", slope(sizes), "exponent", 1.05, grown),
        Figure(f"growth of ms per cycle, {language}", slope(bins), "exponent", 0.1, slower),
    ]  # fmt: skip


def measure(cycles: int) -> list[Figure]:
    """In English and in Chinese."""
    with one_core():
        return [figure for language in TASKS for figure in long_run(cycles, language)]
