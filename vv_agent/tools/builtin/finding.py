"""`find_files`: the files of a folder by the pattern of their path, newest first, without reading them all."""

from __future__ import annotations

import heapq
import sys
from itertools import islice
from typing import Any

from vv_agent.errors import ToolError
from vv_agent.results import ToolExecutionResult
from vv_agent.tool_metadata import ToolIdempotency, ToolMetadata, ToolSideEffect
from vv_agent.tools.base import Arguments, ToolContext
from vv_agent.tools.builtin.base import BuiltinTool, unfit, workspace_of
from vv_agent.tools.builtin.selection import Selection, shown_roots
from vv_agent.tools.output import error_result
from vv_agent.workspace.base import Walked, shown

MAX_RESULTS, SCAN_LIMIT = 100, 50_000
"""Defaults: files in one answer, and files looked at for it."""
MOST_RESULTS = 5_000


def _find(context: ToolContext, arguments: Arguments) -> ToolExecutionResult | dict[str, Any]:
    wanted, offset = int(arguments.get("max_results", MAX_RESULTS)), int(arguments.get("offset", 0))
    limit = min(int(arguments.get("scan_limit", max(SCAN_LIMIT, wanted))), sys.maxsize)
    if not 1 <= wanted <= MOST_RESULTS:
        raise unfit("max_results", wanted, f"from 1 to {MOST_RESULTS}")
    if limit < wanted:
        raise unfit("scan_limit", limit, f"at least max_results ({wanted})")
    try:
        selection = Selection.of(workspace_of(context), arguments)
    except ToolError as error:
        if error.code != "path_not_found":
            raise
        details = {**error.details, "message": error.message}
        metadata = {"error_code": error.code, **error.details}
        return error_result(context.tool_call_id, error.message, error.code, details, metadata=metadata)
    if selection.is_file:
        raise ToolError(f"{selection.base} is a file, not a directory; file_info describes it", "not_a_directory")
    found, omitted, cut = _scan(context, selection, limit)
    newest = arguments.get("sort", "modified_desc") == "modified_desc" and selection.workspace.folder is not None
    page = (
        heapq.nsmallest(offset + wanted, found, key=lambda file: (-(file.modified or 0.0), file.path))
        if newest
        else found
    )[offset : offset + wanted]
    return _report(selection, page, len(found), omitted, limit if cut else None) | {
        "max_results": wanted,
        "offset": offset,
        "sort": "modified_desc" if newest else "path_asc",
        "truncated": cut or offset + len(page) < len(found),
        **({"remaining_count": rest} if (rest := len(found) - offset - len(page)) > 0 else {}),
    }


def _scan(context: ToolContext, selection: Selection, limit: int) -> tuple[list[Walked], int, bool]:
    """The selected files, how many sensitive ones were left out, and whether the limit ended the walk."""
    found, omitted, scanned = [], 0, 0
    walk = selection.workspace.walk(selection.base, selection.enters)
    for scanned, file in enumerate(islice(walk, limit), 1):
        if scanned % 1000 == 0 and context.cancellation.cancelled:
            raise ToolError("find_files was cancelled", "tool_cancelled")
        if not selection.takes(file.path):
            continue
        if selection.hides(file.path):
            omitted += 1
        else:
            found.append(file)
    return found, omitted, scanned == limit and next(iter(walk), None) is not None


def _report(selection: Selection, page: list[Walked], count: int, omitted: int, limit: int | None) -> dict[str, Any]:
    report: dict[str, Any] = {
        "files": [shown(file.path) for file in page],
        "count": count,
        "returned_count": len(page),
    }
    messages = []
    if limit is not None:
        report |= {"count_is_estimate": True, "scan_limit": limit}
        messages.append(
            f"Only the first {limit} files were looked at; narrow `path`, or raise `scan_limit` to see the rest."
        )
    if selection.ignored_roots:
        report["ignored_roots"] = shown_roots(selection.ignored_roots)
        messages.append(
            "Folders of dependencies and products were left out; name one as `path` or set include_ignored."
        )
    if omitted:
        report["sensitive_files_omitted"] = omitted
    return report | ({"message": " ".join(messages)} if messages else {})


find_files = BuiltinTool(
    name="find_files",
    description=(
        "List files of the workspace by their path, newest first. `path` is the folder to look in, `glob` the "
        "pattern of the path below it: `*` and `?` stay within one name, `**/` stands for any folders, so "
        "`**/*.py` finds Python files everywhere and `*.py` only directly in the folder (there is no parameter "
        "`pattern`). Hidden, ignored (.gitignore, dependencies, build products) and sensitive files are left out "
        "unless include_hidden, include_ignored or include_sensitive asks for them. Returns `files` and how many "
        "there are; when `truncated`, narrow path or glob, or take the next page with offset. At most scan_limit "
        "files are looked at. To find text in files use search_files."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "glob": {"type": "string"},
            "max_results": {"type": "integer"},
            "offset": {"type": "integer", "minimum": 0},
            "sort": {"type": "string", "enum": ["modified_desc", "path_asc"]},
            "scan_limit": {"type": "integer"},
            "include_hidden": {"type": "boolean"},
            "include_ignored": {"type": "boolean"},
            "include_sensitive": {"type": "boolean"},
        },
        "required": [],
    },
    handler=_find,
    tool_metadata=ToolMetadata(ToolSideEffect.READ, ToolIdempotency.SUPPORTED),
)
