"""`search_files`: text in the files of the workspace, as files, counts or lines, within what a model can take in."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from vv_agent.results import ToolExecutionResult
from vv_agent.tool_metadata import ToolIdempotency, ToolMetadata, ToolSideEffect
from vv_agent.tools.base import Arguments, ToolContext
from vv_agent.tools.builtin.base import BuiltinTool, unfit, workspace_of
from vv_agent.tools.builtin.counting import SECONDS, Counts, Search, too_slow
from vv_agent.tools.builtin.patterns import Pattern, lines_of
from vv_agent.tools.builtin.selection import Selection, names_of
from vv_agent.tools.output import storable
from vv_agent.workspace.base import shown

HEAD_LIMIT = 250
MAX_LINES, MAX_CHARS = 500, 30_000
"""Most lines and code points of the text."""
MAX_ITEMS, MAX_ITEM_CHARS = 200, 20_000
"""Most rows in the metadata, and code points in them."""
MAX_LINE = 1_000
"""Code points of one line that are shown."""
MOST_AROUND = 100
"""Most lines of context on one side of a match."""


@dataclass(frozen=True)
class Page:
    """Which matches are shown, and how many lines `before` and `after` each."""

    offset: int
    limit: int
    before: int
    after: int

    @classmethod
    def of(cls, arguments: Arguments) -> Page:
        both = arguments.get("c")
        around = [int(arguments.get(name, 0)) if both is None else int(both) for name in ("b", "a")]
        for name, value in zip("ba", around, strict=True):
            if not 0 <= value <= MOST_AROUND:
                raise unfit("c" if both is not None else name, value, f"from 0 to {MOST_AROUND}")
        return cls(int(arguments.get("offset", 0)), int(arguments.get("head_limit", HEAD_LIMIT)), *around)


@dataclass(frozen=True)
class Row:
    """A line that is shown, or a match over several lines; `line` counts from 1."""

    path: str
    line: int
    text: str
    is_match: bool

    def wire(self, numbered: bool) -> dict[str, Any]:
        line = {"line": self.line} if numbered else {}
        return {"path": self.path, **line, "text": self.text, "is_match": self.is_match}

    def rendered(self, numbered: bool) -> str:
        mark = ":" if self.is_match else "-"
        return f"{self.path}{mark}{f'{self.line}{mark}' if numbered else ''}{self.text}"


@dataclass(frozen=True)
class Found:
    """What a search counted, and what of it may be seen."""

    counts: Counts
    files: list[tuple[str, int]]

    @property
    def matches(self) -> int:
        return sum(count for _, count in self.files)

    @property
    def omitted(self) -> int:
        return len(self.counts.files) - len(self.files)


def _search(context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
    page = Page.of(arguments)
    pattern, kind = Pattern.of(arguments), arguments.get("type") or None
    names = names_of(kind)
    selection = Selection.of(workspace_of(context), arguments)
    search = Search(selection, pattern, kind, names, context.cancellation, time.monotonic() + SECONDS)
    counts = search.counts()
    found = Found(counts, [(path, count) for path, count in counts.files if not selection.hides(path)])
    mode = arguments.get("output_mode", "files_with_matches")
    available = found.matches if mode == "content" else len(found.files)
    name, items, lines = _page(search, found, page, mode, arguments.get("n", True))
    returned = sum(item["is_match"] for item in items) if mode == "content" else len(items)
    rest = available > page.offset + returned
    text, cut = _text(_headline(arguments["pattern"], found, rest), lines)
    kept, limits = _structure(items)
    head_limited = 0 < page.limit < available - page.offset
    metadata: dict[str, Any] = {
        "summary": {
            "files_searched": counts.searched, "files_with_matches": len(found.files), "total_matches": found.matches,
        },
        "pattern": arguments["pattern"], "path": arguments.get("path", "."), "glob": arguments.get("glob", "**/*"),
        "type": kind, "output_mode": mode, "literal": pattern.literal, "offset": page.offset,
        "head_limit": page.limit, "head_limited": head_limited, "total_result_items": available,
        "returned_count": returned, "content_truncated": cut or (rest and not head_limited),
        "structured_truncated": bool(limits), "truncated": cut or bool(limits) or rest or not counts.complete,
        **({"sensitive_files_omitted": found.omitted} if found.omitted else {}), **limits, name: kept,
    }  # fmt: skip
    return ToolExecutionResult(tool_call_id=context.tool_call_id, content=storable(text), metadata=metadata)


def _page(search: Search, found: Found, page: Page, mode: str, numbered: bool) -> tuple[str, list[Any], list[str]]:
    """What the metadata call the results, the results, and their lines of text."""
    if mode == "content":
        rows = list(_rows(search, found.files, page))
        return "matches", [row.wire(numbered) for row in rows], [row.rendered(numbered) for row in rows]
    files = [(shown(path), count) for path, count in found.files[page.offset :]][: page.limit or None]
    if mode == "count":
        counts = [{"path": path, "count": count} for path, count in files]
        return "file_counts", counts, [f"{path}: {count}" for path, count in files]
    return "files", [path for path, _ in files], [path for path, _ in files]


def _rows(search: Search, files: list[tuple[str, int]], page: Page) -> Iterator[Row]:
    """The matches of a page with the lines around them, of files that are read for it."""
    offset, room = page.offset, min(page.limit or MAX_LINES, MAX_LINES)
    for path, count in files:
        if offset >= count:
            offset -= count
            continue
        if room <= 0 or search.over():
            return
        text = search.text(path)
        if text is None:  # it changed or went meanwhile
            continue
        try:
            rows = _of_file(search.pattern, text, shown(path), replace(page, offset=offset, limit=room))
        except TimeoutError:
            raise too_slow(path) from None
        yield from rows
        offset, room = 0, room - sum(row.is_match for row in rows)


def _of_file(pattern: Pattern, text: str, path: str, page: Page) -> list[Row]:
    """The rows of one file. A line of the context that matches itself is a row of its own, or beyond the page."""
    lines = lines_of(text)
    wanted = slice(page.offset, page.offset + page.limit)
    if pattern.multiline:
        starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
        spans = list(pattern.spans(text))[wanted]
        found = [(bisect_right(starts, at) - 1, bisect_left(starts, end) - 1, text[at:end]) for at, end in spans]
    else:
        found = [(at, at, lines[at]) for at in list(pattern.lines(text))[wanted]]
    rows: list[Row] = []
    done = 0
    """Lines before this one are shown already."""
    for number, (first, last, match) in enumerate(found):
        following = found[number + 1][0] if number + 1 < len(found) else len(lines)
        rows += [Row(path, at + 1, _short(lines[at]), False) for at in range(max(first - page.before, done), first)]
        rows.append(Row(path, first + 1, _short(match), True))
        done = max(done, first + 1, last + 1)
        until = min(done + page.after, following, len(lines))
        rows += [Row(path, at + 1, _short(lines[at]), False) for at in range(done, until)]
        done = max(done, until)
    return rows


def _short(line: str) -> str:
    text = shown(line.removesuffix("\r"))
    return text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]} [... {len(text) - MAX_LINE} more characters]"


def _headline(pattern: str, found: Found, rest: bool) -> str:
    """The first line: what was found, and why it may not be all."""
    total, files = found.matches, len(found.files)
    said = [
        f"Found {total} {'match' if total == 1 else 'matches'} of {pattern[:200]!r} in {files} "
        f"{'file' if files == 1 else 'files'}"
    ]
    if rest:
        said.append("more than is shown: narrow path, glob or pattern, or go on with offset")
    if found.omitted:
        said.append(f"{found.omitted} sensitive with matches left out (include_sensitive shows them)")
    if not found.counts.complete:
        said.append(f"stopped after {SECONDS:g} s: narrow path, glob or type")
    return "; ".join(said)


def _text(headline: str, lines: list[str]) -> tuple[str, bool]:
    """Headline and lines within the limits, and whether something was cut off."""
    kept, room = [headline], MAX_CHARS - len(headline)
    for line in lines[: MAX_LINES - 1]:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    cut = len(kept) <= len(lines)
    return "\n".join([*kept, "--- TRUNCATED ---"] if cut else kept), cut


def _structure(items: list[Any]) -> tuple[list[Any], dict[str, int]]:
    """The items within the limits of the metadata, and the limit that cut some off."""
    room = MAX_ITEM_CHARS
    for number, item in enumerate(items[:MAX_ITEMS]):
        room -= len(item) if isinstance(item, str) else len(item["path"]) + len(item.get("text", ""))
        if room < 0:
            return items[:number], {"structured_char_limit": MAX_ITEM_CHARS}
    return items[:MAX_ITEMS], {"structured_item_limit": MAX_ITEMS} if len(items) > MAX_ITEMS else {}


_BOOLEANS = ("case_sensitive", "literal", "multiline", "n", "include_hidden", "include_ignored", "include_sensitive")

search_files = BuiltinTool(
    name="search_files",
    description=(
        "Search the text of the workspace's files for a regular expression (or, with literal, for the text as it "
        "is). output_mode says what you get: files_with_matches (the paths, the default), count (matches per file) "
        "or content (the lines, with line numbers unless n is false; a, b and c add lines after, before or around "
        "each match). Narrow with path (a folder or one file), type (such as py, ts, md) or glob, which is matched "
        "against the path below `path`: `**/*.py` is every Python file, `*.py` only those directly in it. "
        "Upper-case letters in the pattern make it case-sensitive unless case_sensitive says otherwise. A pattern "
        "works line by line; multiline lets it match over several lines. At most head_limit results (250; 0 for "
        "all that fit); the next ones with offset. Hidden, ignored (.gitignore, dependencies, build products), "
        "binary and sensitive files are left out; the include_ parameters bring them in. To find files by name use "
        "find_files."
    ),
    parameters={
        "type": "object",
        "properties": {
            "pattern": {"type": "string"},
            "path": {"type": "string"},
            "glob": {"type": "string"},
            "type": {"type": "string"},
            "output_mode": {"type": "string", "enum": ["files_with_matches", "content", "count"]},
            "a": {"type": "integer"},
            "b": {"type": "integer"},
            "c": {"type": "integer"},
            "head_limit": {"type": "integer", "minimum": 0},
            "offset": {"type": "integer", "minimum": 0},
            **{name: {"type": "boolean"} for name in _BOOLEANS},
        },
        "required": ["pattern"],
    },
    handler=_search,
    tool_metadata=ToolMetadata(ToolSideEffect.READ, ToolIdempotency.SUPPORTED),
)
