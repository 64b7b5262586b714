"""What an agent is: instructions, a model, tools and limits. It runs nothing; the Runner does."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from vv_agent._facade import (
    FUNCTION,
    LIST,
    MAPPING,
    MODEL,
    MODEL_SETTINGS,
    TEXT,
    TEXTS,
    TOOL_POLICY,
    Kind,
    check_kinds,
    either,
    having,
    only_known,
)
from vv_agent.errors import ConfigError

if TYPE_CHECKING:
    from vv_agent.hooks import OutputValidation
    from vv_agent.llm import ModelRef, ModelSettings
    from vv_agent.tools import Tool, ToolPolicy
    from vv_agent.tools.agents import AgentTool

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


@dataclass(frozen=True)
class Handoff:
    """An agent to whom another one may give the conversation. `metadata` goes into the events of the transfer."""

    agent: Agent
    description: str | None = None
    tool_name: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.agent, Agent):
            raise ConfigError("agent_invalid", f"a hand-off goes to an Agent, not to {self.agent!r}")
        if not self.tool_name:
            slug = re.sub(r"[^A-Za-z0-9_]+", "_", self.agent.name).strip("_").lower()
            object.__setattr__(self, "tool_name", f"transfer_to_{slug or 'agent'}"[:64])
        check_tool_name(self.tool_name)

    @property
    def shown_description(self) -> str:
        """What the model reads."""
        return self.description or f"Transfer the conversation to {self.agent.name}."


def check_tool_name(name: str) -> None:
    """Refuse a name that model providers refuse."""
    if not isinstance(name, str) or not re.fullmatch("[A-Za-z0-9_-]{1,64}", name):
        raise ConfigError("tool_invalid", f"tool name {name!r} must be 1 to 64 letters of ASCII, digits, _ or -")


def handoff(
    agent: Agent, description: str | None = None, *, tool_name: str = "", metadata: Mapping[str, Any] | None = None
) -> Handoff:
    """A `Handoff` with other words than the default ones."""
    return Handoff(agent, description, tool_name, metadata or {})


@only_known("sub_agent_invalid")
@dataclass(frozen=True)
class SubAgentConfig:
    """An agent to whom a run may give work with the tool `create_sub_task`.

    It gets the tools, the workspace and the policy of the run, less `exclude_tools` and what it is denied here. What is
    wrong with `model` or `system_prompt` fails the work that it is given, not the run (spec/26).
    """

    model: str
    description: str = ""
    backend: str | None = None
    system_prompt: str | None = None
    max_cycles: int = 8
    exclude_tools: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    denied_side_effects: Sequence[str] = ()
    denied_capability_tags: Sequence[str] = ()
    deny_terminal_tools: bool = False
    denied_cost_dimensions: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name, kind in _SUB_AGENT_TYPES.items():
            value = getattr(self, name)
            fits = (isinstance(value, kind) and not (kind is int and isinstance(value, bool))) or (
                name in ("backend", "system_prompt") and value is None
            )
            if not fits or (name == "max_cycles" and value < 0):
                raise ConfigError("sub_agent_invalid", f"{name} of a sub-agent must be {_kind(kind)}, not {value!r}")
        check_kinds("sub_agent_invalid", "a sub-agent", vars(self), _SUB_AGENT_LISTS)
        object.__setattr__(self, "model", trimmed(self.model))
        object.__setattr__(self, "backend", trimmed(self.backend or "") or None)
        object.__setattr__(self, "exclude_tools", tuple(self.exclude_tools))

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> SubAgentConfig:
        """Read the closed wire form; `sub_agent_invalid` for other fields or types."""
        known = {item.name for item in fields(cls)}
        if not isinstance(wire, Mapping) or "model" not in wire or wire.keys() - known:
            raise ConfigError("sub_agent_invalid", f"a sub-agent is an object of {', '.join(sorted(known))}")
        return cls(**wire)

    def to_wire(self) -> dict[str, Any]:
        """All fields; lists and objects are copies."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        lists = {name: list(value) for name, value in values.items() if isinstance(value, tuple)}
        return copy.deepcopy({**values, "metadata": dict(self.metadata), **lists})

    def fault(self) -> tuple[str, str] | None:
        """Code and message of what makes it impossible to give work to this agent."""
        if not self.model:
            return "invalid_sub_agent_model", "sub-agent model cannot be empty"
        if self.system_prompt is not None and not trimmed(self.system_prompt):
            return "invalid_sub_agent_system_prompt", "sub-agent system_prompt cannot be empty when provided"
        return None


_SUB_AGENT_TYPES: dict[str, Any] = {
    "model": str, "description": str, "backend": str, "system_prompt": str, "max_cycles": int,
    "exclude_tools": (list, tuple), "metadata": Mapping, "denied_side_effects": (list, tuple),
    "denied_capability_tags": (list, tuple), "deny_terminal_tools": bool, "denied_cost_dimensions": (list, tuple),
}  # fmt: skip


def _side_effects(given: Any) -> bool:
    from vv_agent.tool_metadata import ToolSideEffect

    return TEXTS.fits(given) and set(given) <= {effect.value for effect in ToolSideEffect}


_SUB_AGENT_LISTS = {
    "exclude_tools": TEXTS, "denied_capability_tags": TEXTS, "denied_cost_dimensions": TEXTS,
    "denied_side_effects": Kind(
        "a list of none, read, write, execute, network, external, unknown",
        lambda given: not given or _side_effects(given),
    ),
}  # fmt: skip


def _kind(kind: Any) -> str:
    names = {str: "a text", int: "a whole number from 0", bool: "true or false", Mapping: "an object"}
    return names.get(kind, "a list")


def trimmed(text: str) -> str:
    """Without white space at both ends; the four information separators of ASCII count as such (spec/26)."""
    before = None
    while text != before:
        before, text = text, text.strip().strip("\x1c\x1d\x1e\x1f")
    return text


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
    hooks: Sequence[Any] = ()
    """`vv_agent.RuntimeHook`s; those of the runner and the run follow."""
    input_guardrails: Sequence[Any] = ()
    output_guardrails: Sequence[Any] = ()
    output_type: Any = None
    """The type of the final output: its text must be JSON of it, and `RunResult.final_output` is a value of it."""
    output_validation: OutputValidation | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    handoffs: Sequence[Handoff | Agent] = ()
    sub_agents: Mapping[str, SubAgentConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ConfigError("agent_invalid", "agent name cannot be empty; give Agent(name=...) a text")
        if isinstance(self.instructions, str) and not self.instructions.strip():
            raise ConfigError("agent_invalid", f"agent {self.name!r} has blank instructions; say what it should do")
        if self.tool_use_behavior not in _BEHAVIORS:
            raise ConfigError(
                "agent_invalid", f"tool_use_behavior {self.tool_use_behavior!r} is not one of {', '.join(_BEHAVIORS)}"
            )
        check_kinds("agent_invalid", f"agent {self.name!r}", vars(self), _AGENT_KINDS)
        self._check_tools()
        check_max_cycles(self.max_cycles)
        if self.no_tool_policy is not None:
            try:
                self.no_tool_policy = NoToolPolicy(self.no_tool_policy)
            except ValueError:
                what = f"no_tool_policy {self.no_tool_policy!r} is not one of {', '.join(NoToolPolicy)}"
                raise ConfigError("agent_invalid", what) from None
        self.sub_agents = _sub_agents(self.sub_agents) if self.sub_agents else {}

    @property
    def transfers(self) -> list[Handoff]:
        """The hand-offs; an agent in the list stands for one with the default words."""
        return [one if isinstance(one, Handoff) else Handoff(one) for one in self.handoffs]

    def as_tool(self, *, name: str | None = None, description: str | None = None) -> AgentTool:
        """A tool that gives this agent a task and returns its answer. The work is a run of its own below the one that
        asks for it."""
        from vv_agent.tools.agents import AgentTool

        return AgentTool(self, name=name, description=description)

    def as_background_task(self, *, name: str | None = None, description: str | None = None) -> AgentTool:
        """A tool that gives this agent a task and comes back at once; `sub_task_status` asks what became of it."""
        from vv_agent.tools.agents import AgentTool

        return AgentTool(self, name=name, description=description, background=True)

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
        try:
            text = self.instructions(run_context or RunContext(run_id="", agent_name=self.name), self)
        except Exception as error:  # the host's own code
            what = f"the instructions function of agent {self.name!r} failed: {type(error).__name__}: {error}"
            raise ConfigError("agent_invalid", what) from error
        if not isinstance(text, str) or not text.strip():
            raise ConfigError("agent_invalid", f"the instructions function of agent {self.name!r} gave no text")
        return text


_AGENT_KINDS = {
    "instructions": either(TEXT, FUNCTION), "model": MODEL, "model_settings": MODEL_SETTINGS,
    "tool_policy": TOOL_POLICY, "metadata": MAPPING, "sub_agents": MAPPING, "stop_at_tool_names": TEXTS,
    "hooks": LIST, "input_guardrails": LIST, "output_guardrails": LIST,
    "output_validation": having("OutputValidation(...)", "validator", "repair"),
    "handoffs": Kind(
        "a list of agents or hand-offs",
        lambda given: LIST.fits(given) and all(isinstance(one, Agent | Handoff) for one in given),
    ),
}  # fmt: skip


def _sub_agents(given: Mapping[str, SubAgentConfig]) -> dict[str, SubAgentConfig]:
    """Copies under their trimmed ids."""
    found: dict[str, SubAgentConfig] = {}
    for given_name, config in given.items():
        if not isinstance(given_name, str):
            raise ConfigError("agent_invalid", f"the id of a sub-agent must be a text, not {given_name!r}")
        name = trimmed(given_name)
        if not name:
            raise ConfigError("agent_invalid", "sub-agent id cannot be empty")
        if name in found:
            raise ConfigError("agent_invalid", f"duplicate sub-agent id after normalization: {name}")
        if not isinstance(config, SubAgentConfig):
            raise ConfigError("agent_invalid", f"sub-agent {name!r} must be a SubAgentConfig, not {config!r}")
        found[name] = copy.deepcopy(config)
    return found


def check_max_cycles(value: int | None) -> None:
    """Refuse a limit outside 1..4294967295 (spec/20)."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_CYCLES):
        raise ConfigError("run_config_invalid", f"max_cycles must be between 1 and {MAX_CYCLES}")
