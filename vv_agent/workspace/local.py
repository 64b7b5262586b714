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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from vv_agent.errors import CannotServe, ConfigError, ToolError
from vv_agent.workspace import descriptors
from vv_agent.workspace.base import FileInfo, WorkspaceBackend
from vv_agent.workspace.glob import matcher
from vv_agent.workspace.identity import ID_FILE, create_id, is_ours, read_id


class LocalWorkspaceBackend(WorkspaceBackend):
    """The files below `root` (`~` allowed), which is created by the first write."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(os.path.realpath(os.path.expanduser(root)))

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

    def list_files(self, base: str, glob: str) -> list[str]:
        parts = self._locate(base)
        matches = matcher(glob)
        with self._mapped(base):
            found = ["/".join(parts + below) for below in self._walk(parts) if matches("/".join(below))]
        return sorted(found)

    def read_text(self, path: str) -> str:
        return self.read_bytes(path).decode("utf-8", "replace")

    def read_bytes(self, path: str) -> bytes:
        with self._mapped(path), self._parent(path) as (folder, name):
            return descriptors.read(folder, name)

    def write_text(self, path: str, content: str, *, append: bool = False) -> int:
        try:
            data = content.encode()
        except UnicodeEncodeError:
            raise ToolError("content holds an unpaired surrogate; send valid Unicode", "invalid_arguments") from None
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
        """The steps from the root to what `path` names, all symlinks resolved; outside is an error.

        A path the file system cannot name (a NUL byte, an unpaired surrogate) counts as outside.
        """
        try:
            if "\0" in path:
                raise ValueError("NUL byte")
            resolved = os.path.realpath(os.path.normpath(self.root / os.path.expanduser(path)))
            return Path(resolved).relative_to(self.root).parts
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
        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
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
        if not parts:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with self._folder(parts[:-1], create=create) as folder:
            yield folder, parts[-1]

    def _status(self, parts: tuple[str, ...]) -> os.stat_result | None:
        try:
            if not parts:
                return os.stat(self.root)
            with self._folder(parts[:-1]) as folder:
                status = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISLNK(status.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return status

    def _walk(self, base: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """The steps from `base` to each file below it. Links to folders are not entered (they may form a circle),
        links to files count when they end inside; folders that cannot be read are skipped."""
        waiting: list[tuple[str, ...]] = [()]
        while waiting:
            here = waiting.pop()
            try:
                with self._folder(base + here) as folder, os.scandir(folder) as entries:
                    listed = list(entries)
                    for entry in listed:
                        below = (*here, entry.name)
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(below)
                        elif not is_ours(entry.name) and self._is_listed(entry, base + below):
                            yield below
            except OSError as error:
                if not here and not isinstance(error, FileNotFoundError | NotADirectoryError):
                    raise

    def _is_listed(self, entry: os.DirEntry[str], parts: tuple[str, ...]) -> bool:
        if not entry.is_symlink():
            return entry.is_file(follow_symlinks=False)
        with suppress(ToolError):
            return self.is_file(str(self.root.joinpath(*parts)))
        return False


def open_workspace(ref: str) -> WorkspaceBackend:
    """The workspace that `WorkspaceBackend.ref` named, perhaps on another machine.

    `CannotServe` `workspace_unavailable` when this machine does not have the folder, or has one with another id: a
    worker elsewhere may have it. A folder is never marked here.
    """
    kind, _, rest = ref.partition(":")
    root, _, wanted = rest.rpartition("#")
    if kind != "local" or not os.path.isabs(root):
        raise CannotServe("workspace_unavailable", f"workspace {ref!r} is of a kind this process cannot open")
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
    return ToolError(f"Path escapes workspace: {_shown(path)}", "path_escapes_workspace")


def _refused(path: str, error: OSError) -> ToolError:
    return ToolError(f"{_shown(path)}: {error.strerror or error}", "workspace_backend_error")


def _shown(path: str) -> str:
    """The path as text that can be stored: an unpaired surrogate becomes U+FFFD."""
    return path.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
