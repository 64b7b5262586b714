"""What the contract tests set aside: what differs on purpose (DESIGN 10), case by case with the reason.

A test file makes one `Cases` and runs every case of its fixture in `with CASES.run(name)`. A listed case may fail;
**one that passes fails the test**, so that no entry outlives its reason. A listed case that nothing here can drive is
shown with `CASES.show(name)`. The counts of all files are printed at the end of the session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

WHOLE_FILES = {
    "checkpoint_sqlite_canonical.sql": "differs on purpose: storage forms are ours (DESIGN 10)",
    "distributed_worker_response.json": "differs on purpose: queue messages are ours (DESIGN 10)",
}
"""Fixtures that no test reads."""
FILES: list[Cases] = []
"""Every fixture whose cases were run in this session."""


def noted() -> list[tuple[Any, ...]]:
    """What the cases of this process came to, in a form that can be sent."""
    return [(one.fixture, dict(one.differs), sorted(one.ran), sorted(one.aside)) for one in FILES]


def take(notes: Iterable[tuple[Any, ...]]) -> None:
    """Add what the cases of another process came to."""
    for fixture, differs, ran, aside in notes:
        known = [one for one in FILES if (one.fixture, one.differs) == (fixture, differs)]
        cases = known[0] if known else Cases(fixture, differs)
        cases.ran |= {*ran}
        cases.aside |= {*aside}


@dataclass
class Cases:
    """The cases of one fixture file. `differs`: name -> reason."""

    fixture: str
    differs: Mapping[str, str] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    aside: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        FILES.append(self)

    @contextmanager
    def run(self, name: str) -> Iterator[None]:
        """Run one case. A listed case is expected to raise; when it does not, its entry must go."""
        if name not in self.differs:
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
        """Count a listed case that nothing here can drive."""
        if name not in self.differs:
            pytest.fail(f"{self.fixture}: {name} is neither run nor listed with a reason")
        self.aside.add(name)

    def report(self) -> Iterator[str]:
        """One line of counts, then one line for each reason, with the cases it sets aside."""
        yield f"{self.fixture}: {len(self.ran | self.aside)} cases, {len(self.ran)} run, {len(self.aside)} set aside"
        reasons: dict[str, list[str]] = {}
        for name in sorted(self.aside):
            reasons.setdefault(f"differs on purpose: {self.differs[name]}", []).append(name)
        if unmet := sorted(self.differs.keys() - self.aside):
            reasons["listed, but not met in this session"] = unmet
        for reason, names in reasons.items():
            yield f"    {reason}: {', '.join(names)}"
