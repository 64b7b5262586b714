"""What the processes of a parallel run (`pytest -n 2`) tell the one that prints the summary: which contract cases ran,
which servers were missing, which features ran where."""

from __future__ import annotations

from typing import Any

import pytest

from tests import matrix, servers
from tests.contract import aside, fixtures

_NOTES = "vv_notes"


def hand_over(config: pytest.Config) -> None:
    """In a process that only runs tests: what it noted."""
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output[_NOTES] = {
            "missing": dict(servers.MISSING), "matrix": matrix.noted(), "cases": aside.noted(),
            "readers": {name: sorted(modules) for name, modules in fixtures.READERS.items()},
        }  # fmt: skip


def take_over(node: Any) -> None:
    """In the process that prints: what another one noted."""
    notes = getattr(node, "workeroutput", {}).get(_NOTES)
    if notes is None:
        return
    servers.MISSING.update(notes["missing"])
    matrix.take(notes["matrix"])
    aside.take(notes["cases"])
    for name, modules in notes["readers"].items():
        fixtures.READERS.setdefault(name, set()).update(modules)
