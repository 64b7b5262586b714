"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of a check. A problem says what to do; a note is for information only."""

    check: str
    level: Level
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, "ok", text)


def note(check: str, text: str) -> Finding:
    return Finding(check, "note", text)


def problem(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, "problem", text, remedy)
