"""The benchmarks run: their figures are for `make bench`, here they only have to come about."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "measure", ["inline", "store", "large_file", "growth", "memory", "imports", "latency", "search", "redis", "celery"]
)
def test_a_quick_measure_prints_its_figures(measure: str) -> None:
    command = [sys.executable, "-m", "benchmarks.run", "--quick", measure]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 1
