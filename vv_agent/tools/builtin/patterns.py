"""The pattern of `search_files`, as ripgrep reads it and as `regex` does, so that both find the same lines.

Bytes that are no UTF-8 are lone surrogates in a decoded text; as in ripgrep no pattern matches them. A `$` also matches
before the CR of a line that ends in CRLF.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vv_agent.errors import ToolError
from vv_agent.tools.base import Arguments
from vv_agent.workspace import portable

SECONDS = 2.0
"""How long a pattern may work on one file; an honest one needs a thousandth of it."""
_RECURSES = re.compile(r"(?<!\\)\(\?(?:R\)|[+-]?\d+\)|&|P>)")
"""Such a pattern takes up to a gigabyte."""
_NO_TEXT = "\udc80-\udcff"
_SPACE = r"\t\n\x0b\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


@dataclass(frozen=True)
class Pattern:
    """`search` is what `regex` compiled; `ripgrep` is None for a pattern that only `regex` reads as it is meant."""

    search: Any
    ripgrep: str | None
    literal: bool
    insensitive: bool
    multiline: bool

    @classmethod
    def of(cls, arguments: Arguments) -> Pattern:
        """The pattern of a call; `ToolError` `invalid_arguments` when it is none."""
        import regex

        text: str = arguments["pattern"]
        literal, multiline = arguments.get("literal", False), arguments.get("multiline", False)
        insensitive = not arguments.get("case_sensitive", any(letter.isupper() for letter in text))
        flags = regex.MULTILINE | (regex.IGNORECASE if insensitive else 0) | (regex.DOTALL if multiline else 0)
        if not multiline and _breaks_lines(text, literal):
            raise _wrong(text, "it holds a line break; set `multiline` to match over several lines")
        reason = portable.too_large(text, literal=literal) or ("it is empty" if not text else None)
        if reason is None and not literal and _RECURSES.search(text):
            reason = "it calls itself or a group of its own, which no search here does"
        if reason is not None:
            raise _wrong(text, reason)
        found = None if literal else portable.tokens(text)
        if literal:
            here, there = regex.escape(text), None if "\0" in text else text
        elif found is None or not _alike(found):
            here, there = text, None
        else:
            here = "".join(_in_python(token, multiline) for token in found)
            there = "".join(r"(?:\r?$)" if token.text == "$" else token.text for token in found)
        try:
            return cls(regex.compile(here, flags).search, there, literal, insensitive, multiline)
        except (regex.error, RecursionError, OverflowError) as error:
            raise _wrong(text, str(error) or type(error).__name__) from None

    def count(self, text: str) -> int:
        """How many lines match, or in a multiline search how many matches there are."""
        if self.multiline:
            return sum(1 for _ in self.spans(text))
        return sum(1 for _ in self.lines(text))

    def lines(self, text: str) -> Iterator[int]:
        """The numbers, from 0, of the lines that match."""
        if self.ripgrep is None:
            for number, line in enumerate(lines_of(text)):
                if self._finds(line.removesuffix("\r")):
                    yield number
            return
        number, start = 0, 0
        while (match := self.search(text, start, timeout=SECONDS, concurrent=True)) is not None:
            at = match.start()  # no line before the one with `at` matches; that one may, or the match goes beyond it
            number += text.count("\n", start, at)
            start = max(start, text.rfind("\n", start, at) + 1)
            if start == len(text):
                return
            end = text.find("\n", at)
            if self._finds(text[start : end if end >= 0 else None]):
                yield number
            if end < 0:
                return
            number, start = number + 1, end + 1

    def _finds(self, line: str) -> bool:
        return self.search(line, timeout=SECONDS, concurrent=True) is not None

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where the matches of a multiline search are; an empty match at the very end is none."""
        at = 0
        while at <= len(text) and (match := self.search(text, at, timeout=SECONDS, concurrent=True)) is not None:
            start, end = match.span()
            if start == len(text):
                return
            yield start, end
            at = end if end > start else end + 1


def lines_of(text: str) -> list[str]:
    """The lines of a text without their LF."""
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def _in_python(token: portable.Token, multiline: bool) -> str:
    kind, text = token
    if text == ".":
        return f"[^{_NO_TEXT}]" if multiline else f"[^\n{_NO_TEXT}]"
    if text == "$":
        return r"(?:\r?$)"
    if kind == "class" and text.startswith("[^"):
        return f"[^{_NO_TEXT}{text[2:]}".replace(r"\s", _SPACE)
    if kind == "class":
        return text.replace(r"\s", _SPACE)
    if text == r"\s":
        return f"[{_SPACE}]"
    if text == r"\S":
        return f"[^{_NO_TEXT}{_SPACE}]"
    if text in (r"\W", r"\D"):
        return f"[^{_NO_TEXT}{text.lower()}]"
    return text


def _alike(tokens: list[portable.Token]) -> bool:
    """Whether both engines can be told the same: no negated class within a class, and no NUL, which no argument of a
    program can hold."""
    return not any(
        "\0" in token.text or (token.kind == "class" and any(part in token.text for part in (r"\W", r"\D", r"\S")))
        for token in tokens
    )


def _breaks_lines(text: str, literal: bool) -> bool:
    if "\n" in text:
        return True
    found = None if literal else portable.tokens(text)
    return found is not None and any(
        token.text == r"\n" or (token.kind == "class" and not token.text.startswith("[^") and r"\n" in token.text)
        for token in found
    )


def _wrong(text: str, reason: str) -> ToolError:
    return ToolError(f"`pattern` {text[:100]!r} cannot be searched for: {reason}", "invalid_arguments")
