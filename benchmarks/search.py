"""What `search_files` and `find_files` cost beside ripgrep itself, on trees of 100, 10,000 and 200,000 small files.

Everything is warm, ours and ripgrep's runs alternate, and a figure is the median of the rounds. The base for a search
is `rg --json -m 250 PATTERN`, for a listing `rg --files`; both write to a pipe that is read, as a caller would.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figures import Figure
from vv_agent.messages import ToolCall
from vv_agent.tools.base import ToolContext
from vv_agent.tools.builtin import build_default_registry
from vv_agent.workspace import LocalWorkspaceBackend

PATTERNS = {"rare": "needle_[0-9]+", "in every tenth file": "class Special", "in every file": "def handle_"}
SIZES = (100, 10_000, 200_000)
RATIO, EXTRA = 1.5, 5.0
"""Most a search may take: so many times ripgrep's time, on 100 files so many milliseconds more."""


def ripgrep() -> str | None:
    """ripgrep on PATH, or beside this Python; it is put on PATH then."""
    found = shutil.which("rg") or shutil.which("rg", path=os.path.dirname(sys.executable))
    if found is not None:
        os.environ["PATH"] = f"{os.path.dirname(found)}{os.pathsep}{os.environ['PATH']}"
    return found


def measure(sizes: tuple[int, ...], rounds: int) -> list[Figure]:
    """All figures; those without ripgrep are for information."""
    figures: list[Figure] = []
    for size in sizes:
        with _tree(size) as root:
            figures += [*_searches(root, size, rounds), *_listing(root, size, rounds)]
    return figures


@contextmanager
def _tree(size: int) -> Iterator[Path]:
    """`size` files of about one kilobyte, a hundred in a folder."""
    root = Path(tempfile.mkdtemp(prefix="vv-search-"))
    body = "".join(f"    value_{n} = compute(value_{n - 1}, option={n})\n" for n in range(1, 21))
    for number in range(size):
        folder = root / f"pkg{number // 10_000}" / f"mod{number // 100 % 100}"
        if number % 100 == 0:
            folder.mkdir(parents=True)
        head = f"class Special{number}:\n" if number % 10 == 0 else "class Plain:\n"
        tail = f"    return needle_{number}\n" if number % 5_000 == 42 else "    return None\n"
        (folder / f"file{number}.py").write_text(f"import os\n\n{head}\n    def handle_{number}(self):\n{body}{tail}")
    try:
        yield root
    finally:
        shutil.rmtree(root)


def _searches(root: Path, size: int, rounds: int) -> Iterator[Figure]:
    for name, pattern in PATTERNS.items():
        base: list[str] = ["rg", "--json", "-m", "250", pattern, "."]
        for mode in ("files_with_matches", "content"):
            ours, theirs = _alternately(
                rounds,
                lambda pattern=pattern, mode=mode: _call(root, "search_files", pattern=pattern, output_mode=mode),
                lambda base=base: _ripgrep(root, base),
            )
            yield from _judged(f"search, {size} files, {name}, {mode}", size, ours, theirs)
        with _no_ripgrep():
            alone = _timed(lambda pattern=pattern: _call(root, "search_files", pattern=pattern))
        yield Figure(f"search, {size} files, {name}, without ripgrep", alone, "ms", None, "once")


def _listing(root: Path, size: int, rounds: int) -> Iterator[Figure]:
    ours, theirs = _alternately(rounds, lambda: _call(root, "find_files"), lambda: _ripgrep(root, ["rg", "--files"]))
    note = f"{ours:.1f} ms, ripgrep {theirs:.1f} ms, which does not sort by time; at most 50,000 files are looked at"
    yield Figure(f"find, {size} files", ours / theirs, "x", None, note)
    whole = _timed(lambda: _call(root, "find_files", scan_limit=10**7))
    yield Figure(f"find, {size} files, no scan limit", whole, "ms", None, "once")


def _judged(name: str, size: int, ours: float, theirs: float) -> Iterator[Figure]:
    note = f"{ours:.1f} ms, ripgrep {theirs:.1f} ms"
    if size <= 1_000:
        yield Figure(name, ours - theirs, "ms more", EXTRA, note)
    else:
        yield Figure(name, ours / theirs, "x", RATIO, note)


def _alternately(rounds: int, ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """Median milliseconds of both, after one round that is not counted."""
    spent: list[tuple[float, float]] = [(_timed(ours), _timed(theirs)) for _ in range(rounds + 1)][1:]
    return median(mine for mine, _ in spent), median(their for _, their in spent)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _call(root: Path, tool: str, **arguments: Any) -> None:
    context = ToolContext(workspace=LocalWorkspaceBackend(root))
    result = build_default_registry().execute(ToolCall("c", tool, json.dumps(arguments)), context)
    assert result.status_code == "SUCCESS", result.content
    assert "stopped after" not in result.content, result.content


def _ripgrep(root: Path, command: list[str]) -> None:
    subprocess.run(command, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, check=True)


@contextmanager
def _no_ripgrep() -> Iterator[None]:
    path = os.environ["PATH"]
    os.environ["PATH"] = ""
    try:
        yield
    finally:
        os.environ["PATH"] = path
