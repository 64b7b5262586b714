"""The tools every runtime ships."""

from __future__ import annotations

from vv_agent.tools.builtin.control import task_finish
from vv_agent.tools.builtin.reading import read_file
from vv_agent.tools.builtin.skills import activate_skill
from vv_agent.tools.builtin.writing import write_file
from vv_agent.tools.registry import ToolRegistry


def build_default_registry() -> ToolRegistry:
    """A new registry with every built-in tool, in their fixed order."""
    registry = ToolRegistry()
    registry.register_many([task_finish, activate_skill, read_file, write_file])
    return registry
