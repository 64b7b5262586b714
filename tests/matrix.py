"""Writes `tests/matrix.json`: which feature ran on which backend and store in this test run, and why not elsewhere.

A test says what it shows with `@pytest.mark.feature("approvals")`. Where it ran is read from its parameters: `bench`
(store-backend), else `store`, `real_store` or `shared_world`, and `backend` or `mode`; what they do not say is said by
the marker: `@pytest.mark.feature("approvals", backend="celery", store="redis")`. Backends and stores that are not among
`BACKENDS` and `STORES` have no cell.

The file is written by a run of the whole folder (`pytest`, `pytest -m feature`), which fails if a feature that has
tests was not run where it must be: on Celery with Redis, and on local workers with SQLite.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).with_name("matrix.json")
BACKENDS = ("inline", "threaded", "workers", "celery")
STORES = ("memory", "sqlite", "redis")
FEATURES = (
    "cycles", "tools", "events", "event store", "traces", "resume", "ask_user", "approvals", "cancel", "steer", "budgets",
    "sessions", "workspaces", "skills", "hand-offs", "sub-agents", "hooks", "guardrails", "output types", "completion",
    "memory", "context providers", "interactive",
)  # fmt: skip
REQUIRED = (("celery", "redis"), ("workers", "sqlite"))
NOT_POSSIBLE = {
    ("celery", "memory"): "a store in memory belongs to one process; Celery's workers are others",
}
Cell = tuple[str, str, str]
_cells: dict[str, list[Cell]] = {}
"""By the id of a test."""
_outcomes: dict[Cell, Counter[str]] = {}
_skipped: dict[Cell, str] = {}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Note the cells of a test."""
    for marker in item.iter_markers("feature"):
        backend, store = _place(item, marker)
        for feature in marker.args:
            if feature not in FEATURES:
                raise pytest.UsageError(f"{item.nodeid}: feature {feature!r} is not in tests/matrix.py")
            if backend in BACKENDS and store in STORES:
                _cells.setdefault(item.nodeid, []).append((feature, backend, store))


def _place(item: pytest.Item, marker: pytest.Mark) -> tuple[str | None, str | None]:
    params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    store, backend = params.get("bench", (None, None))
    store = store or next((params[n] for n in ("store", "real_store", "shared_world") if n in params), None)
    backend = backend or params.get("backend") or params.get("mode")
    return marker.kwargs.get("backend", backend), marker.kwargs.get("store", store)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count what a test came to."""
    for cell in _cells.get(report.nodeid, ()):
        if report.failed or (report.when == "call" and report.passed):
            _outcomes.setdefault(cell, Counter())["failed" if report.failed else "ran"] += 1
        elif report.skipped and isinstance(report.longrepr, tuple):
            _skipped[cell] = report.longrepr[2].removeprefix("Skipped: ")


def noted() -> dict[str, list[Any]]:
    """What this process counted, in a form that can be sent."""
    return {
        "outcomes": [(*cell, dict(counts)) for cell, counts in _outcomes.items()],
        "skipped": [(*cell, why) for cell, why in _skipped.items()],
    }


def take(notes: dict[str, list[Any]]) -> None:
    """Add what another process counted."""
    for feature, backend, store, counts in notes["outcomes"]:
        _outcomes.setdefault((feature, backend, store), Counter()).update(counts)
    for feature, backend, store, why in notes["skipped"]:
        _skipped[feature, backend, store] = why


def rows() -> dict[str, dict[str, dict[str, str]]]:
    """Feature -> backend -> store -> what it came to."""
    return {
        feature: {backend: {store: _came_to((feature, backend, store)) for store in STORES} for backend in BACKENDS}
        for feature in FEATURES
    }


def _came_to(cell: Cell) -> str:
    if counts := _outcomes.get(cell):
        return "failed" if counts["failed"] else "ran"
    return f"absent: {_skipped.get(cell) or NOT_POSSIBLE.get(cell[1:]) or 'no test of this run'}"


def lacking() -> list[str]:
    """The features with tests that did not run where they must, although nothing of this machine was missing."""
    tried = {cell[0] for cell in _outcomes}
    return [
        f"{feature} on {backend} with {store}"
        for feature, (backend, store) in itertools.product(FEATURES, REQUIRED)
        if feature in tried and not {(feature, backend, store)} & (_outcomes.keys() | _skipped.keys())
    ]


def is_whole(config: pytest.Config) -> bool:
    """Whether the session ran all tests there are, but for those a marker leaves out."""
    folders = {Path(arg).resolve() for arg in config.args}
    return folders <= {FILE.parent, FILE.parent.parent} and not config.option.keyword and not config.option.collectonly


def finish(session: pytest.Session) -> None:
    """Write the file, and fail a run that lacks a cell it must have."""
    came_through = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not session.shouldfail
    prints = not hasattr(session.config, "workeroutput")
    if prints and _outcomes and came_through and is_whole(session.config):
        FILE.write_text(json.dumps(rows(), indent=1) + "\n", encoding="utf-8")
        if lacking() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def summary(config: pytest.Config) -> list[str]:
    """Lines for the end of a run."""
    if not _outcomes or not is_whole(config):
        return []
    cells = [came for backends in rows().values() for stores in backends.values() for came in stores.values()]
    counts = Counter(came.partition(":")[0] for came in cells)
    told = ", ".join(f"{counts[what]} {what}" for what in ("ran", "failed", "absent"))
    return [f"features, backends and stores: {told} (tests/matrix.json)", *(f"not run: {cell}" for cell in lacking())]
