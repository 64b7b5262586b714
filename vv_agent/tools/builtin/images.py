"""`read_image`: an image for a model that can see, by its URL or from the workspace."""

from __future__ import annotations

import base64
from pathlib import PurePosixPath

from vv_agent.errors import ToolError
from vv_agent.results import ToolExecutionResult
from vv_agent.tool_metadata import ToolIdempotency, ToolMetadata, ToolSideEffect
from vv_agent.tools.base import Arguments, ToolContext
from vv_agent.tools.builtin.base import BuiltinTool, workspace_of
from vv_agent.tools.output import error_result, json_text

MAX_BYTES = 5 * 2**20
"""Size of the largest image that travels in a message."""
_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".bmp": "image/bmp"}


def _read(context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
    path: str = arguments["path"].strip()
    if not path:
        raise ToolError("`path` is required: a path in the workspace or an http(s) URL", "path_required")
    if path.lower().startswith(("http://", "https://")):
        content = {"status": "loaded", "source": "url", "image_url": path}
        return ToolExecutionResult(tool_call_id=context.tool_call_id, content=json_text(content), image_url=path)
    workspace = workspace_of(context)
    mime_type = _TYPES.get(PurePosixPath(path).suffix.lower())
    if mime_type is None:
        raise ToolError(f"{path} is no image of a known format: {', '.join(_TYPES)}", "unsupported_image_format")
    info = workspace.file_info(path)
    if info is None or not info.is_file:
        raise ToolError(f"Image not found: {path}", "image_not_found")
    data = b"" if info.size > MAX_BYTES else workspace.read_bytes(path)
    if (actual := max(info.size, len(data))) > MAX_BYTES:
        sizes = {"max_bytes": MAX_BYTES, "actual_bytes": actual}
        metadata = {"error_code": "image_too_large", **sizes}
        text = "image is too large for inline message transport"
        return error_result(context.tool_call_id, text, "image_too_large", sizes, metadata=metadata)
    content = {
        "status": "loaded",
        "source": "workspace",
        "image_path": info.path,
        "mime_type": mime_type,
        "inline_transport": "data_url",
    }
    return ToolExecutionResult(
        tool_call_id=context.tool_call_id,
        content=json_text(content),
        image_url=f"data:{mime_type};base64,{base64.b64encode(data).decode()}",
        image_path=info.path,
    )


read_image = BuiltinTool(
    name="read_image",
    description=(
        "Look at an image: an http(s) URL, or a png, jpg, webp or bmp file of the workspace up to 5 MB. The image "
        "itself is shown to you after the results of this turn's tools; the result says where it came from. For "
        "text files use read_file."
    ),
    parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    handler=_read,
    tool_metadata=ToolMetadata(ToolSideEffect.READ, ToolIdempotency.SUPPORTED),
)
