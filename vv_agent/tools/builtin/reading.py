"""`read_file` and `file_info`: one file of the workspace, its text within what a model can take in."""

from __future__ import annotations

from typing import Any

from vv_agent.errors import ToolError
from vv_agent.tool_metadata import ToolIdempotency, ToolMetadata, ToolSideEffect
from vv_agent.tools.base import Arguments, ToolContext
from vv_agent.tools.builtin.base import BuiltinTool, lf_lines, workspace_of
from vv_agent.tools.builtin.baselines import contents, image, key, remember_part
from vv_agent.workspace.base import FileInfo

MAX_LINES = 2_000
MAX_CHARS = 50_000
"""Most lines and code points of one result; a longer range gives its size instead of its text."""


def _read(context: ToolContext, arguments: Arguments) -> dict[str, Any]:
    workspace = workspace_of(context)
    path: str = arguments["path"]
    info = _file(workspace.file_info(path), path)
    data = contents(workspace, info, path)
    lines = _lines(data, path)
    start, end = _range(arguments, len(lines))
    selected = lines[start - 1 : end]
    seen, name = str(image(data)), key(workspace, path)
    report = {
        "path": path,
        "start_line": start,
        "end_line": end,
        "show_line_numbers": arguments.get("show_line_numbers", False),
    }
    if len(selected) > MAX_LINES or sum(map(len, selected)) > MAX_CHARS:
        remember_part(context.file_baselines, name, seen)
        return {**report, "content": None, **_too_long(lines, start, end)}
    if {"start_line", "end_line"} & arguments.keys():
        remember_part(context.file_baselines, name, seen)
    else:
        context.file_baselines[name] = seen
    return {**report, "content": _rendered(selected, start, report["show_line_numbers"])}


def _file(info: FileInfo | None, path: str) -> FileInfo:
    if info is None or not info.is_file:
        raise ToolError(f"File not found: {path}", "file_not_found")
    return info


def _lines(data: bytes, path: str) -> list[str]:
    """The lines with their ends."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ToolError(f"The file is not UTF-8 text: {path}", "unsupported_encoding") from None
    return lf_lines(text)


def _range(arguments: Arguments, total: int) -> tuple[int, int]:
    """First and last line, counted from 1; an end beyond the file is the end of the file."""
    start = int(arguments.get("start_line", 1))
    end = int(arguments.get("end_line", max(total, start)))
    if end < start:
        raise ToolError(f"end_line {end} is before start_line {start}", "invalid_arguments")
    if start > max(total, 1):
        raise ToolError(f"start_line {start} is beyond the file, which has {total} lines", "invalid_arguments")
    return start, min(end, total)


def _rendered(lines: list[str], start: int, numbered: bool) -> str:
    if not numbered:
        return "".join(lines)
    return "\n".join(f"{number}: {line}" for number, line in enumerate((text.rstrip("\r\n") for text in lines), start))


def _too_long(lines: list[str], start: int, end: int) -> dict[str, Any]:
    """What stands in place of the text: sizes, limits and a range that fits."""
    fits, room = 0, MAX_CHARS
    for line in lines[start - 1 : min(end, start - 1 + MAX_LINES)]:
        room -= len(line)
        if room < 0:
            break
        fits += 1
    return {
        "file_info": {"total_lines": len(lines), "total_chars": sum(map(len, lines))},
        "requested": {"start_line": start, "end_line": end},
        "limits": {"max_lines": MAX_LINES, "max_chars": MAX_CHARS},
        "suggested_range": {"start_line": start, "end_line": start + max(fits, 1) - 1},
        "message": "The requested lines are too long for one result; read a smaller range",
    }


def _info(context: ToolContext, arguments: Arguments) -> dict[str, Any]:
    path: str = arguments["path"]
    info = workspace_of(context).file_info(path)
    if info is None:
        raise ToolError(f"path not found: {path}", "path_not_found", path=path)
    report = {
        "path": info.path,
        "exists": True,
        "is_file": info.is_file,
        "is_dir": info.is_dir,
        "size": info.size,
        "modified_at": info.modified_at,
    }
    return {**report, "suffix": info.suffix} if info.is_file else report


read_file = BuiltinTool(
    name="read_file",
    description=(
        "Read a UTF-8 text file of the workspace, whole or from start_line to end_line (counted from 1, both "
        "included). Read a file before you change it: edit_file and write_file refuse a file you have not seen as "
        f"it is now. At most {MAX_LINES} lines or {MAX_CHARS} characters fit into one answer; for a longer range "
        "`content` is null and `suggested_range` says which lines to ask for. show_line_numbers writes `N: ` "
        "before each line; leave these numbers out of what you give edit_file. For images use read_image, to find "
        "a place in a large file search_files."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "start_line": {"type": "integer", "minimum": 1},
            "end_line": {"type": "integer", "minimum": 1},
            "show_line_numbers": {"type": "boolean"},
        },
        "required": ["path"],
    },
    handler=_read,
    tool_metadata=ToolMetadata(ToolSideEffect.READ, ToolIdempotency.SUPPORTED),
)

file_info = BuiltinTool(
    name="file_info",
    description=(
        "Look at one path of the workspace without reading it: whether it is a file or a folder, its size in "
        "bytes, when it was last changed (UTC) and its suffix. Use it to see whether a file is there or too large "
        "to read. A path where nothing is gives the error path_not_found."
    ),
    parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    handler=_info,
    tool_metadata=ToolMetadata(ToolSideEffect.READ, ToolIdempotency.SUPPORTED),
)
