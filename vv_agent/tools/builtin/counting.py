"""How often a pattern is in each file of a selection: counted by ripgrep where it is installed, else by ourselves.

Both give the same counts; only the number of files that were looked into may differ.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from vv_agent.cancellation import CancellationToken
from vv_agent.errors import ToolError
from vv_agent.tools.builtin.patterns import Pattern
from vv_agent.tools.builtin.selection import IGNORED_ROOTS, TYPES, Selection
from vv_agent.workspace.identity import is_ours

SECONDS = 30.0
"""How long one search may take; what was found until then is its result."""
MAX_BYTES = 16 * 2**20
"""Size of the largest file that is searched."""


@dataclass
class Counts:
    """`files` are those with matches, sorted by path, each with its count; `complete` is False when time ran out."""

    files: list[tuple[str, int]] = field(default_factory=list)
    searched: int = 0
    complete: bool = True


@dataclass(frozen=True)
class Search:
    """What is counted: a pattern in the selected files whose name `names` accepts. `ends` is on the monotonic
    clock."""

    selection: Selection
    pattern: Pattern
    kind: str | None
    names: Callable[[str], bool]
    cancellation: CancellationToken
    ends: float

    def counts(self) -> Counts:
        """By ripgrep if it can, else file by file."""
        return _by_ripgrep(self) or _one_by_one(self, self._paths())

    def text(self, path: str) -> str | None:
        """The text of a file; None when it is binary, too large or cannot be read."""
        try:
            return decoded(self.selection.workspace.read_found(path))
        except ToolError:
            return None

    def over(self) -> bool:
        """Whether the time is up; raises when the call is cancelled."""
        if self.cancellation.cancelled:
            raise ToolError("search_files was cancelled", "tool_cancelled")
        return time.monotonic() > self.ends

    def _paths(self) -> Iterator[str]:
        selection = self.selection
        if selection.info is not None and selection.is_file:
            if selection.info.size > MAX_BYTES:
                raise ToolError(
                    f"{selection.base} has {selection.info.size} bytes; files of up to {MAX_BYTES} are searched: read "
                    "parts of it with bash",
                    "workspace_backend_error",
                )
            yield selection.info.path
            return
        for file in selection.workspace.walk(selection.base, selection.enters):
            if not file.is_link and file.size <= MAX_BYTES and self.names(file.path) and selection.takes(file.path):
                yield file.path


def decoded(data: bytes) -> str | None:
    """A file as text: UTF-8, or UTF-16 with its mark; bytes that are neither become lone surrogates. None for a
    binary file, which is one that holds a NUL."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = data.decode("utf-16", "replace")
    elif b"\0" in data:
        return None
    else:
        text = data.decode("utf-8-sig", "surrogateescape")
    return None if "\0" in text else text


def _one_by_one(search: Search, paths: Iterator[str]) -> Counts:
    counts = Counts()
    for path in paths:
        if search.over():
            counts.complete = False
            break
        text = search.text(path)
        counts.searched += 1
        if text is not None and (count := _count(search.pattern, text, path)):
            counts.files.append((path, count))
    return counts


def _count(pattern: Pattern, text: str, path: str) -> int:
    try:
        return pattern.count(text)
    except TimeoutError:
        raise too_slow(path) from None


def too_slow(path: str) -> ToolError:
    """The error for a pattern that a file makes backtrack without end."""
    return ToolError(
        f"`pattern` takes too long on {path}; make it simpler (no repeat of a repeat, as in (a+)+), or set `literal`",
        "invalid_arguments",
    )


# ripgrep


def _by_ripgrep(search: Search) -> Counts | None:
    """None when ripgrep is not there, or not able to do this search."""
    selection, pattern = search.selection, search.pattern
    folder, program = selection.workspace.folder, shutil.which("rg")
    if program is None or not os.path.isabs(program) or folder is None or pattern.ripgrep is None:
        return None
    if selection.is_file or selection.root.startswith("/") or not os.path.isdir(folder):
        return None
    with tempfile.TemporaryFile() as output:  # not a pipe, which would wake us for every file
        try:
            command = [program, *_options(search), "-e", pattern.ripgrep, "--", f"./{selection.root}"]
            running = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE
            )
        except (OSError, ValueError):  # it or the folder is gone, or an argument is too long or holds a NUL
            return None
        forget = search.cancellation.on_cancel(running.kill)
        try:
            problems = running.communicate(timeout=max(0.0, search.ends - time.monotonic()))[1]
            complete = True
        except subprocess.TimeoutExpired:
            problems, complete = b"", False
        finally:
            forget()
            running.kill()
            running.communicate()
        output.seek(0)
        said = output.read()
    search.over()
    if complete and (running.returncode < 0 or (running.returncode > 1 and problems.strip())):
        return None  # somebody killed it, the pattern is too large for it, or it is an old version
    counted = Counts(list(_read(search, said)), complete=complete)
    files = re.search(rb"^(\d+) files searched$", said[-1_000:], re.MULTILINE)
    counted.searched = int(files[1]) if files else len(counted.files)
    counted.files.sort()
    return _recounted(search, counted) if pattern.multiline else counted


def _options(search: Search) -> list[str]:
    selection, pattern = search.selection, search.pattern
    options = [
        "--no-config", "--no-messages", "--color=never", "--count", "--null", "--with-filename", "--stats",
        f"--max-filesize={MAX_BYTES}", "--no-ignore-dot", "--no-ignore-exclude", "--no-ignore-global",
        "--no-ignore-parent", "--no-require-git", "--ignore-case" if pattern.insensitive else "--case-sensitive",
    ]  # fmt: skip
    if pattern.literal:
        options.append("--fixed-strings")
    if pattern.multiline:
        options += ["--multiline", "--multiline-dotall"]
    if selection.include_hidden:
        options.append("--hidden")
    if selection.include_ignored:
        options.append("--no-ignore")
    elif not selection.root and selection.workspace.folder is not None:
        present = [name for name in os.listdir(selection.workspace.folder) if name.lower() in IGNORED_ROOTS]
        options += [f"--glob=!/{name}/" for name in present]  # a rule that meets nothing costs as well
    parts = [part for part in selection.glob.strip().replace("\\", "/").split("/") if part not in ("", ".")]
    names = TYPES[search.kind] if search.kind else tuple(parts[-1:])
    if names not in ((), ("*",), ("**",)) and not names[0].startswith("include:"):  # which rg would read otherwise
        plain = [re.sub(r"[][{}]", r"[\g<0>]", name) for name in names]  # brackets mean nothing in our globs
        options += [*(f"--type-add=vv:{name}" for name in plain), "--type=vv"]
    return options


def _read(search: Search, output: bytes) -> Iterator[tuple[str, int]]:
    """The files and counts of the output; what ripgrep does not know of the selection is taken out."""
    fits = search.selection.fits
    for found in _COUNTED.finditer(output):
        path = os.fsdecode(found[1])
        if search.names(path) and fits(path) and not is_ours(path[path.rfind("/") + 1 :]):
            yield path, int(found[2])


_COUNTED = re.compile(rb"\./([^\0]+)\0(\d+)\n")
"""A path, which may hold line breaks, and its count."""


def _recounted(search: Search, found: Counts) -> Counts:
    """Matches instead of lines, in the files that have any."""
    counted = _one_by_one(search, (path for path, _ in found.files))
    return Counts(counted.files, found.searched, found.complete and counted.complete)
