"""Other agents as tools: one that takes the conversation over, and ones that are given a task. No tool runs an agent:
it says what is wanted, and the runtime carries that out as a change of the run's record."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vv_agent.agent import Handoff, check_tool_name, trimmed
from vv_agent.definition import CapabilityRef
from vv_agent.errors import ToolError
from vv_agent.results import ToolDirective, ToolExecutionResult, ToolStatus
from vv_agent.tool_metadata import ToolIdempotency, ToolMetadata, ToolSideEffect
from vv_agent.tools.base import Arguments, SubTaskSpec, Tool, ToolContext
from vv_agent.tools.function import FunctionTool
from vv_agent.tools.output import json_text

if TYPE_CHECKING:
    from vv_agent.agent import Agent
    from vv_agent.definition import DefinedTool

_DECLARED = ToolMetadata(ToolSideEffect.NONE, ToolIdempotency.SUPPORTED)
"""They do nothing themselves: whoever works then inherits what the policy denies."""


class HandoffTool(FunctionTool):
    """Gives the conversation to another agent. `facts` go into the events of the transfer."""

    def __init__(self, name: str, description: str, target: str, facts: Mapping[str, Any]) -> None:
        about = {"type": "string", "description": "Input or handoff summary for the target agent.", "minLength": 1}
        schema = {"type": "object", "properties": {"input": about}, "required": ["input"]}
        super().__init__(
            name=name, description=description, params_json_schema=schema, handler=self._transfer,
            metadata=dict(facts), tool_metadata=_DECLARED,
        )  # fmt: skip
        self.target = target

    @classmethod
    def of(cls, handoff: Handoff) -> HandoffTool:
        """The tool of a hand-off."""
        return cls(handoff.tool_name, handoff.shown_description, handoff.agent.name, handoff.metadata)

    def _transfer(self, context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
        text = arguments["input"]
        if not text.strip():
            raise ToolError("`input` must say something to the agent that takes over", "invalid_handoff_arguments")
        source = context.agent_name
        content = {"ok": True, "handoff": True, "from_agent": source, "to_agent": self.target, "input": text}
        facts = {
            "mode": "handoff", "handoff_from": source, "handoff_to": self.target, "handoff_input": text,
            "handoff_tool_name": self.name,
        }  # fmt: skip
        return ToolExecutionResult(
            tool_call_id=context.tool_call_id, content=json_text(content), status_code=ToolStatus.SUCCESS,
            directive=ToolDirective.FINISH, metadata={**self.metadata, **facts},
        )  # fmt: skip


class AgentTool(FunctionTool):
    """Gives an agent a task: a run of its own below the one that asks. In the `background` the call comes back at
    once with a task id."""

    def __init__(
        self, agent: Agent, *, name: str | None = None, description: str | None = None, background: bool = False
    ) -> None:
        super().__init__(
            name=_name(agent.name, background=background) if name is None else name,
            description=description or _about(agent.name, background=background),
            params_json_schema=_parameters(background=background),
            handler=_start_task if background else _task,
            tool_metadata=_DECLARED,
        )
        check_tool_name(self.name)
        self.agent = agent
        self.background = background


def _name(agent: str, *, background: bool) -> str:
    """The agent's name, with what no provider takes in the name of a tool replaced."""
    end = "_background_task" if background else ""
    return (re.sub(r"[^A-Za-z0-9_-]+", "_", agent)[: 64 - len(end)].strip("_") or "agent") + end


HANDOFF_REF, TASK_REF, BACKGROUND_REF = "handoff:", "agent:task", "agent:background"
"""How the code of these tools is named in a definition. A hand-off's name ends with the number of its target, and its
version says who that is and what goes into the events."""


def reference(tool: Tool, numbers: Mapping[str, int]) -> CapabilityRef | None:
    """The name of a tool of this module, None for any other one; `numbers` are the agents' of the run by name."""
    if isinstance(tool, HandoffTool):
        facts = json_text({"target": tool.target, "facts": tool.metadata})
        return CapabilityRef(id=f"{HANDOFF_REF}{numbers[tool.target]}", version=facts)
    if isinstance(tool, AgentTool):
        return CapabilityRef(id=BACKGROUND_REF if tool.background else TASK_REF, version="1")
    return None


def defined(tool: DefinedTool, ref: CapabilityRef) -> Tool | None:
    """The tool that `reference` named, as a worker has it; None for the name of any other one."""
    function = tool.tool_schema.function
    if ref.id.startswith(HANDOFF_REF):
        said = json.loads(ref.version)
        return HandoffTool(function.name, function.description, said["target"], said["facts"])
    if ref.id not in (TASK_REF, BACKGROUND_REF):
        return None
    return FunctionTool(
        name=function.name, description=function.description, params_json_schema=function.parameters,
        handler=_task if ref.id == TASK_REF else _start_task, tool_metadata=_DECLARED,
    )  # fmt: skip


def in_background(tool: object) -> bool:
    """Whether a tool starts an agent and comes back at once."""
    return isinstance(tool, AgentTool) and tool.background


def _about(name: str, *, background: bool) -> str:
    return (
        f"Start the {name} agent on a task and go on at once."
        if background
        else (f"Run the {name} agent as a delegated task.")
    )


def _parameters(*, background: bool) -> dict[str, Any]:
    more = {} if background else {
        "output_requirements": {"type": "string"}, "include_main_summary": {"type": "boolean"},
    }  # fmt: skip
    properties = {"task_description": {"type": "string"}, **more}
    return {"type": "object", "properties": properties, "required": ["task_description"]}


def _task(context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
    return _delegate(context, arguments, wait=True)


def _start_task(context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
    return _delegate(context, arguments, wait=False)


def _delegate(context: ToolContext, arguments: Arguments, *, wait: bool) -> ToolExecutionResult:
    if context.sub_tasks is None:
        raise ToolError("This call cannot start an agent; use a Runner", "background_agent_runtime_unavailable")
    task = SubTaskSpec(trimmed(arguments["task_description"]), trimmed(arguments.get("output_requirements", "")))
    if not task.description:
        code = "invalid_tool_arguments" if wait else "invalid_background_task_arguments"
        raise ToolError("`task_description` must say what to do", code)
    return context.sub_tasks.delegate(context, task, summary=bool(arguments.get("include_main_summary")), wait=wait)
