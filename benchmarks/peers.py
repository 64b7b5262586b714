"""`make bench-peers`: the same job on langgraph with its SQLite saver, on dbos with SQLite, and on ours.

Each library has an environment of its own below `.bench-venvs/`, made here with pinned versions; one that cannot be
installed is reported and left out. The job (`peer_jobs.py`) is n turns of a model without thought and a tool with a
200-byte result, each outcome kept before the next begins.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, show, write

ROOT = Path(__file__).parent.parent
PEERS: dict[str, tuple[str, ...]] = {
    "langgraph": ("langgraph==1.2.24", "langgraph-checkpoint-sqlite==3.1.2"),
    "dbos": ("dbos==3.4.0",),
}
STEPS = (30, 100, 300)
ROUNDS = 3


def environment(name: str, packages: Sequence[str]) -> Path | None:
    """The interpreter of a library's own environment, made if it is not there; None if it cannot be installed."""
    folder = ROOT / ".bench-venvs" / name
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    done = folder / "installed.json"
    if done.exists() and json.loads(done.read_text()) == list(packages):
        return python
    venv.create(folder, with_pip=True, clear=True)
    install = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", *packages], check=False, capture_output=True, text=True
    )
    if install.returncode != 0:
        reason = (install.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"{name}: {', '.join(packages)} cannot be installed ({reason}); it is left out", file=sys.stderr)
        return None
    done.write_text(json.dumps(list(packages)))
    return python


def one_run(python: str | Path, name: str, steps: int) -> tuple[float, float]:
    """Milliseconds and stored bytes per step of one run in a new process and a new folder."""
    with tempfile.TemporaryDirectory(prefix="vv-bench-") as folder:
        command = [str(python), str(ROOT / "benchmarks" / "peer_jobs.py"), name, str(steps), folder]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, env=_environment(name))
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures["seconds"] / steps * 1000, figures["bytes"] / steps


def _environment(name: str) -> dict[str, str] | None:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)} if name == "ours" else None


def main() -> int:
    pythons: dict[str, str | Path] = {"ours": sys.executable}
    for name, packages in PEERS.items():
        if (python := environment(name, packages)) is not None:
            pythons[name] = python
    measured: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for steps in STEPS:
        for _ in range(ROUNDS):  # alternately, so that a busy moment hits all of them
            for name, python in pythons.items():
                measured.setdefault((name, steps), []).append(one_run(python, name, steps))
    figures = []
    for (name, steps), runs in measured.items():
        ms, size = median(run[0] for run in runs), median(run[1] for run in runs)
        base = median(run[0] for run in measured["ours", steps])
        versions = ", ".join(PEERS.get(name, ("this tree",)))
        note = f"{ms / base:.2f} x ours, {size:.0f} bytes a step ({versions})"
        figures.append(Figure(f"{name}, {steps} steps", ms, "ms/step", note=note))
    show(figures)
    write("peers", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
