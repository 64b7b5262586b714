"""Files opened step by step below an open folder, never through a symbolic link.

A link where none was resolved before is an `OSError` with ELOOP on every system.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO must not block the worker
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def step(folder: int, name: str, create: bool) -> int:
    """The folder of that name in an open folder, made if wanted; the caller closes it."""
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
    try:
        return os.open(name, FOLDER, dir_fd=folder)
    except NotADirectoryError:
        # Linux reports a symlink under O_DIRECTORY | O_NOFOLLOW as "not a directory".
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


def read(folder: int, name: str) -> bytes:
    """The content of a regular file in an open folder."""
    descriptor = os.open(name, FILE, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        require_regular(status)
        parts = [os.read(descriptor, status.st_size + 1)]
        while parts[-1]:
            parts.append(os.read(descriptor, 2**20))
        return b"".join(parts)
    finally:
        os.close(descriptor)


def writable_mode(folder: int, name: str) -> int | None:
    """The permission bits of the file to be replaced, None when there is none. A rename would not ask for them."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    require_regular(status)
    if not os.access(name, os.W_OK, dir_fd=folder):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return stat.S_IMODE(status.st_mode)


def require_regular(status: os.stat_result) -> None:
    """`OSError` for a folder, a pipe, a device."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file")
