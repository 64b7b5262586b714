"""`write_file`: a whole file written or text added to its end, so that a crash in between can be judged later.

The effect is one rename. What the file was before and will be after is known before the effect, as SHA-256 images;
recovery compares them with the file before any rule about baselines is asked (it may be this very call that changed
the file).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vv_agent.errors import ToolError
from vv_agent.results import ToolExecutionResult
from vv_agent.tool_metadata import ToolMetadata, ToolSideEffect
from vv_agent.tools.base import Arguments, Intent, ToolContext
from vv_agent.tools.builtin.base import BuiltinTool, workspace_of
from vv_agent.tools.builtin.baselines import current, image, key, require
from vv_agent.tools.output import json_text


@dataclass(eq=False, kw_only=True)
class WriteFile(BuiltinTool):
    """The tool with its three steps of recovery (`Decidable`)."""

    def intend(self, context: ToolContext, arguments: Arguments) -> Intent:
        path: str = arguments["path"]
        try:
            workspace = workspace_of(context)
            before = current(workspace, path)
            return {"path": key(workspace, path), "before": image(before), "after": image(_after(before, arguments))}
        except Exception:  # the call will most likely fail in the same way; should it not, nobody can tell later
            return {"path": path, "before": None, "after": None}

    def examine(
        self, context: ToolContext, arguments: Arguments, intent: Intent
    ) -> Literal["done", "not_done", "ambiguous"]:
        try:
            found = image(current(workspace_of(context), arguments["path"]))
        except Exception:
            return "ambiguous"
        if intent["after"] is None:
            return "ambiguous"
        if found == intent["after"]:
            return "done"
        return "not_done" if found == intent["before"] else "ambiguous"

    def replayed(self, context: ToolContext, arguments: Arguments, intent: Intent) -> ToolExecutionResult:
        return _written(context, arguments, intent["before"], str(intent["after"]))


def _write(context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
    workspace, path = workspace_of(context), arguments["path"]
    before = current(workspace, path)
    image_before = image(before)
    if image_before is not None and not _appends(arguments):
        require(context.file_baselines, key(workspace, path), path, image_before)
    data = _after(before, arguments)

    def still_mine() -> None:
        if image(current(workspace, path)) != image_before:
            raise ToolError(f"The file changed while it was being written: {path}", "file_changed_since_read")
        context.check_claim()

    context.check_claim()
    workspace.write_bytes(path, data, before_rename=still_mine)
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
    try:
        added = _text(arguments).encode()
    except UnicodeEncodeError:
        raise ToolError("content holds an unpaired surrogate; send valid Unicode", "invalid_arguments") from None
    return (before or b"") + added if _appends(arguments) else added


write_file = WriteFile(
    name="write_file",
    description="Write a text file of the workspace.",
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
