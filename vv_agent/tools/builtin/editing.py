"""`edit_file`: a piece of a text file exchanged for another, with what a reader of the run wants to see of it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from vv_agent.errors import ToolError
from vv_agent.results import ToolExecutionResult
from vv_agent.tool_metadata import ToolMetadata, ToolSideEffect
from vv_agent.tools.base import Arguments, Intent, ToolContext
from vv_agent.tools.builtin.base import lf_lines, workspace_of
from vv_agent.tools.builtin.baselines import MAX_BYTES, current, image, key, require
from vv_agent.tools.builtin.changing import FileChange, replace_file
from vv_agent.tools.output import json_text
from vv_agent.workspace.base import encoded

MAX_DIFF = 12_000
"""Code points of the diff in a result's metadata."""
AROUND = 3
"""Unchanged lines a diff shows before and after a change."""
_BOM = "\ufeff"


@dataclass(frozen=True)
class Edit:
    """What an edit makes of a text: the places of `old`, and what stands there then."""

    text: str
    old: str
    new: str
    places: tuple[int, ...]

    def made(self, start: int, end: int) -> str:
        """What becomes of this stretch of the text; no place may cross its ends."""
        kept, at = [], start
        for place in self.places[bisect_left(self.places, start) : bisect_left(self.places, end)]:
            kept += [self.text[at:place], self.new]
            at = place + len(self.old)
        return "".join([*kept, self.text[at:end]])

    @property
    def result(self) -> str:
        return self.made(0, len(self.text))


@dataclass(eq=False, kw_only=True)
class EditFile(FileChange):
    """The tool with its steps of recovery."""

    def after(self, before: bytes | None, arguments: Arguments) -> bytes:
        return encoded(_edit(before, arguments).result)

    def intend(self, context: ToolContext, arguments: Arguments) -> Intent:
        intent = super().intend(context, arguments)
        if intent["after"] is not None:  # what the changed file no longer shows
            edit = _edit(current(workspace_of(context), arguments["path"]), arguments)
            intent |= {"replaced": str(len(edit.places)), "line_ending": _line_ending(edit.text)}
        return intent

    def replayed(self, context: ToolContext, arguments: Arguments, intent: Intent) -> ToolExecutionResult:
        metadata = {"line_ending": intent["line_ending"], "diff": "", "diff_truncated": True}
        return _edited(context, arguments, str(intent["after"]), int(intent["replaced"] or 0), metadata)


def _handle(context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
    workspace, path = workspace_of(context), arguments["path"]
    before = current(workspace, path)
    edit = _edit(before, arguments, lambda: _require(context, arguments, before))
    data = encoded(edit.result)
    replace_file(context, path, image(before), data)
    lines = list(_diff(edit, path))
    diff = "".join(lines)
    metadata = {
        "additions": sum(line.startswith("+") for line in lines[2:]),
        "deletions": sum(line.startswith("-") for line in lines[2:]),
        "line_ending": _line_ending(edit.text),
        "diff": diff[:MAX_DIFF],
        "diff_truncated": len(diff) > MAX_DIFF,
    }
    return _edited(context, arguments, str(image(data)), len(edit.places), metadata)


def _require(context: ToolContext, arguments: Arguments, before: bytes | None) -> None:
    path = arguments["path"]
    require(context.file_baselines, key(workspace_of(context), path), path, str(image(before)), whole=False)


def _edit(before: bytes | None, arguments: Arguments, known: Callable[[], None] = lambda: None) -> Edit:
    """The edit the arguments ask for; `ToolError` when it cannot be made. `known` is asked before the text is
    searched."""
    path, old, new = arguments["path"], arguments["old_string"], arguments["new_string"]
    if before is None:
        raise ToolError(f"File not found: {path}", "file_not_found")
    if not old:
        raise ToolError("`old_string` must not be empty; to write a whole file use write_file", "old_string_empty")
    if old == new:
        raise ToolError("`old_string` and `new_string` are the same", "no_changes")
    try:
        text = before.decode()
    except UnicodeDecodeError:
        raise ToolError(f"The file is not UTF-8 text: {path}", "unsupported_encoding") from None
    known()
    if "\r\n" in text and (old not in text or _line_ending(text) == "crlf"):
        old, new = old if old in text else _crlf(old), _crlf(new)
    start = len(_BOM) if text.startswith(_BOM) else 0  # the mark stays, whatever is put in its place
    places = tuple(_places(text, old, start))
    if not places:
        raise ToolError(
            f"`old_string` is not in {path}; it must be exactly the text of the file, without line numbers",
            "old_string_not_found",
        )
    if len(places) > 1 and not arguments.get("replace_all", False):
        raise ToolError(
            f"`old_string` is in {path} {len(places)} times; add lines around it until it is there once, or set "
            "`replace_all`",
            "old_string_not_unique",
            match_count=len(places),
        )
    if (size := len(before) + len(places) * (len(encoded(new)) - len(encoded(old)))) > MAX_BYTES:
        raise ToolError(
            f"The edit would make {path} {size} bytes long; a tool can take {MAX_BYTES}", "workspace_backend_error"
        )
    return Edit(text, old, new, places)


def _crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _places(text: str, old: str, start: int) -> Iterator[int]:
    while (at := text.find(old, start)) >= 0:
        yield at
        start = at + len(old)


def _line_ending(text: str) -> str:
    crlf = text.count("\r\n")
    if not crlf:
        return "lf"
    return "crlf" if crlf == text.count("\n") else "mixed"


def _edited(
    context: ToolContext, arguments: Arguments, after: str, replaced: int, metadata: dict[str, Any]
) -> ToolExecutionResult:
    """The success result. The model knows the new content as well as it knew the old one."""
    path = arguments["path"]
    name = key(workspace_of(context), path)
    known = context.file_baselines.get(name, "")
    context.file_baselines[name] = after if ":" not in known else f"{known.partition(':')[0]}:{after}"
    return ToolExecutionResult(
        tool_call_id=context.tool_call_id,
        content=json_text({"ok": True, "path": path, "replaced_count": replaced}),
        metadata={"changed_files": [name], "operation": "edit", **metadata},
    )


def _diff(edit: Edit, path: str) -> Iterator[str]:
    """The lines of a unified diff, from the places of the change: no search for differences, so it takes linear
    time."""
    lines = lf_lines(edit.text)
    starts = [0, *accumulate(map(len, lines))]
    changed = deque(_changed(edit, starts))
    yield from (f"--- a/{path}\n", f"+++ b/{path}\n")
    grown = 0
    while changed:
        hunk = [changed.popleft()]
        while changed and changed[0][0] - hunk[-1][1] <= 2 * AROUND:
            hunk.append(changed.popleft())
        here = low = max(0, hunk[0][0] - AROUND)
        high = min(len(lines), hunk[-1][1] + AROUND)
        body: list[str] = []
        before = grown
        for first, last in hunk:
            new = lf_lines(edit.made(starts[first], starts[last]))
            body += [f" {line}" for line in lines[here:first]] + [f"-{line}" for line in lines[first:last]]
            body += [f"+{line}" for line in new]
            grown, here = grown + len(new) - (last - first), last
        body += [f" {line}" for line in lines[here:high]]
        yield f"@@ -{low + 1},{high - low} +{low + 1 + before},{high - low + grown - before} @@\n"
        yield from (line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in body)


def _changed(edit: Edit, starts: list[int]) -> list[tuple[int, int]]:
    """The lines that change, as ranges (first, after the last) that do not touch each other."""
    ranges: list[tuple[int, int]] = []
    for at in edit.places:
        first, end = bisect_right(starts, at) - 1, at + len(edit.old)
        last = bisect_left(starts, end)
        within = bool(ranges) and first < ranges[-1][1]
        joins = starts[last] == end and not edit.new.endswith("\n") and (edit.new or within or at != starts[first])
        if joins and last + 1 < len(starts):  # the line break goes, so the next line changes too
            last += 1
        if within:
            first, last = ranges[-1][0], max(last, ranges.pop()[1])
        ranges.append((first, last))
    return ranges


edit_file = EditFile(
    name="edit_file",
    description=(
        "Change a part of a text file: the exact text `old_string` is replaced by `new_string`. Read the file (or "
        "the part you change) first; a file that changed since is refused. old_string must be in the file exactly "
        "once, with its spaces and line breaks and without line numbers: take lines around it until it is unique, "
        "or set replace_all to change every place. An empty new_string deletes. Line endings and a byte order mark "
        "are kept. Returns the number of places that were changed; an error changes nothing."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "old_string": {"type": "string"},
            "new_string": {"type": "string"},
            "replace_all": {"type": "boolean"},
        },
        "required": ["path", "old_string", "new_string"],
    },
    handler=_handle,
    tool_metadata=ToolMetadata(ToolSideEffect.WRITE),
)
