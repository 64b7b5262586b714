"""The two lists of the contract tests: what differs on purpose (DESIGN 10) and what a later issue builds.

A test file makes one `Cases` and runs every case of its fixture in `with CASES.run(name)`. A listed case may fail;
**one that passes fails the test**, so that no entry outlives its reason. A listed case that nothing can drive yet is
shown with `CASES.show(name)`. The counts of all files are printed at the end of the session.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

FILES: list[Cases] = []
"""Every fixture whose cases were run in this session."""


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
        except Exception:
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

    def check_names(self, names: Collection[str]) -> None:
        """Fail when a list names a case that the fixture does not have."""
        if unknown := (self.differs.keys() | self.pending.keys()) - set(names):
            pytest.fail(f"{self.fixture}: listed, but not in the fixture: {sorted(unknown)}")

    def report(self) -> Iterator[str]:
        """One line of counts, then one line for each case that was set aside, with its reason."""
        total = len(self.ran | self.aside | self.waiting)
        yield (
            f"{self.fixture}: {total} cases, {len(self.ran)} run, {len(self.aside)} set aside, "
            f"{len(self.waiting)} pending"
        )
        for name in sorted(self.aside):
            yield f"    differs on purpose: {name}: {self.differs[name]}"
        for name in sorted(self.waiting):
            issue, reason = self.pending[name]
            yield f"    pending: {issue}: {name}: {reason}"
