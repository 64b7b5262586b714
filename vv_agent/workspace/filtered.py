"""A workspace that does not show some of its files in listings. No security: who knows a path can use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import quote, unquote

from vv_agent.errors import ToolError
from vv_agent.workspace import portable
from vv_agent.workspace.base import FileInfo, Walked, WorkspaceBackend, everywhere
from vv_agent.workspace.memory import key


class DiscoveryFilteredWorkspaceBackend(WorkspaceBackend):
    """`inner` without the files whose normalised path the portable regular expression `pattern` finds a match in.

    Only listings are filtered; everything else passes through. A pattern that is not portable is an
    `InvalidPortableRegexError`.
    """

    def __init__(self, inner: WorkspaceBackend, pattern: str) -> None:
        self.inner = inner
        self.pattern = pattern
        self._search = portable.compiled(pattern)

    @property
    def ref(self) -> str | None:
        inner = self.inner.ref
        return None if inner is None else f"filtered:{quote(self.pattern, safe='')}|{inner}"

    @staticmethod
    def read(quoted: str) -> str:
        """The pattern as it stands in a `ref`."""
        return unquote(quoted)

    @property
    def remedy(self) -> str:
        return self.inner.remedy

    @property
    def folder(self) -> str | None:
        return self.inner.folder

    def outside(self) -> WorkspaceBackend:
        return DiscoveryFilteredWorkspaceBackend(self.inner.outside(), self.pattern)

    def shows(self, path: str) -> bool:
        try:
            name = key(path)
        except ToolError:  # it is no text
            name = path
        return not self._search(name) and self.inner.shows(path)

    def list_files(self, base: str, glob: str) -> list[str]:
        return [path for path in self.inner.list_files(base, glob) if self.shows(path)]

    def walk(self, base: str, enter: Callable[[str], bool] = everywhere) -> Iterator[Walked]:
        return (found for found in self.inner.walk(base, enter) if self.shows(found.path))

    def read_text(self, path: str) -> str:
        return self.inner.read_text(path)

    def read_bytes(self, path: str) -> bytes:
        return self.inner.read_bytes(path)

    def read_found(self, path: str) -> bytes:
        return self.inner.read_found(path)

    def write_text(self, path: str, content: str, *, append: bool = False) -> int:
        return self.inner.write_text(path, content, append=append)

    def write_bytes(self, path: str, data: bytes, *, before_rename: Callable[[], None] | None = None) -> int:
        return self.inner.write_bytes(path, data, before_rename=before_rename)

    def file_info(self, path: str) -> FileInfo | None:
        return self.inner.file_info(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def is_file(self, path: str) -> bool:
        return self.inner.is_file(path)

    def mkdir(self, path: str) -> None:
        self.inner.mkdir(path)
