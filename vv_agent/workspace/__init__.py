"""Where an agent's files are: one small interface over folders, memory and object storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vv_agent.errors import CannotServe
from vv_agent.workspace.base import FileInfo, Walked, WorkspaceBackend
from vv_agent.workspace.filtered import DiscoveryFilteredWorkspaceBackend
from vv_agent.workspace.local import LocalWorkspaceBackend, open_local
from vv_agent.workspace.memory import MemoryWorkspaceBackend
from vv_agent.workspace.portable import InvalidPortableRegexError

if TYPE_CHECKING:
    from vv_agent.workspace.s3 import S3WorkspaceBackend

__all__ = [
    "DiscoveryFilteredWorkspaceBackend",
    "FileInfo",
    "InvalidPortableRegexError",
    "LocalWorkspaceBackend",
    "MemoryWorkspaceBackend",
    "S3WorkspaceBackend",
    "Walked",
    "WorkspaceBackend",
    "open_workspace",
]


def open_workspace(ref: str) -> WorkspaceBackend:
    """The workspace that `WorkspaceBackend.ref` named, perhaps on another machine.

    `CannotServe` `workspace_unavailable` when this process cannot open it: one elsewhere may be able to.
    """
    kind, _, name = ref.partition(":")
    if kind == "local":
        return open_local(name)
    if kind == "s3":
        from vv_agent.workspace.s3 import open_s3

        return open_s3(ref)
    if kind == "filtered":
        pattern, _, inner = name.partition("|")
        return DiscoveryFilteredWorkspaceBackend(open_workspace(inner), DiscoveryFilteredWorkspaceBackend.read(pattern))
    raise CannotServe("workspace_unavailable", f"workspace {ref!r} is of a kind this process cannot open")


def __getattr__(name: str) -> Any:
    if name == "S3WorkspaceBackend":  # boto3 is an extra
        from vv_agent.workspace.s3 import S3WorkspaceBackend

        return S3WorkspaceBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
