"""Where the contract's example data lies: `VV_CONTRACT_DIR`, else `../shared/contract/fixtures`, else nowhere."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any

import pytest

READERS: dict[str, set[str]] = {}
"""Fixture -> the modules of this session that read it."""
_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "contract" / "fixtures"


def folder() -> Path | None:
    """The folder with the fixtures, or None when this machine has none."""
    named = os.environ.get("VV_CONTRACT_DIR")
    if named:
        path = Path(named)
        path = path / "fixtures" if (path / "fixtures").is_dir() else path
        if not path.is_dir():
            raise RuntimeError(f"VV_CONTRACT_DIR={named} is not a folder")
        return path
    return _BESIDE if _BESIDE.is_dir() else None


def load(name: str) -> Any:
    """One fixture file; `.jsonl` gives the list of its lines as text. Skips the module when there is none."""
    home = folder()
    if home is None:
        pytest.skip("no contract fixtures on this machine (set VV_CONTRACT_DIR)", allow_module_level=True)
    frame = inspect.currentframe()
    if frame is not None and frame.f_back is not None:
        READERS.setdefault(name, set()).add(str(frame.f_back.f_globals["__name__"]))
    text = (home / name).read_text(encoding="utf-8")
    return text.splitlines() if name.endswith(".jsonl") else json.loads(text)
