"""Tools: what an agent can do, and the rules about who may do it."""

from __future__ import annotations

from vv_agent.errors import ToolNotFoundError
from vv_agent.tools.base import CallSafety, Decidable, Tool, ToolContext, ToolExposure, safety_of
from vv_agent.tools.function import FunctionTool, function_tool
from vv_agent.tools.orchestrator import ToolOrchestrator
from vv_agent.tools.output import ToolOutput
from vv_agent.tools.policy import ToolPolicy
from vv_agent.tools.registry import RegistryToolExecutor, ToolExecutor, ToolRegistry, ToolSpec

__all__ = [
    "CallSafety",
    "Decidable",
    "FunctionTool",
    "RegistryToolExecutor",
    "Tool",
    "ToolContext",
    "ToolExecutor",
    "ToolExposure",
    "ToolNotFoundError",
    "ToolOrchestrator",
    "ToolOutput",
    "ToolPolicy",
    "ToolRegistry",
    "ToolSpec",
    "function_tool",
    "safety_of",
]
