"""The two lists of the contract tests: what differs on purpose (DESIGN 10) and what a later issue builds.

A test file makes one `Cases` and runs every case of its fixture in `with CASES.run(name)`. A listed case may fail;
**one that passes fails the test**, so that no entry outlives its reason. A listed case that nothing can drive yet is
shown with `CASES.show(name)`. The counts of all files are printed at the end of the session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

ISSUES = frozenset({"cluster", "command line", "tools", "control", "memory", "people"})
"""The later issues a pending case may wait for."""
WHOLE_FILES = {
    "checkpoint_sqlite_canonical.sql": "differs on purpose: storage forms are ours (DESIGN 10)",
    "distributed_worker_response.json": "differs on purpose: queue messages are ours (DESIGN 10)",
}
"""Fixtures that no test reads yet, or ever will."""
FILES: list[Cases] = []
"""Every fixture whose cases were run in this session."""


def noted() -> list[tuple[Any, ...]]:
    """What the cases of this process came to, in a form that can be sent."""
    return [
        (one.fixture, dict(one.differs), dict(one.pending), sorted(one.ran), sorted(one.aside), sorted(one.waiting))
        for one in FILES
    ]


def take(notes: Iterable[tuple[Any, ...]]) -> None:
    """Add what the cases of another process came to."""
    for fixture, differs, pending, ran, aside, waiting in notes:
        listed = {name: (issue, reason) for name, (issue, reason) in pending.items()}
        known = [one for one in FILES if (one.fixture, one.differs, one.pending) == (fixture, differs, listed)]
        cases = known[0] if known else Cases(fixture, differs, listed)
        cases.ran |= {*ran}
        cases.aside |= {*aside}
        cases.waiting |= {*waiting}


@dataclass
class Cases:
    """The cases of one fixture file. `differs`: name -> reason; `pending`: name -> (issue, reason)."""

    fixture: str
    differs: Mapping[str, str] = field(default_factory=dict)
    pending: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    aside: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if both := self.differs.keys() & self.pending.keys():
            raise ValueError(f"{self.fixture}: listed twice: {sorted(both)}")
        if unknown := {issue for issue, _ in self.pending.values()} - ISSUES:
            raise ValueError(f"{self.fixture}: pending for no issue there is: {sorted(unknown)}")
        FILES.append(self)

    @contextmanager
    def run(self, name: str) -> Iterator[None]:
        """Run one case. A listed case is expected to raise; when it does not, its entry must go."""
        if name not in self.differs and name not in self.pending:
            self.ran.add(name)
            yield
            return
        try:
            yield
        except (Exception, pytest.fail.Exception):
            self.show(name)
        else:
            pytest.fail(f"{self.fixture}: {name} is listed as set aside, but it passes; remove its entry")

    def show(self, name: str) -> None:
        """Count a listed case that has nothing to run against yet."""
        if name in self.differs:
            self.aside.add(name)
        elif name in self.pending:
            self.waiting.add(name)
        else:
            pytest.fail(f"{self.fixture}: {name} is neither run nor listed with a reason")

    def report(self) -> Iterator[str]:
        """One line of counts, then one line for each reason, with the cases it sets aside."""
        total = len(self.ran | self.aside | self.waiting)
        yield (
            f"{self.fixture}: {total} cases, {len(self.ran)} run, {len(self.aside)} set aside, "
            f"{len(self.waiting)} pending"
        )
        reasons: dict[str, list[str]] = {}
        for name in sorted(self.aside):
            reasons.setdefault(f"differs on purpose: {self.differs[name]}", []).append(name)
        for name in sorted(self.waiting):
            reasons.setdefault("pending: {}: {}".format(*self.pending[name]), []).append(name)
        if unmet := sorted((self.differs.keys() | self.pending.keys()) - self.aside - self.waiting):
            reasons["listed, but not met in this session"] = unmet
        for reason, names in reasons.items():
            yield f"    {reason}: {', '.join(names)}"
