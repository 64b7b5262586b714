"""A workspace in the memory of this process, for tests and for runs that leave nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import PurePosixPath

from vv_agent.errors import ToolError
from vv_agent.workspace.base import FileInfo, WorkspaceBackend, encoded, shown
from vv_agent.workspace.glob import matcher


class MemoryWorkspaceBackend(WorkspaceBackend):
    """Files by their path. Nothing leads out: `..` at the root stays there, `/a` is `a`. Gone with the process."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._folders: set[str] = {"."}
        self._lock = threading.RLock()

    @property
    def remedy(self) -> str:
        return "no other process can see files in memory: use a folder or S3, or a run without a checkpoint"

    def list_files(self, base: str, glob: str) -> list[str]:
        below, matches = prefix(base), matcher(glob)
        with self._lock:
            return sorted(name for name in self._files if name.startswith(below) and matches(name[len(below) :]))

    def read_text(self, path: str) -> str:
        return self.read_bytes(path).decode("utf-8", "replace")

    def read_bytes(self, path: str) -> bytes:
        name = key(path)
        with self._lock:
            if name in self._folders:
                raise ToolError(f"{shown(path)}: Is a directory", "workspace_backend_error")
            if name not in self._files:
                raise ToolError(f"path not found: {shown(path)}", "path_not_found")
            return self._files[name]

    def write_text(self, path: str, content: str, *, append: bool = False) -> int:
        data = encoded(content)
        with self._lock:
            before = self._files.get(key(path), b"") if append else b""
            self.write_bytes(path, before + data)
        return len(data)

    def write_bytes(self, path: str, data: bytes, *, before_rename: Callable[[], None] | None = None) -> int:
        name = key(path)
        with self._lock:
            if name in self._folders:
                raise ToolError(f"{shown(path)}: Is a directory", "workspace_backend_error")
            folders = self._parents(name, path)
            if before_rename is not None:
                before_rename()
            self._folders |= folders
            self._files[name] = data
        return len(data)

    def file_info(self, path: str) -> FileInfo | None:
        name = key(path)
        with self._lock:
            is_dir, data = name in self._folders, self._files.get(name)
        if data is None and not is_dir:
            return None
        return FileInfo(
            path=name,
            is_file=not is_dir,
            is_dir=is_dir,
            size=len(data or b""),
            modified_at=datetime.now(UTC).isoformat(timespec="microseconds"),
            suffix="" if is_dir else PurePosixPath(name).suffix,
        )

    def exists(self, path: str) -> bool:
        return self.file_info(path) is not None

    def is_file(self, path: str) -> bool:
        with self._lock:
            return key(path) in self._files

    def mkdir(self, path: str) -> None:
        name = key(path)
        with self._lock:
            if name in self._files:
                raise ToolError(f"{shown(path)}: File exists", "workspace_backend_error")
            self._folders |= self._parents(name, path) | {name}

    def _parents(self, name: str, path: str) -> set[str]:
        parents = {str(parent) for parent in PurePosixPath(name).parents}
        if parents & self._files.keys():
            raise ToolError(f"{shown(path)}: Not a directory", "workspace_backend_error")
        return parents


def key(path: str) -> str:
    """The one name of a path: `.` and empty segments dropped, `..` takes one back but never above the root."""
    if "\0" in path or shown(path) != path:
        raise ToolError(f"Path escapes workspace: {shown(path)}", "path_escapes_workspace")
    steps: list[str] = []
    for part in path.replace("\\", "/").split("/"):
        if part == "..":
            del steps[-1:]
        elif part not in ("", "."):
            steps.append(part)
    return "/".join(steps) or "."


def prefix(base: str) -> str:
    """What the names of files below a folder begin with."""
    return "" if (name := key(base)) == "." else name + "/"
