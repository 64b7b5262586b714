"""The tools a process can run, by name, with the schemas the model is shown."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vv_agent.errors import ConfigError, ToolNotFoundError
from vv_agent.messages import ToolCall
from vv_agent.results import ToolExecutionResult
from vv_agent.tools.base import Arguments, Tool, ToolContext, ToolExposure
from vv_agent.tools.function import FunctionTool
from vv_agent.tools.orchestrator import ToolOrchestrator

ToolSpec = FunctionTool
"""What `ToolRegistry.register` takes in most programs; any `Tool` will do."""

ToolExecutor = Tool
"""What `ToolRegistry.register_executor` takes: the same protocol."""


class ToolRegistry:
    """Tools in the order they were registered; a name is taken once.

    A schema registered for a name, before or after its tool, replaces the tool's own schema and description. Fill a
    registry before it is used: it has no lock.
    """

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}
        self._schemas: dict[str, dict[str, Any]] = {}
        self._hidden: set[str] = set()
        self._extras: list[str] = []

    def register(self, spec: Tool) -> None:
        """Add a tool; `ConfigError` `tool_already_registered` when its name is taken."""
        if spec.name in self._tools:
            raise ConfigError("tool_already_registered", f"tool already registered: {spec.name}")
        self._tools[spec.name] = spec

    def register_many(self, specs: Iterable[Tool]) -> None:
        for spec in specs:
            self.register(spec)

    def register_executor(self, executor: Tool, *, expose_to_model: bool = True, planner_extra: bool = False) -> None:
        """Add a tool, perhaps hidden from the model, perhaps offered beside the ones an agent lists itself."""
        self.register(executor)
        if not expose_to_model:
            self._hidden.add(executor.name)
        if planner_extra:
            self._extras.append(executor.name)

    def register_schema(self, tool_name: str, schema: Mapping[str, Any]) -> None:
        """Show the model this schema, `{"type": "function", "function": {...}}`, for the tool of that name."""
        function = schema.get("function")
        if schema.get("type") != "function" or not isinstance(function, Mapping) or function.get("name") != tool_name:
            raise ConfigError(
                "tool_schema_invalid", f"the schema for {tool_name!r} must be a function schema of that name"
            )
        self._schemas[tool_name] = copy.deepcopy(dict(schema))

    def register_schemas(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        for tool_name, schema in schemas.items():
            self.register_schema(tool_name, schema)

    def get(self, name: str) -> Tool:
        """The tool; `ToolNotFoundError` when there is none."""
        try:
            return self._tools[name]
        except KeyError:
            raise ToolNotFoundError(name) from None

    def has_tool(self, name: str) -> bool:
        return name in self._tools

    def get_schema(self, name: str) -> dict[str, Any]:
        """The function schema the model is shown for a name; `ToolNotFoundError` when there is none."""
        if name in self._schemas:
            return copy.deepcopy(self._schemas[name])
        return self.get(name).to_openai_schema()

    def replaced_schemas(self) -> dict[str, dict[str, Any]]:
        """The registered schemas by name."""
        return copy.deepcopy(self._schemas)

    def list_openai_schemas(self, *, tool_names: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """The schemas of all tools, or of the named ones in that order; hidden tools are left out."""
        names = self._tools if tool_names is None else list(tool_names)
        return [self.get_schema(name) for name in names if not self._is_hidden(self.get(name))]

    def shown_tools(self) -> list[Tool]:
        """The tools that are not hidden from the model."""
        return [tool for tool in self._tools.values() if not self._is_hidden(tool)]

    def list_tool_names(self) -> list[str]:
        return list(self._tools)

    def planner_extras(self) -> list[str]:
        """The names registered with `planner_extra`."""
        return list(self._extras)

    def execute(self, call: ToolCall, context: ToolContext) -> ToolExecutionResult:
        """Parse, look up, validate and run one call, with no policy or approval in between (the runtime has those).

        What is wrong with the call is a result with status ERROR.
        """
        known = self.has_tool(call.name) or call.name in self._schemas
        parameters = self.get_schema(call.name)["function"].get("parameters", {}) if known else {}
        return ToolOrchestrator(self._tools, parameters={call.name: parameters}).execute(call, context)

    def _is_hidden(self, tool: Tool) -> bool:
        return tool.name in self._hidden or tool.exposure is ToolExposure.HIDDEN


@dataclass(frozen=True, slots=True)
class RegistryToolExecutor:
    """One tool of a registry, looked up at each call."""

    registry: ToolRegistry
    name: str

    def invoke(self, context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
        return self.registry.get(self.name).invoke(context, arguments)
