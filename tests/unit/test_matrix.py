"""Each feature of the matrix has tests that say they show it."""

from __future__ import annotations

import re
from pathlib import Path

import tests
from tests.matrix import FEATURES

_MARKS = re.compile(r"mark\.feature\(([^)]*)\)")


def test_every_feature_is_shown_by_a_test() -> None:
    files = Path(tests.__file__).parent.rglob("test_*.py")
    marks = [mark for file in files for mark in _MARKS.findall(file.read_text("utf-8"))]
    shown = {name for mark in marks for name in re.findall(r'(?<!=)"([^"]+)"', mark)}
    assert set(FEATURES) - shown == set()
