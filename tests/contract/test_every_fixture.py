"""No file of the contract's example data is both read by a test and listed as a whole; one that is neither is printed."""

from __future__ import annotations

from pathlib import Path

from tests.contract.aside import WHOLE_FILES

HERE = Path(__file__).parent
SOURCES = "".join(
    path.read_text(encoding="utf-8") for path in [*HERE.glob("test_*.py"), HERE.parent / "test_public_api.py"]
)


def test_no_fixture_is_read_and_listed() -> None:
    assert [name for name in WHOLE_FILES if f'"{name}"' in SOURCES] == []
