"""Where an agent's files are: one small interface over folders and, later, other storage."""

from __future__ import annotations

from vv_agent.workspace.base import FileInfo, WorkspaceBackend
from vv_agent.workspace.local import LocalWorkspaceBackend, open_workspace

__all__ = ["FileInfo", "LocalWorkspaceBackend", "WorkspaceBackend", "open_workspace"]
