"""What an agent is: instructions, a model, tools and limits. It runs nothing; the Runner does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from vv_agent._facade import only_known
from vv_agent.errors import ConfigError

if TYPE_CHECKING:
    from vv_agent.llm import ModelRef, ModelSettings
    from vv_agent.tools import Tool, ToolPolicy

ToolUseBehavior: TypeAlias = Literal["run_llm_again", "stop_on_first_tool", "stop_at_tool_names"]
_BEHAVIORS = ("run_llm_again", "stop_on_first_tool", "stop_at_tool_names")
MAX_CYCLES = 2**32 - 1


class NoToolPolicy(StrEnum):
    """What a model turn without tool calls means: go on with a hint, wait for the user, or finish with its text."""

    CONTINUE = "continue"
    WAIT_USER = "wait_user"
    FINISH = "finish"


@dataclass(frozen=True)
class RunContext:
    """What instructions written as a function may look at. `context` is the host's own object."""

    run_id: str
    agent_name: str
    model: str | None = None
    workspace: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    context: Any = None


Instructions: TypeAlias = "str | Callable[[RunContext, Agent], str]"


@only_known("agent_invalid")
@dataclass(kw_only=True)
class Agent:
    """An agent. Fields that are None are decided by the run, the runner or the framework, in this order.

    Example:
        >>> from vv_agent import Agent, NoToolPolicy
        >>> agent = Agent(name="assistant", instructions="Answer briefly.", no_tool_policy=NoToolPolicy.FINISH)
    """

    name: str
    instructions: Instructions
    model: ModelRef | str | None = None
    model_settings: ModelSettings | None = None
    tools: Sequence[Tool] = ()
    max_cycles: int | None = None
    no_tool_policy: NoToolPolicy | None = None
    tool_policy: ToolPolicy | None = None
    tool_use_behavior: ToolUseBehavior = "run_llm_again"
    stop_at_tool_names: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ConfigError("agent_invalid", "agent name cannot be empty; give Agent(name=...) a text")
        if isinstance(self.instructions, str) and not self.instructions.strip():
            raise ConfigError("agent_invalid", f"agent {self.name!r} has blank instructions; say what it should do")
        if self.tool_use_behavior not in _BEHAVIORS:
            raise ConfigError(
                "agent_invalid", f"tool_use_behavior {self.tool_use_behavior!r} is not one of {', '.join(_BEHAVIORS)}"
            )
        self._check_tools()
        check_max_cycles(self.max_cycles)
        if self.no_tool_policy is not None:
            self.no_tool_policy = NoToolPolicy(self.no_tool_policy)

    def _check_tools(self) -> None:
        """The run checks again, together with the tools it adds: a list may change until then."""
        if not self.tools:
            return
        from vv_agent.tools.base import Tool

        if isinstance(self.tools, str) or not isinstance(self.tools, Sequence):
            raise ConfigError("agent_invalid", f"tools of agent {self.name!r} must be a list, not {self.tools!r}")
        names: set[str] = set()
        for tool in self.tools:
            if not isinstance(tool, Tool):
                raise ConfigError(
                    "tool_invalid",
                    f"{tool!r} among the tools of agent {self.name!r} is no tool; "
                    "decorate the function with @function_tool, or use FunctionTool",
                )
            if tool.name in names:
                raise ConfigError(
                    "tool_already_registered",
                    f"agent {self.name!r} has two tools named {tool.name!r}; list the tool once, or rename one",
                )
            names.add(tool.name)

    def resolve_instructions(self, run_context: RunContext | None = None) -> str:
        """The instructions as text; a function is called with the run's context and this agent."""
        if isinstance(self.instructions, str):
            return self.instructions
        text = self.instructions(run_context or RunContext(run_id="", agent_name=self.name), self)
        if not isinstance(text, str) or not text.strip():
            raise ConfigError("agent_invalid", f"the instructions function of agent {self.name!r} gave no text")
        return text


def check_max_cycles(value: int | None) -> None:
    """Refuse a limit outside 1..4294967295 (spec/20)."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_CYCLES):
        raise ConfigError("run_config_invalid", f"max_cycles must be between 1 and {MAX_CYCLES}")
