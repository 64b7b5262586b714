"""Docstrings as descriptions: the first paragraph, and the parameters of the Google and Sphinx forms."""

from __future__ import annotations

import inspect
import re

_SECTION = re.compile(r"(?:Args|Arguments|Parameters):\s*\Z")
_GOOGLE = re.compile(r"(?P<indent>\s+)\*{0,2}(?P<name>\w+)(?:\s*\([^)]*\))?:\s*(?P<text>.*)\Z")
_SPHINX = re.compile(r":param\s+(?:[^:]+\s)?(?P<name>\w+):\s*(?P<text>.*)\Z")


def summary(docstring: str | None) -> str:
    """The first paragraph on one line."""
    first = inspect.cleandoc(docstring or "").split("\n\n")[0]
    lines = first.splitlines()
    end = next((at for at, line in enumerate(lines) if _SECTION.match(line) or _SPHINX.match(line)), len(lines))
    return " ".join(line.strip() for line in lines[:end])


def parameters(docstring: str | None) -> dict[str, str]:
    """Parameter name -> description; continued lines are joined."""
    found: dict[str, str] = {}
    current: str | None = None
    section_indent: int | None = None
    inside = False
    for line in inspect.cleandoc(docstring or "").splitlines():
        if _SECTION.match(line):
            inside, section_indent, current = True, None, None
        elif entry := _SPHINX.match(line):
            inside, current = False, entry["name"]
            found[current] = entry["text"]
        elif not line.strip() or not line[:1].isspace():
            inside, current = inside and not line.strip(), None
        elif (
            inside
            and (entry := _GOOGLE.match(line))
            and len(entry["indent"]) == (section_indent or len(entry["indent"]))
        ):
            section_indent, current = len(entry["indent"]), entry["name"]
            found[current] = entry["text"]
        elif current is not None:
            found[current] = f"{found[current]} {line.strip()}".strip()
    return found
