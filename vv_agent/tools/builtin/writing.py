"""`write_file`: a whole file written or text added to its end, so that a crash in between can be judged later."""

from __future__ import annotations

from dataclasses import dataclass

from vv_agent.results import ToolExecutionResult
from vv_agent.tool_metadata import ToolMetadata, ToolSideEffect
from vv_agent.tools.base import Arguments, Intent, ToolContext
from vv_agent.tools.builtin.base import workspace_of
from vv_agent.tools.builtin.baselines import current, image, key, require
from vv_agent.tools.builtin.changing import FileChange, replace_file
from vv_agent.tools.output import json_text
from vv_agent.workspace.base import encoded


@dataclass(eq=False, kw_only=True)
class WriteFile(FileChange):
    """The tool with its steps of recovery."""

    def after(self, before: bytes | None, arguments: Arguments) -> bytes:
        return _after(before, arguments)

    def replayed(self, context: ToolContext, arguments: Arguments, intent: Intent) -> ToolExecutionResult:
        return _written(context, arguments, intent["before"], str(intent["after"]))


def _write(context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
    workspace, path = workspace_of(context), arguments["path"]
    before = current(workspace, path)
    image_before = image(before)
    if image_before is not None and not _appends(arguments):
        require(context.file_baselines, key(workspace, path), path, image_before, whole=True)
    data = _after(before, arguments)
    replace_file(context, path, image_before, data)
    return _written(context, arguments, image_before, str(image(data)))


def _written(context: ToolContext, arguments: Arguments, before: str | None, after: str) -> ToolExecutionResult:
    """The success result; the model now knows the file unless it added to one it had not seen as it was."""
    path, appends = arguments["path"], _appends(arguments)
    name = key(workspace_of(context), path)
    if not appends or before is None or context.file_baselines.get(name) == before:
        context.file_baselines[name] = after
    text = _text(arguments)
    report = {
        "ok": True,
        "path": path,
        "append": appends,
        "leading_newline": appends and arguments.get("leading_newline", False),
        "trailing_newline": appends and arguments.get("trailing_newline", False),
        "written_bytes": len(text.encode()),
        "written_chars": len(text),
    }
    metadata = {"changed_files": [name], "operation": "append" if appends else "write", "append": appends}
    return ToolExecutionResult(tool_call_id=context.tool_call_id, content=json_text(report), metadata=metadata)


def _appends(arguments: Arguments) -> bool:
    return bool(arguments.get("append", False))


def _text(arguments: Arguments) -> str:
    """What the call adds to the file or makes of it; the two newlines are for adding only."""
    content: str = arguments["content"]
    if not _appends(arguments):
        return content
    leading = "\n" if arguments.get("leading_newline") else ""
    return leading + content + ("\n" if arguments.get("trailing_newline") else "")


def _after(before: bytes | None, arguments: Arguments) -> bytes:
    """The bytes of the file once the call is done."""
    added = encoded(_text(arguments))
    return (before or b"") + added if _appends(arguments) else added


write_file = WriteFile(
    name="write_file",
    description=(
        "Write a UTF-8 text file of the workspace; missing folders are made. Without `append` the file becomes "
        "exactly `content`: for a new file, or to replace one you have read as a whole (an existing file you have "
        "not read is refused, as is one that changed since). With `append` the text is added to the end of the "
        "file as it is; leading_newline and trailing_newline then put a line break before or after it. To change a "
        "part of a file use edit_file. Returns the bytes and characters that were written."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "content": {"type": "string"},
            "append": {"type": "boolean"},
            "leading_newline": {"type": "boolean"},
            "trailing_newline": {"type": "boolean"},
        },
        "required": ["path", "content"],
    },
    handler=_write,
    tool_metadata=ToolMetadata(ToolSideEffect.WRITE),
)
