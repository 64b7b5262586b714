"""Which content of a file the model knows: a file it has not seen as it is now is not overwritten.

`ToolContext.file_baselines` maps a file's canonical path to the SHA-256 (hex) of the content the model has read or
written as a whole, or to `partial:` and the SHA-256 of one it has read a part of: enough to edit it, not to overwrite
it.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Mapping

from vv_agent.errors import ToolError
from vv_agent.workspace.base import FileInfo, WorkspaceBackend, shown

MAX_BYTES = 64 * 2**20
"""Largest file the text tools touch: one model's call must not use up the memory of its worker's other runs."""


PARTIAL = "partial:"


def image(data: bytes | None) -> str | None:
    """SHA-256 (hex) of a file's bytes; None for no file."""
    return None if data is None else hashlib.sha256(data).hexdigest()


def current(workspace: WorkspaceBackend, path: str) -> bytes | None:
    """The bytes of the file, None when nothing is there."""
    info = workspace.file_info(path)
    return None if info is None else contents(workspace, info, path)


def contents(workspace: WorkspaceBackend, info: FileInfo, path: str) -> bytes:
    """The bytes of a file that is there; `ToolError` when it is too large to be held in memory."""
    if info.size > MAX_BYTES:
        raise ToolError(f"{path} has {info.size} bytes; a tool can take {MAX_BYTES}", "workspace_backend_error")
    return workspace.read_bytes(path)


def key(workspace: WorkspaceBackend, path: str) -> str:
    """The one name of a file in the baselines, however the path was written."""
    info = workspace.file_info(path)
    return shown(info.path if info is not None else posixpath.normpath(path))


def remember_part(baselines: dict[str, str], name: str, seen: str) -> None:
    """The model has read a part of the file with this image; it may know the whole already."""
    if baselines.get(name) != seen:
        baselines[name] = PARTIAL + seen


def require(baselines: Mapping[str, str], name: str, path: str, before: str, *, whole: bool) -> None:
    """`ToolError` unless the model has seen the file with the image `before`, as a whole or in part."""
    known = baselines.get(name)
    if known is None or (whole and known.startswith(PARTIAL)):
        what = "the whole file before overwriting it" if whole else "the file before editing it"
        raise ToolError(f"Read {what}: {path}", "file_not_read")
    if known.removeprefix(PARTIAL) != before:
        raise ToolError(f"The file changed since it was read; read it again: {path}", "file_changed_since_read")
