"""Which files the `.gitignore` files of a workspace leave out. The home of pathspec."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from vv_agent.errors import ToolError
from vv_agent.workspace.base import WorkspaceBackend

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

LARGEST = 2**20
"""Bytes of the largest `.gitignore` that is read."""


class Ignored:
    """The rules of all `.gitignore` files from the root down, for what is below `base` (its canonical path, "" is the
    root); read when a folder is first asked about.

    The rules of the deepest file that says something about a path count, as in git; a file below an ignored folder is
    ignored. Where `base` itself is ignored, only the rules from there down count: it was asked for by name.
    """

    def __init__(self, workspace: WorkspaceBackend, base: str = "") -> None:
        self._workspace = workspace
        self._chains: dict[str, tuple[tuple[str, GitIgnoreSpec], ...]] = {}
        self._folders: dict[str, bool] = {"": False}
        self._rules: dict[str, tuple[tuple[str, GitIgnoreSpec], ...] | None] = {}
        """Per folder with files: None when it is ignored, else what may ignore its files."""
        self._floor = ""
        if self.folder(base):
            self._folders, self._chains, self._floor = {base: False}, {}, base

    def folder(self, path: str) -> bool:
        """Whether a folder is ignored, by itself or with one above it."""
        if path not in self._folders:
            self._folders[path] = self.folder(_above(path)) or self._ignored(path, path + "/")
        return self._folders[path]

    def file(self, path: str) -> bool:
        """Whether a file is ignored."""
        above = _above(path)
        if above not in self._rules:
            self._rules[above] = None if self.folder(above) else self._chain(above)
        rules = self._rules[above]
        return rules is None or (rules != () and self._ignored(path, path))

    def applies_above(self, base: str) -> bool:
        """Whether a `.gitignore` above the base says anything about what is below it."""
        return base != self._floor and bool(self._chain(_above(base)))

    def _ignored(self, path: str, asked: str) -> bool:
        for above, spec in self._chain(_above(path)):
            said = spec.check_file(asked[len(above) + 1 :] if above else asked).include
            if said is not None:
                return said
        return False

    def _chain(self, folder: str) -> tuple[tuple[str, GitIgnoreSpec], ...]:
        """The rules that may say something about what is in a folder, from the deepest up."""
        if folder not in self._chains:
            spec = self._read(f"{folder}/.gitignore" if folder else ".gitignore")
            above = () if folder == self._floor else self._chain(_above(folder))
            self._chains[folder] = above if spec is None else ((folder, spec), *above)
        return self._chains[folder]

    def _read(self, path: str) -> GitIgnoreSpec | None:
        try:
            info = self._workspace.file_info(path)
            if info is None or not info.is_file or info.size > LARGEST:
                return None
            text = self._workspace.read_text(path)
        except ToolError:
            return None
        from pathspec import GitIgnoreSpec

        return GitIgnoreSpec.from_lines(text.removeprefix("\ufeff").split("\n"), pattern_factory=_pattern_class())


_MOST_STARS = 3
"""`**` of a line that is read: each more multiplies the ways in which a path can be read."""
_STAR = "[^/]*"


@cache
def _pattern_class() -> Any:
    """The patterns of pathspec, matched in linear time. A line that git could not read either leaves out nothing."""
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    class Linear(GitIgnoreSpecPattern):
        @classmethod
        def pattern_to_regex(cls, pattern: Any) -> tuple[Any, bool | None]:
            try:
                regex, include = super().pattern_to_regex(pattern)
                if regex is None or pattern.count("**") > _MOST_STARS:
                    return None, None
                regex = linear(regex)
                re.compile(regex)
            except (ValueError, re.error, RecursionError, OverflowError):
                return None, None
            return regex, include

    return Linear


def linear(regex: str) -> str:
    """The same pattern without the ways back: what stands between two stars of a name is taken where it is first met,
    which is as good as anywhere else. A repository's `*a*a*a*a*b` would hold the interpreter for minutes."""
    before, *parts = regex.split(_STAR)
    if len(parts) < 3 or any("(" in part or ")" in part for part in parts[:-1]):
        return regex if len(parts) < 5 else "(?!)"
    return before + "".join(f"(?>{_STAR}?{part})" for part in parts[:-1]) + _STAR + parts[-1]


def _above(path: str) -> str:
    return path[: max(0, path.rfind("/"))]
