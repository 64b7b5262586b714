"""Figures: what was measured, what it may be, and how a table and a file of them look."""

from __future__ import annotations

import json
import math
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """One measured value; `limit` is the most it may be (None: for information)."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    note: str = ""

    @property
    def met(self) -> bool:
        return self.limit is None or self.value <= self.limit


@dataclass
class Watch:
    """Milliseconds of a `with` block: CPU of all threads of this process, and by the wall clock.

    Limits are judged by the CPU: on a quiet core the two agree (runs and their helper threads take turns), on a busy
    one only the CPU still says something.
    """

    cpu: float = 0.0
    wall: float = 0.0

    def __enter__(self) -> Watch:
        self._began = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        cpu, wall = self._began
        self.cpu, self.wall = (time.process_time() - cpu) * 1000, (time.perf_counter() - wall) * 1000


def write(name: str, figures: Sequence[Figure]) -> Path:
    """Keep figures as `results/<name>.json`, with what they were measured on."""
    RESULTS.mkdir(exist_ok=True)
    machine = {
        "python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}",
        "sqlite": sqlite3.sqlite_version, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip
    rows = [
        {"name": f.name, "value": round(f.value, 4), "unit": f.unit, "limit": f.limit, "met": f.met, "note": f.note}
        for f in figures
    ]
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine, "figures": rows}, indent=2) + "\n")
    return path


def show(figures: Sequence[Figure]) -> None:
    """Print them as a table."""
    wide = max(len(f.name) for f in figures)
    for f in figures:
        limit = "" if f.limit is None else f"<= {f.limit:g}"
        verdict = "-" if f.limit is None else ("ok" if f.met else "MISSED")
        print(f"{f.name:<{wide}}  {f.value:>9.3f} {f.unit:<9} {limit:>8}  {verdict:<6}  {f.note}", file=sys.stdout)
    sys.stdout.flush()


def slope(points: Sequence[tuple[float, float]]) -> float:
    """How y grows with x: the exponent of y ~ x ** slope, by least squares on the logarithms."""
    return linear_regression([math.log(x) for x, _ in points], [math.log(y) for _, y in points]).slope
