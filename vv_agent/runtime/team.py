"""The other agents of a run: those it may be handed to, and those it may give work."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vv_agent.agent import Agent, SubAgentConfig
from vv_agent.config import RunConfig, effective_config
from vv_agent.definition import CapabilityRef
from vv_agent.errors import ConfigError, VVAgentError
from vv_agent.llm.reference import ModelRef
from vv_agent.llm.settings import ModelSettings
from vv_agent.prompt.sections import SEPARATOR
from vv_agent.prompt.system import build_system_prompt_bundle
from vv_agent.prompt.texts import DEFAULT_LANGUAGE
from vv_agent.runtime.program import AGENT_TOOL, FAULT_PREFIX, SUB_AGENT
from vv_agent.tools.agents import AgentTool, HandoffTool
from vv_agent.tools.base import Tool
from vv_agent.tools.builtin.base import KNOWN_METADATA
from vv_agent.tools.policy import ToolPolicy

if TYPE_CHECKING:
    from vv_agent.runtime.compile import Layers

_NOT_FOR_SUB_AGENTS = ("create_sub_task", "sub_task_status", "ask_user")
_COPIED = KNOWN_METADATA | {"available_skills", "active_skills", "memory_threshold_percentage"}
"""Entries of a run's metadata that its sub-agents get too (spec/26)."""
RESERVED_METADATA = frozenset({
    "browser_scope_key", "is_sub_task", "parent_run_id", "parent_task_id", "parent_tool_call_id", "run_id",
    "session_id", "session_memory_enabled", "sub_agent_name", "task_id", "trace_id", "workspace",
    "_vv_agent_agent_name", "_vv_agent_allowed_tools", "_vv_agent_disallowed_tools", "_vv_agent_parent_run_id",
    "_vv_agent_parent_tool_call_id", "_vv_agent_run_id", "_vv_agent_session_id", "_vv_agent_tool_policy_approval",
    "_vv_agent_tool_policy_can_use_tool", "_vv_agent_trace_id",
})  # fmt: skip
"""Entries that only the framework writes: no config says who a run below is (spec/26)."""


@dataclass(frozen=True, slots=True)
class Worker:
    """An agent that may be given work: its slot, what it is called, and what it is compiled from, or why it cannot."""

    slot: str
    name: str
    layers: Layers | None
    fault: CapabilityRef | None = None


def team_of(agent: Agent) -> list[Agent]:
    """The agents a run may be handed to, by number; the one that begins is the first."""
    team = [agent]
    for member in team:
        for one in member.transfers:
            if not any(one.agent is known for known in team):
                team.append(one.agent)
    names = [member.name for member in team]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(
            "agent_invalid", f"two agents that hand over to each other are named {twice[0]!r}; rename one of them"
        )
    return team


@dataclass(frozen=True)
class Giver:
    """An agent that gives work to others, with what it may do itself: nobody below it may do more."""

    layers: Layers
    model: ModelRef
    settings: ModelSettings
    policy: ToolPolicy
    tools: Sequence[Tool]

    def workers(self) -> list[Worker]:
        """Its sub-agents, and the agents that stand behind its tools."""
        given = enumerate(self.layers.agent.sub_agents.items())
        behind = enumerate(tool for tool in self.tools if isinstance(tool, AgentTool))
        return [
            *(self._sub_agent(f"{SUB_AGENT}{number}", name, config) for number, (name, config) in given),
            *(Worker(f"{AGENT_TOOL}{number}", tool.name, self._behind(tool.agent)) for number, tool in behind),
        ]

    def _behind(self, agent: Agent) -> Layers:
        """What the run says, less what belongs to the run alone (spec/20)."""
        layers = self.layers
        above = (*layers.above, layers.agent)
        if any(agent is one for one in above):
            chain = " -> ".join(one.name for one in (*above, agent))
            raise ConfigError("agent_invalid", f"an agent is a tool of itself: {chain}; take one of these tools out")
        if agent.model is None:
            agent = replace(agent, model=self.model)
        default, run = _projected(layers.default), _projected(layers.run)
        return replace(
            layers, agent=agent, default=default, run=run, config=effective_config(agent, default, run),
            inherited=denials_of(self.policy), above=above,
        )  # fmt: skip

    def _sub_agent(self, slot: str, name: str, given: SubAgentConfig) -> Worker:
        if (fault := given.fault()) is not None:
            return _faulty(slot, name, given, *fault)
        layers = self.layers
        ref = ModelRef.backend(given.backend, given.model) if given.backend else ModelRef.named(given.model)
        if not given.backend and given.model == self.model.model:
            ref = self.model  # with the backend of the run
        try:
            resolved = layers.provider.resolve(ref)
        except VVAgentError as error:
            return _faulty(slot, name, given, error.code, error.message)
        metadata = layers.config.metadata
        copied = {key: value for key, value in metadata.items() if key in _COPIED}
        said = {"model_context_window": resolved.context_length, **copied, **given.metadata}
        said = {key: value for key, value in said.items() if key not in RESERVED_METADATA and value is not None}
        excluded = {*_NOT_FOR_SUB_AGENTS, *given.exclude_tools}
        agent = Agent(
            name=name,
            instructions=given.system_prompt or _standard_prompt(given, copied),
            model=ref,
            model_settings=self.settings.model_copy(update={"max_tokens": None}),
            tools=[
                tool
                for tool in self.tools
                if tool.name not in excluded and not isinstance(tool, AgentTool | HandoffTool)
            ],
            max_cycles=max(1, given.max_cycles),
            tool_policy=ToolPolicy(
                disallowed_tools=sorted(excluded), denied_side_effects=given.denied_side_effects,
                denied_capability_tags=given.denied_capability_tags, deny_terminal_tools=given.deny_terminal_tools,
                denied_cost_dimensions=given.denied_cost_dimensions,
            ),
        )  # fmt: skip
        projected = _projected(layers.config) or RunConfig()
        config = replace(
            projected, max_cycles=None, no_tool_policy=None, tool_policy=None, context_providers=(),
            tool_registry_factory=_no_tools, metadata={**said, "session_memory_enabled": False},
        )  # fmt: skip
        config = effective_config(agent, None, config)
        above = (*layers.above, layers.agent)
        return Worker(slot, name, replace(
            layers, agent=agent, default=None, run=None, config=config, inherited=self.policy, above=above,
        ))  # fmt: skip


def denials_of(policy: ToolPolicy) -> ToolPolicy:
    """The part of a policy that whoever works for the run inherits (spec/24)."""
    return ToolPolicy(
        denied_side_effects=policy.denied_side_effects, denied_capability_tags=policy.denied_capability_tags,
        deny_terminal_tools=policy.deny_terminal_tools, denied_cost_dimensions=policy.denied_cost_dimensions,
    )  # fmt: skip


def _projected(config: RunConfig | None) -> RunConfig | None:
    if config is None:
        return None
    return replace(
        config, model=None, model_settings=None, session=None, initial_messages=None, before_cycle_messages=None,
        stream=None, host_cost_meter=None, budget_limits=None, checkpoint_config=None, checkpoint_key=None,
        checkpoint_extensions=(), reconciliation_provider=None, shared_state={}, interruption_messages=None,
        after_cycle_hooks=(),
    )  # fmt: skip


def _standard_prompt(given: SubAgentConfig, metadata: Mapping[str, Any]) -> str:
    """The standard bundle around the description, less what is another text at each start."""
    bundle = build_system_prompt_bundle(
        given.description, language=str(metadata.get("language") or DEFAULT_LANGUAGE), allow_interruption=False,
        agent_type=metadata.get("agent_type"),
    )  # fmt: skip
    return SEPARATOR.join(section["text"] for section in bundle.sections if section["stable"])


def _no_tools() -> Any:
    """The registry of a sub-agent: it gets the tools of the run that gives it work."""
    from vv_agent.tools.registry import ToolRegistry

    return ToolRegistry()


def _faulty(slot: str, name: str, given: SubAgentConfig, code: str, message: str) -> Worker:
    said = json.dumps({"code": code, "message": message, "model": given.model})
    return Worker(slot, name, None, CapabilityRef(id=f"{FAULT_PREFIX}{said}", version=name))
