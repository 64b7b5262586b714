"""Glob patterns over slash-separated paths, matched in bounded time.

Patterns come from a model, so they are not translated to `re`, where `*a*a*a*b` can hold the interpreter for minutes.
"""

from __future__ import annotations

from collections.abc import Callable


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a relative path matches `pattern` (rules: `WorkspaceBackend.list_files`).

    A trailing `**` means everything below; inside a longer segment `**` is `*`. Brackets have no special meaning.
    """
    segments = [part for part in pattern.strip().replace("\\", "/").split("/") if part not in ("", ".")] or ["**"]
    if segments[-1] == "**":
        segments.append("*")
    return lambda path: _path_matches(segments, path.split("/"))


def _path_matches(pattern: list[str], path: list[str]) -> bool:
    # reached[i]: the segments of the pattern read so far can stand for the first i segments of the path.
    reached = [True] + [False] * len(path)
    for segment in pattern:
        if segment == "**":
            first = next((at for at, hit in enumerate(reached) if hit), len(reached))
            reached = [at >= first for at in range(len(reached))]
        else:
            reached = [False] + [
                hit and _segment_matches(segment, name) for hit, name in zip(reached, path, strict=False)
            ]
    return reached[-1]


def _segment_matches(pattern: str, name: str) -> bool:
    at, star, retry = 0, -1, 0
    position = 0
    while position < len(name):
        if at < len(pattern) and pattern[at] == "*":
            star, retry = at, position
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", name[position]):
            at += 1
            position += 1
        elif star >= 0:  # let the last star take one character more
            retry += 1
            at, position = star + 1, retry
        else:
            return False
    return all(rest == "*" for rest in pattern[at:])
