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


def workspace_of(context: ToolContext) -> WorkspaceBackend:
    """The run's workspace; `ToolError` when it has none."""
    if context.workspace is None:
        raise ToolError("This run has no workspace", "workspace_backend_error")
    return context.workspace
