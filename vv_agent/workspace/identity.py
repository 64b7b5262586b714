"""The id of a local workspace: a file in its root that tells it from another folder at the same path."""

from __future__ import annotations

import errno
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from vv_agent.errors import ConfigError
from vv_agent.workspace import descriptors

ID_FILE = ".vv-agent-workspace"
"""Holds the random id of a workspace, 32 hex digits. Listings leave it out and tools may not write it."""


def is_ours(name: str) -> bool:
    """Whether a file is the id, or the unfinished new content of some file, perhaps left by a crash."""
    return name.startswith(ID_FILE) and (name == ID_FILE or (name[len(ID_FILE)] == "." and name.endswith(".tmp")))


def read_id(root: int, path: Path) -> str | None:
    """The id of the folder open as `root`, None when it has none; `path` is for the message of a damaged one."""
    try:
        text = descriptors.read(root, ID_FILE).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        text = str(error)
    if re.fullmatch("[0-9a-f]{32}", text) is None:
        raise ConfigError(
            "workspace_id_invalid", f"{path / ID_FILE} does not hold the id of a workspace; remove it to get a new one"
        )
    return text


def create_id(root: int, path: Path) -> str | None:
    """Write a new id under another name and link it into place: whoever comes second reads the first one's."""
    temporary = f"{ID_FILE}.{secrets.token_hex(8)}.tmp"
    try:
        with open(os.open(temporary, descriptors.NEW, 0o644, dir_fd=root), "w") as file:
            file.write(secrets.token_hex(16) + "\n")
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            return None
        raise
    try:
        os.link(temporary, ID_FILE, src_dir_fd=root, dst_dir_fd=root, follow_symlinks=False)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links: of two at the same moment the second one wins
        os.rename(temporary, ID_FILE, src_dir_fd=root, dst_dir_fd=root)
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=root)
    return read_id(root, path)
