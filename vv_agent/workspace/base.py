"""The interface of a workspace: what the file tools may ask of a backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from vv_agent.errors import ToolError


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file or folder. `path` is its one canonical name, relative to the workspace, with slashes.

    `size` is in bytes; `modified_at` is ISO 8601 in UTC with microseconds; `suffix` has its dot ("" if there is none).
    """

    path: str
    is_file: bool
    is_dir: bool
    size: int
    modified_at: str
    suffix: str


class Walked(NamedTuple):
    """A file met on a walk: its path, its last change in seconds since 1970 (None where the storage does not say
    it for free), its size in bytes, and whether it is a symbolic link."""

    path: str
    modified: float | None = None
    size: int = 0
    is_link: bool = False


def everywhere(path: str) -> bool:
    """Enter every folder."""
    return True


class WorkspaceBackend(ABC):
    """Files below one root. Every path is relative to it; `.` is the root itself.

    Methods may be called from several threads. They raise `ToolError`: `path_escapes_workspace` for a path outside,
    `path_not_found` for a file that is not there, `workspace_backend_error` for what the storage refuses.
    """

    @property
    def ref(self) -> str | None:
        """How a definition names this workspace for other processes; None when none of them could open it."""
        return None

    @property
    def remedy(self) -> str:
        """What to do where a name is needed and `ref` is None."""
        return "name it with CheckpointConfig(capability_refs={'workspace': CapabilityRef(...)})"

    @property
    def folder(self) -> str | None:
        """The absolute path of the root where programs of this machine see the same files; else None."""
        return None

    def outside(self) -> WorkspaceBackend:
        """This workspace for a run that may also use paths outside it; the same one where there is no outside."""
        return self

    def shows(self, path: str) -> bool:
        """Whether listings have the file at this canonical path."""
        return True

    def walk(self, base: str, enter: Callable[[str], bool] = everywhere) -> Iterator[Walked]:
        """The files below `base` in the order of their paths, found one by one: whoever stops early saves the rest.

        `enter` is asked with the path of each folder below `base` and may leave it out; a storage without folders
        ignores it. A missing base has no files.
        """
        return map(Walked, self.list_files(base, ""))

    @abstractmethod
    def list_files(self, base: str, glob: str) -> list[str]:
        """The files below `base` whose path relative to `base` matches, sorted; a missing base has none.

        `*` and `?` stay inside a path segment, a segment `**` stands for zero or more folders, a backslash is a
        slash, and a blank glob is `**/*`. The paths returned are relative to the workspace.
        """

    @abstractmethod
    def read_text(self, path: str) -> str:
        """The file as UTF-8, undecodable bytes replaced by U+FFFD."""

    @abstractmethod
    def read_bytes(self, path: str) -> bytes:
        """The file as it is."""

    def read_found(self, path: str) -> bytes:
        """The file at a path that a walk gave; what is a link there by now may be refused."""
        return self.read_bytes(path)

    @abstractmethod
    def write_text(self, path: str, content: str, *, append: bool = False) -> int:
        """Write `content` as UTF-8, replacing the file or adding to its end; the number of bytes written.

        Missing folders are created. Nobody ever sees half of the new content.
        """

    @abstractmethod
    def file_info(self, path: str) -> FileInfo | None:
        """What is at `path`; None when nothing is."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether a file or folder is at `path`."""

    @abstractmethod
    def is_file(self, path: str) -> bool:
        """Whether a regular file is at `path`."""

    @abstractmethod
    def mkdir(self, path: str) -> None:
        """Make a folder and its parents; a folder that is there already is fine."""

    def write_bytes(self, path: str, data: bytes, *, before_rename: Callable[[], None] | None = None) -> int:
        """Replace the file as a whole; the number of bytes written.

        `before_rename` is called at the last moment before the new content becomes visible; what it raises leaves
        the file as it was. This default serves a backend that only has `write_text`.
        """
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise ToolError(f"this workspace can only hold UTF-8 text: {path}", "unsupported_encoding") from None
        if before_rename is not None:
            before_rename()
        return self.write_text(path, text)


def encoded(content: str) -> bytes:
    """Text as UTF-8; `ToolError` `invalid_arguments` for an unpaired surrogate."""
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise ToolError("content holds an unpaired surrogate; send valid Unicode", "invalid_arguments") from None


def shown(path: str) -> str:
    """A path as text that can be stored: what is no Unicode becomes U+FFFD."""
    return path.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
