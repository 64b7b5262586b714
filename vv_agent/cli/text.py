"""Texts for a terminal: times, quoted commands, and foreign text that cannot control it."""

from __future__ import annotations

import shlex
import unicodedata
from datetime import UTC, datetime


def iso(seconds: float) -> str:
    """Unix seconds as `2026-01-31T12:00:00Z`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def iso_ms(milliseconds: int) -> str:
    return iso(milliseconds / 1000)


def ago(milliseconds: int) -> str:
    """A duration in words of two letters: `12s`, `5m`, `3h`, `4d`."""
    seconds = max(0, milliseconds // 1000)
    for size, letter in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{letter}"
    return f"{seconds}s"


def command(*words: str, options: str = "") -> str:
    """A command of ours, quoted so that it can be copied into a shell; a key like `-x` stands after a `--`."""
    at = next((n for n, word in enumerate(words) if word.startswith("-")), None)
    if at is None:
        return " ".join(filter(None, (shlex.join(("vv-agent", *words)), options)))
    return " ".join(filter(None, (shlex.join(("vv-agent", *words[:at])), options, "--", shlex.join(words[at:]))))


def safe(text: str, *, lines: bool = False) -> str:
    """Text of a model, tool or key without control characters: it can neither move the cursor nor ring the bell, and
    what is hidden in it is seen."""
    kept = "\n\t" if lines else ""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(c) if c not in kept else c for c in text)


_HIDDEN = frozenset("\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff")
"""Characters that change the order of what is shown, or are not seen: what is read would not be what is there."""


def _visible(char: str) -> str:
    if char in _HIDDEN:
        return f"\\u{ord(char):04x}"
    return "?" if unicodedata.category(char) in ("Cc", "Cs") else char


def short(text: str, most: int) -> str:
    """One safe line of at most `most` characters."""
    line = safe(" ".join(text.split()))
    return line if len(line) <= most else f"{line[: most - 1]}…"
