"""The tools every runtime ships."""

from __future__ import annotations

from vv_agent.tools.base import Tool
from vv_agent.tools.builtin.control import ask_user, task_finish
from vv_agent.tools.builtin.editing import edit_file
from vv_agent.tools.builtin.finding import find_files
from vv_agent.tools.builtin.images import read_image
from vv_agent.tools.builtin.notes import compress_memory, todo_write
from vv_agent.tools.builtin.reading import file_info, read_file
from vv_agent.tools.builtin.searching import search_files
from vv_agent.tools.builtin.shell import bash, check_background_command
from vv_agent.tools.builtin.skills import activate_skill
from vv_agent.tools.builtin.sub_tasks import create_sub_task, sub_task_status
from vv_agent.tools.builtin.writing import write_file
from vv_agent.tools.registry import ToolRegistry

TOOLS: tuple[Tool, ...] = (
    task_finish, ask_user, activate_skill, todo_write, compress_memory, find_files, file_info, read_file, write_file,
    edit_file, search_files, bash, check_background_command, create_sub_task, sub_task_status, read_image,
)  # fmt: skip
"""All of them, in the order of the contract."""


def build_default_registry() -> ToolRegistry:
    """A new registry with every built-in tool, in their fixed order."""
    registry = ToolRegistry()
    registry.register_many(TOOLS)
    return registry


def withheld(
    *, agent_type: object = None, sub_agents: bool = False, background: bool = False, multimodal: bool = False
) -> frozenset[str]:
    """The built-in tools that an agent of this kind is not offered unless it lists them itself: the shell is for agents
    of type `computer`, the questions about sub-tasks for those that have some."""
    shell = () if agent_type == "computer" else ("bash", "check_background_command")
    create = () if sub_agents else ("create_sub_task",)
    ask = () if sub_agents or background else ("sub_task_status",)
    return frozenset((*shell, *create, *ask, *(() if multimodal else ("read_image",))))
