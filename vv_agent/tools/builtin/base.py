"""What the built-in tools share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vv_agent.errors import ToolError
from vv_agent.tools.base import ToolContext
from vv_agent.tools.function import FunctionTool
from vv_agent.workspace.base import WorkspaceBackend


@dataclass(eq=False, kw_only=True)
class BuiltinTool(FunctionTool):
    """A tool of the package; its import path is that of the module with its handler."""

    def __post_init__(self, parameters: dict[str, Any] | None) -> None:
        super().__post_init__(parameters)
        self.__vv_ref__ = f"{self.handler.__module__}:{self.name}"

    def _check_schema(self) -> None:
        """The contract tests hold the schema; checking it here would import jsonschema with the package."""


_OUTSIDE = (
    "allow_outside_workspace_paths",
    "allow_outside_workspace",
    "workspace_allow_outside_main",
    "workspace_allow_outside",
)
KNOWN_METADATA = frozenset({*_OUTSIDE, "agent_type", "bash_shell", "bash_env", "windows_shell_priority", "language"})
"""Entries of a run's metadata that the package itself reads: a definition holds them as they are."""
_YES = frozenset({"true", "1", "yes", "on"})


def workspace_of(context: ToolContext) -> WorkspaceBackend:
    """The run's workspace, with what is outside it where the run's metadata says so; `ToolError` when it has none."""
    if context.workspace is None:
        raise ToolError("This run has no workspace", "workspace_backend_error")
    if any(str(context.metadata.get(name, "")).strip().lower() in _YES for name in _OUTSIDE):
        return context.workspace.outside()
    return context.workspace


def unfit(name: str, value: object, allowed: str) -> ToolError:
    """The error for an argument that fits the schema and still cannot be."""
    return ToolError(f"`{name}` must be {allowed}, not {value!r}", "invalid_arguments")


def lf_lines(text: str) -> list[str]:
    """The lines of a text with their ends. Only LF ends a line; CR, form feeds and the like belong to the text."""
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]
