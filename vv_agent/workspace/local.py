"""A workspace in a folder of this machine.

Paths are resolved through symlinks and must end up below the root. After that check every step down from the root is
opened by file descriptor without following links, so a folder or file that is swapped for a symlink between the check
and the use is refused, not followed. New content goes to a temporary file beside the target and is renamed over it.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from vv_agent.errors import CannotServe, ConfigError, ToolError
from vv_agent.workspace import descriptors
from vv_agent.workspace.base import FileInfo, Walked, WorkspaceBackend, encoded, everywhere, shown
from vv_agent.workspace.glob import matcher
from vv_agent.workspace.identity import ID_FILE, create_id, is_ours, read_id

_APPENDING = threading.Lock()
"""Held while a file grows: of two threads that append, the second one begins with what the first one wrote."""
_Entry = tuple[str, os.stat_result | None, bool]
"""A name (a folder's has its slash, which puts paths in order), a file's status, and whether it is a link."""


class LocalWorkspaceBackend(WorkspaceBackend):
    """The files below `root` (`~` allowed), which is created by the first write.

    With `allow_outside_root` paths may lead out of it; such a file's one name is its absolute path.
    """

    def __init__(self, root: str | os.PathLike[str], allow_outside_root: bool = False) -> None:
        self.root = Path(os.path.realpath(os.path.expanduser(root)))
        self.allow_outside_root = allow_outside_root

    def __repr__(self) -> str:
        return f"LocalWorkspaceBackend({str(self.root)!r})"

    @property
    def id(self) -> str | None:
        """The id in the root's `.vv-agent-workspace`, made when first asked for; None in a root that is read-only."""
        with self._mapped("."), self._folder((), create=True) as root:
            return read_id(root, self.root) or create_id(root, self.root)

    @property
    def ref(self) -> str:
        """`local:<absolute path>#<id>`; the id is empty when the root is read-only."""
        return f"local:{self.root}#{self.id or ''}"

    @property
    def folder(self) -> str:
        return str(self.root)

    def outside(self) -> LocalWorkspaceBackend:
        return LocalWorkspaceBackend(self.root, allow_outside_root=True)

    def list_files(self, base: str, glob: str) -> list[str]:
        prefix, matches = self._prefix(self._locate(base)), matcher(glob)
        return [found.path for found in self.walk(base) if matches(found.path[len(prefix) :])]

    def walk(self, base: str, enter: Callable[[str], bool] = everywhere) -> Iterator[Walked]:
        """Links to folders are not entered (they may form a circle), links to files count when they end inside;
        folders that cannot be read are left out."""
        parts = self._locate(base)
        here: list[_Entry] = []
        with self._mapped(base), suppress(FileNotFoundError, NotADirectoryError), self._folder(parts) as folder:
            here = self._listed(folder, self._prefix(parts))
        ways = [(parts, self._prefix(parts), iter(here))]
        while ways:
            parts, prefix, entries = ways[-1]
            for name, status, is_link in entries:
                if status is not None:
                    yield Walked(prefix + name, status.st_mtime, status.st_size, is_link)
                elif enter(prefix + name[:-1]):
                    below = (*parts, name[:-1])
                    with suppress(OSError), self._folder(below) as folder:
                        ways.append((below, prefix + name, iter(self._listed(folder, prefix + name))))
                        break
            else:
                ways.pop()

    def read_text(self, path: str) -> str:
        return self.read_bytes(path).decode("utf-8", "replace")

    def read_bytes(self, path: str) -> bytes:
        with self._mapped(path), self._parent(path) as (folder, name):
            return descriptors.read(folder, name)

    def read_found(self, path: str) -> bytes:
        *folders, name = Path(path).parts if path.startswith("/") else path.split("/")
        with self._mapped(path), self._folder(tuple(folders)) as folder:
            return descriptors.read(folder, name)

    def write_text(self, path: str, content: str, *, append: bool = False) -> int:
        data = encoded(content)
        with _APPENDING if append else nullcontext():
            before = self.read_bytes(path) if append and self.is_file(path) else b""
            self.write_bytes(path, before + data)
        return len(data)

    def write_bytes(self, path: str, data: bytes, *, before_rename: Callable[[], None] | None = None) -> int:
        """Replace the file as a whole, keeping the mode it had. After a power loss the file is the old or the new one,
        never an empty or a partial one."""
        with self._mapped(path), self._parent(path, create=True) as (folder, name):
            if is_ours(name):
                raise ToolError(
                    f"{name} belongs to the workspace itself; write another file", "workspace_backend_error"
                )
            mode = descriptors.writable_mode(folder, name)
            temporary = f"{ID_FILE}.{secrets.token_hex(8)}.tmp"
            try:
                with open(os.open(temporary, descriptors.NEW, 0o666, dir_fd=folder), "wb") as file:
                    file.write(data)
                    if mode is not None:
                        os.fchmod(file.fileno(), mode)
                    file.flush()
                    os.fsync(file.fileno())
                if before_rename is not None:
                    before_rename()
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise
        return len(data)

    def file_info(self, path: str) -> FileInfo | None:
        parts = self._locate(path)
        with self._mapped(path):
            status = self._status(parts)
        if status is None:
            return None
        relative = PurePosixPath(*parts)
        is_dir = stat.S_ISDIR(status.st_mode)
        return FileInfo(
            path=str(relative),
            is_file=stat.S_ISREG(status.st_mode),
            is_dir=is_dir,
            size=status.st_size,
            modified_at=datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="microseconds"),
            suffix="" if is_dir else relative.suffix,
        )

    def exists(self, path: str) -> bool:
        return self.file_info(path) is not None

    def is_file(self, path: str) -> bool:
        info = self.file_info(path)
        return info is not None and info.is_file

    def mkdir(self, path: str) -> None:
        parts = self._locate(path)
        with self._mapped(path), self._folder(parts, create=True):
            pass

    def _locate(self, path: str) -> tuple[str, ...]:
        """The steps from the root to what `path` names, all symlinks resolved. Outside is an error or, where that is
        allowed, gives the steps from `/`, the first of which is `/` itself.

        A path the file system cannot name (a NUL byte, an unpaired surrogate) counts as outside.
        """
        try:
            if "\0" in path:
                raise ValueError("NUL byte")
            root = str(self.root)
            resolved = os.path.realpath(os.path.normpath(os.path.join(root, os.path.expanduser(path))))
            os.fsencode(resolved)
            if os.path.commonpath((root, resolved)) == root:
                return tuple(part for part in resolved[len(root) :].split("/") if part)
            if self.allow_outside_root:
                return Path(resolved).parts
            raise _escapes(path)
        except (ValueError, RuntimeError):
            raise _escapes(path) from None
        except OSError as error:
            raise _refused(path, error) from error

    @contextmanager
    def _mapped(self, path: str) -> Iterator[None]:
        """Errors of the operating system as errors of the workspace."""
        try:
            yield
        except FileNotFoundError as error:
            raise ToolError(f"path not found: {path}", "path_not_found") from error
        except OSError as error:
            if error.errno == errno.ELOOP:  # O_NOFOLLOW met a symlink that was not there when the path was resolved
                raise _escapes(path) from error
            raise _refused(path, error) from error

    @contextmanager
    def _folder(self, parts: tuple[str, ...], *, create: bool = False) -> Iterator[int]:
        """The folder at these steps as an open descriptor."""
        if create:
            os.makedirs(self.root, exist_ok=True)
        start, below_start = (parts[0], parts[1:]) if parts[:1] == ("/",) else (self.root, parts)
        folder = os.open(start, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in below_start:
                below = descriptors.step(folder, part, create)
                os.close(folder)
                folder = below
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def _parent(self, path: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """The folder of a file as an open descriptor, with the file's name in it."""
        parts = self._locate(path)
        if parts in ((), ("/",)):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with self._folder(parts[:-1], create=create) as folder:
            yield folder, parts[-1]

    def _status(self, parts: tuple[str, ...]) -> os.stat_result | None:
        try:
            if parts in ((), ("/",)):
                return os.stat(parts[0] if parts else self.root)
            with self._folder(parts[:-1]) as folder:
                status = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISLNK(status.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return status

    def _listed(self, folder: int, prefix: str) -> list[_Entry]:
        """What is in an open folder, in the order of full paths."""
        with os.scandir(folder) as entries:
            found: list[_Entry] = []
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        found.append((entry.name + "/", None, False))
                    elif entry.is_file(follow_symlinks=False):
                        if not is_ours(entry.name):
                            found.append((entry.name, entry.stat(follow_symlinks=False), False))
                    elif entry.is_symlink():
                        status = self._status(self._locate(prefix + entry.name))
                        if status is not None and stat.S_ISREG(status.st_mode):
                            found.append((entry.name, status, True))
                except (OSError, ToolError):  # it vanished while it was looked at
                    continue
            return sorted(found)

    @staticmethod
    def _prefix(parts: tuple[str, ...]) -> str:
        """What paths below the folder at these steps begin with."""
        return str(PurePosixPath(*parts)).rstrip("/") + "/" if parts else ""


def open_local(name: str) -> LocalWorkspaceBackend:
    """The workspace that `LocalWorkspaceBackend.ref` named: `<absolute path>#<id>`.

    `CannotServe` `workspace_unavailable` when this machine does not have the folder, or has one with another id: a
    worker elsewhere may have it. A folder is never marked here.
    """
    root, _, wanted = name.rpartition("#")
    if not os.path.isabs(root):
        raise CannotServe("workspace_unavailable", f"workspace {name!r} is not named by an absolute path and an id")
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            found = read_id(folder, Path(root))
        finally:
            os.close(folder)
    except (OSError, ValueError, ConfigError) as error:
        raise CannotServe("workspace_unavailable", f"workspace {root} cannot be opened here: {error}") from error
    if (found or "") != wanted:
        raise CannotServe(
            "workspace_unavailable",
            f"the folder {root} is another workspace here (id {found or 'none'}, not {wanted or 'none'}); run a worker "
            "on the machine that has it",
        )
    return LocalWorkspaceBackend(root)


def _escapes(path: str) -> ToolError:
    return ToolError(f"Path escapes workspace: {shown(path)}", "path_escapes_workspace")


def _refused(path: str, error: OSError) -> ToolError:
    return ToolError(f"{shown(path)}: {error.strerror or error}", "workspace_backend_error")
