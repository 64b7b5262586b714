"""The tools every runtime ships."""

from __future__ import annotations

from vv_agent.tools.builtin.control import task_finish
from vv_agent.tools.builtin.editing import edit_file
from vv_agent.tools.builtin.finding import find_files
from vv_agent.tools.builtin.images import read_image
from vv_agent.tools.builtin.reading import file_info, read_file
from vv_agent.tools.builtin.searching import search_files
from vv_agent.tools.builtin.writing import write_file
from vv_agent.tools.registry import ToolRegistry


def build_default_registry() -> ToolRegistry:
    """A new registry with every built-in tool, in their fixed order."""
    registry = ToolRegistry()
    registry.register_many(
        [
            task_finish,
            find_files,
            file_info,
            read_file,
            write_file,
            edit_file,
            search_files,
            read_image,
        ]
    )
    return registry
