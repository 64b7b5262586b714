"""Regular expressions that mean the same in every engine: the subset that `regex` and ripgrep read alike.

Patterns come from a model. They are never run by `re`, which holds the interpreter while it backtracks: `regex` lets
other threads go on and stops at a timeout.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

from vv_agent.errors import ToolError

SECONDS = 1.0
"""How long one search may take; an honest pattern needs a thousandth of it."""
MAX_LENGTH, MAX_REPEATS = 1_000, 100_000
"""Longest pattern in characters; most the counts of its repeats may multiply to (they cost memory to compile)."""


class InvalidPortableRegexError(ToolError):
    """A pattern outside the portable subset, or one that takes too long."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "invalid_exclude_files_pattern")


class Token(NamedTuple):
    """A piece of a pattern: an `escape`, a `class` in brackets, a `repeat`, or `other`."""

    kind: Literal["escape", "class", "repeat", "other"]
    text: str


_TOKEN = re.compile(
    r"(?P<escape>\\(?:[dDwWsSbBntrf]|[!-/:-@\[-`{-~]))"
    r"|(?P<class>\[\^?(?!-)(?:[^\]\[\\]|\\(?:[dDwWsSntrf]|[!-/:-@\[-`{-~]))+\])"
    r"|(?P<repeat>(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??)"
    r"|(?P<other>\((?:\?:)?(?!\?)|[^\\\[{*+?(])",
    re.DOTALL,
)
"""Every alternative begins with another character and none backtracks, so reading a pattern takes linear time."""
_SET_OPERATION = re.compile(r"&&|--|~~|\|\|")


def tokens(pattern: str) -> list[Token] | None:
    """The pieces of a portable pattern; None for one that some engine reads otherwise or not at all."""
    found: list[Token] = []
    at, repeatable = 0, False
    while at < len(pattern):
        match = _TOKEN.match(pattern, at)
        if match is None:
            return None
        kind, text = match.lastgroup, match.group()
        if kind == "class" and _SET_OPERATION.search(text):
            return None
        if kind == "repeat" and not repeatable:
            return None
        repeatable = kind != "repeat" and text not in ("^", "$", "|", "(", "(?:", r"\b", r"\B")
        found.append(Token(kind, text))  # type: ignore[arg-type]  # the groups are named so
        at = match.end()
    return found


def too_large(pattern: str, *, literal: bool = False) -> str | None:
    """Why compiling a pattern could use up memory or time; None when it cannot."""
    if len(pattern) > MAX_LENGTH:
        return f"it has {len(pattern)} characters; {MAX_LENGTH} are allowed"
    product = 1
    if literal:
        return None
    for count in re.findall(r"[0-9]+(?=\s*[,}])", pattern):
        product *= max(1, int(count[:9]))
    return f"its repeat counts multiply to more than {MAX_REPEATS}" if product > MAX_REPEATS else None


def compiled(pattern: str) -> Callable[[str], bool]:
    """A function that says whether a text holds a match; classes such as `\\w` are ASCII.

    `InvalidPortableRegexError` for a pattern that is not portable, and from the function when it takes too long.
    """
    import regex

    refused = InvalidPortableRegexError("exclude_files_pattern must be a valid portable regular expression")
    if too_large(pattern) or tokens(pattern) is None:
        raise refused
    try:
        search = regex.compile(pattern, regex.ASCII).search
    except (regex.error, RecursionError, OverflowError):
        raise refused from None

    def matches(text: str) -> bool:
        try:
            return search(text, timeout=SECONDS) is not None
        except TimeoutError:
            raise InvalidPortableRegexError(
                f"exclude_files_pattern takes too long on a path of {len(text)} characters; make it simpler"
            ) from None

    return matches
