"""From an agent, an input and a config to a definition and its live program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vv_agent import references
from vv_agent.agent import Agent, RunContext
from vv_agent.checkpoint.config import CheckpointConfig
from vv_agent.checkpoint.extensions import check_available, check_registered
from vv_agent.config import RunConfig, effective_config, effective_model
from vv_agent.context import ContextRequest
from vv_agent.definition import LINK, CapabilityRef, RunDefinition
from vv_agent.definition_rules import has_credential, normalised, stable_ref
from vv_agent.errors import CheckpointError, ConfigError
from vv_agent.hooks import Hooks, hooks_of, output_schema
from vv_agent.llm.base import Model
from vv_agent.llm.client import as_model
from vv_agent.llm.reference import ModelProvider, ModelRef, ResolvedModelConfig
from vv_agent.llm.settings import ModelSettings
from vv_agent.memory.config import METADATA_NAMES, MemoryConfig
from vv_agent.runtime import conversation, recording
from vv_agent.runtime.hooks import code_of, plain_refs
from vv_agent.runtime.opening import open_run
from vv_agent.runtime.program import (
    AGENT,
    BEFORE_SLOT,
    INTERRUPT_SLOT,
    MEMORY_SLOT,
    METER_SLOT,
    MODEL_SLOT,
    PROVIDER_SLOT,
    RECONCILE_SLOT,
    Program,
    tool_slot,
)
from vv_agent.runtime.team import Giver, team_of
from vv_agent.skills.activation import AVAILABLE
from vv_agent.tools import agents
from vv_agent.tools.agents import HandoffTool, in_background
from vv_agent.tools.base import Tool
from vv_agent.tools.builtin import build_default_registry, withheld
from vv_agent.tools.builtin.base import KNOWN_METADATA
from vv_agent.tools.builtin.shell import Bash
from vv_agent.tools.policy import ToolPolicy, merge_policies
from vv_agent.tools.registry import ToolRegistry
from vv_agent.workspace import LocalWorkspaceBackend, WorkspaceBackend

DEFAULT_WORKSPACE = "./workspace"


@dataclass(frozen=True)
class Layers:
    """Where the parts of a run come from: the agent, the runner's default config, the run's own, and their merge."""

    agent: Agent
    default: RunConfig | None
    run: RunConfig | None
    config: RunConfig
    """The effective one."""
    provider: ModelProvider
    checkpoint: CheckpointConfig | None
    elsewhere: bool
    """Workers in other processes must be able to carry the run out: everything needs a name."""
    inherited: ToolPolicy | None = None
    """What the run that gives it work may not do."""
    above: tuple[Agent, ...] = ()
    """The agents that give it work."""

    def of(self, agent: Agent) -> Layers:
        """The layers of an agent that the run may be handed to."""
        return replace(self, agent=agent, config=effective_config(agent, self.default, self.run))


@dataclass(frozen=True)
class Beginning:
    """What all agents of a run that begins share. `existing` gives the definition of the run that this start goes on
    with, or that of an agent linked to it by these slots, if there is one."""

    run_id: str
    trace_id: str
    workspace: str | Path | None
    existing: Callable[[tuple[str, ...]], RunDefinition | None]

    def below(self, slot: str) -> Beginning:
        return replace(self, existing=lambda path: self.existing((slot, *path)))


def compile_run(layers: Layers, text: str, beginning: Beginning) -> Program:
    """The program of a run with all agents it may be handed to or give work to; its definition is complete, normalised
    and redacted.

    Raises `ConfigError` for a wrong agent or config, `CheckpointError` `checkpoint_definition_unstable` for code
    without a name where one is needed; nothing external has happened then.
    """
    team = team_of(layers.agent)
    members = [(f"{AGENT}{number}", agent) for number, agent in enumerate(team[1:], 1)]
    numbers = {agent.name: number for number, agent in enumerate(team)}
    links = {
        (slot, agent.name): _compile(layers.of(agent), "", beginning.below(slot), numbers, {})
        for slot, agent in members
    }
    return _compile(layers, text, beginning, numbers, links)


def _compile(
    layers: Layers, text: str, beginning: Beginning, numbers: Mapping[str, int], links: dict[tuple[str, str], Program]
) -> Program:
    """The program of one agent. `numbers` are those of the agents that hand over to each other, by name; `links` the
    programs of others by slot and name."""
    agent, config = layers.agent, layers.config
    ref = _model_ref(layers)
    resolved = layers.provider.resolve(ref)
    settings = _settings(layers, resolved)
    policy = merge_policies(agent.tool_policy, _policy(layers.default), _policy(layers.run))
    if layers.inherited is not None:
        policy = merge_policies(layers.inherited, None, policy)
    hidden = withheld(
        agent_type=config.metadata.get("agent_type"), multimodal=resolved.native_multimodal,
        sub_agents=bool(agent.sub_agents), background=any(map(in_background, agent.tools)),
    )  # fmt: skip
    registry = _registry(config)
    folder = config.workspace or beginning.workspace
    files = config.workspace_backend or LocalWorkspaceBackend(folder or DEFAULT_WORKSPACE)
    context = RunContext(
        run_id=beginning.run_id, agent_name=agent.name, model=str(ref), workspace=str(folder or ""),
        metadata=config.metadata, context=config.context,
    )  # fmt: skip
    request = ContextRequest(
        agent_name=agent.name, input=text, model=str(ref), trace_id=beginning.trace_id, workspace=files,
        context=config.context, max_prompt_chars=config.max_context_chars, metadata=config.metadata,
    )  # fmt: skip
    _check_extensions(layers)
    opening = open_run(agent, config, context, request, lambda: beginning.existing(()))
    if not opening.has_skills:
        hidden |= {"activate_skill"}
    tools = [tool for tool in _tools(agent, registry, config.metadata, hidden) if _enabled(tool, context)]
    workers = Giver(layers, ref, settings, policy, tools).workers()
    links |= {
        (worker.slot, worker.name): compile_run(worker.layers, "", beginning.below(worker.slot))
        for worker in workers if worker.layers is not None
    }  # fmt: skip
    refs = {slot: _link(name, program) for (slot, name), program in links.items()}
    refs |= {worker.slot: worker.fault for worker in workers if worker.fault is not None}
    parts = _Parts(
        layers, text, ref, resolved, settings, policy, tools, registry.replaced_schemas(), files, numbers, refs
    )
    definition = normalised(parts.describe(opening.prompt))
    model = _client(layers, resolved)
    program = Program(
        definition=definition, model=model, resolved=resolved, settings=settings,
        tools={tool.name: tool for tool in tools}, policy=policy, workspace=files,
        before_cycle_messages=config.before_cycle_messages, interruption_messages=config.interruption_messages,
        reconciliation_provider=config.reconciliation_provider,
        extensions=config.checkpoint_extensions,
        required_namespaces=layers.checkpoint.required_extension_namespaces if layers.checkpoint else (),
        context=config.context, opening=opening, session=config.session,
        host_cost_meter=config.host_cost_meter, links={slot: program for (slot, _), program in links.items()},
        event_store=config.event_store,
        event_store_fail_closed=config.event_store_fail_closed,
        provider=layers.provider, memory_providers=config.memory_providers,
        hooks=parts.hooks,
    )  # fmt: skip
    program.memory  # noqa: B018 - its models must be there
    return program


def _link(name: str, program: Program) -> CapabilityRef:
    return CapabilityRef(id=f"{LINK}{program.definition.digest}", version=name)


@dataclass(frozen=True)
class _Parts:
    """What the definition's sections are made from."""

    layers: Layers
    text: str
    ref: ModelRef
    resolved: ResolvedModelConfig
    settings: ModelSettings
    policy: ToolPolicy
    tools: Sequence[Tool]
    schemas: Mapping[str, dict[str, Any]]
    """By name, those that are shown instead of the tools' own."""
    files: WorkspaceBackend
    numbers: Mapping[str, int]
    """Of the agents that hand over to each other, by name."""
    linked: Mapping[str, CapabilityRef]
    """The names of other agents' definitions."""

    @cached_property
    def hooks(self) -> Hooks:
        return hooks_of(self.layers.agent, self.layers.config)

    def describe(self, prompt: str) -> dict[str, Any]:
        """The 20 fields, before normalisation."""
        config, checkpoint = self.layers.config, self.layers.checkpoint
        settings = self.settings.to_wire()
        timeout = settings.pop("timeout_seconds", None)
        return {
            "schema_version": "vv-agent.run-definition.v1",
            "agent": {"name": self.layers.agent.name, "type": None},
            "root_input": self.text,
            "compiled_prompt": prompt,
            "initial_messages": [message.to_wire() for message in conversation.opening_messages(config)],
            "initial_shared_state": dict(config.shared_state),
            "run_metadata": dict(config.metadata),
            "context_ref": self._wire(self._name("context", config.context)),
            "model": {
                "backend": self.resolved.backend,
                "model_id": self.resolved.model_id,
                "transport_timeout_seconds": timeout,
                "settings": settings,
            },
            "credential_slots": self._slots(settings),
            "runtime_controls": self._controls(),
            "tools": [self._tool(tool) for tool in self.tools],
            "tool_policy": self._policy(),
            "checkpoint_policy": _checkpoint_policy(checkpoint),
            "budget_limits": config.budget_limits.to_wire() if config.budget_limits else None,
            "output_schema": None if (kind := self.hooks.output_type) is None else output_schema(kind),
            "workspace_ref": self._workspace(),
            "session_ref": self._session(),
            "extensions": [
                {"namespace": extension.namespace, "version": extension.version, "required": extension.required}
                for extension in config.checkpoint_extensions
            ],
            "capability_refs": {slot: self._wire(ref) for slot, ref in self._refs().items()},
        }

    def _tool(self, tool: Tool) -> dict[str, Any]:
        needs = tool.needs_approval
        approval: dict[str, Any] = {"mode": "static", "required": bool(needs)}
        if not isinstance(needs, bool) and (ref := self._name(f"{APPROVAL_SLOT}{tool.name}", needs)) is not None:
            approval = {"mode": "referenced", "ref": self._wire(ref)}
        return {**_describe_tool(tool, self.schemas.get(tool.name)), "approval": approval}

    def _controls(self) -> dict[str, Any]:
        agent, config = self.layers.agent, self.layers.config
        memory = MemoryConfig.from_metadata(config.metadata)
        return {
            "max_cycles": config.max_cycles,
            "max_handoffs": config.max_handoffs,
            "no_tool_policy": str(config.no_tool_policy),
            "memory_compact_threshold": memory.compact_threshold,
            "memory_threshold_percentage": memory.warning_threshold_percentage,
            "allow_interruption": True,
            "native_multimodal": self.resolved.native_multimodal,
            "tool_use_behavior": agent.tool_use_behavior,
            "stop_at_tool_names": list(agent.stop_at_tool_names),
        }

    def _policy(self) -> dict[str, Any]:
        policy = self.policy
        return {
            "allowed_tools": None if policy.allowed_tools is None else list(policy.allowed_tools),
            "disallowed_tools": list(policy.disallowed_tools),
            "approval": str(policy.approval),
            "predicate_ref": self._wire(self._name("tool_policy.predicate", policy.can_use_tool)),
            "approval_timeout_seconds": self.layers.config.approval_timeout_seconds,
            "denied_side_effects": [str(effect) for effect in policy.denied_side_effects],
            "denied_capability_tags": list(policy.denied_capability_tags),
            "deny_terminal_tools": policy.deny_terminal_tools,
            "denied_cost_dimensions": list(policy.denied_cost_dimensions),
        }

    def _slots(self, settings: Mapping[str, Any]) -> list[str]:
        """The credential slots; of an agent beside the first one, those it has a value at."""
        checkpoint = self.layers.checkpoint
        slots = list(checkpoint.credential_slots) if checkpoint else []
        if self.numbers.get(self.layers.agent.name) == 0 and not self.layers.above:
            return slots
        return [slot for slot in slots if has_credential({"model": {"settings": settings}}, slot)]

    def _workspace(self) -> dict[str, str] | None:
        given = self._given.get("workspace")
        if given is not None:
            return self._wire(given)
        if not self.layers.checkpoint:
            return None
        if (ref := self.files.ref) is None:
            raise CheckpointError(
                "checkpoint_definition_unstable",
                f"this workspace ({type(self.files).__name__}) has no name a worker could open it by; "
                f"{self.files.remedy}",
            )
        return {"id": ref, "version": "1"}

    def _session(self) -> dict[str, str] | None:
        layers = self.layers
        return self._wire(conversation.reference(
            layers.config.session, self._given, checkpointed=layers.checkpoint is not None, elsewhere=layers.elsewhere,
        ))  # fmt: skip

    def _refs(self) -> dict[str, CapabilityRef]:
        """The names of the code a worker must find; in a run that stays here, of what has a name."""
        config = self.layers.config
        lifted = {slot for slot in self._given if slot in _LIFTED or slot.startswith(APPROVAL_SLOT)}
        refs = {slot: ref for slot, ref in self._given.items() if slot not in lifted}
        refs |= {**self._provider_refs(), **self.linked}
        refs |= recording.references(
            config.event_store, self._given, closed=config.event_store_fail_closed,
            checkpointed=self.layers.checkpoint is not None, elsewhere=self.layers.elsewhere,
        )  # fmt: skip
        if self.layers.checkpoint is not None:
            refs |= plain_refs(self.hooks)
        for number, tool in enumerate(self.tools):
            if (agent := agents.reference(tool, self.numbers)) is not None:
                refs[tool_slot(number)] = agent
            elif (ref := self._code(tool_slot(number), tool, f"tool {tool.name!r}")) is not None:
                refs[tool_slot(number)] = ref
        for slot, obj in self._code_that_decides():
            if (named := self._name(slot, obj)) is not None:
                refs[slot] = named
        if (
            config.metadata.keys() - KNOWN_METADATA - METADATA_NAMES - {AVAILABLE}
            and self.layers.checkpoint
            and not self.layers.above
            and "behavior_affecting_run_metadata" not in refs
        ):
            raise CheckpointError(
                "checkpoint_definition_unstable",
                "run metadata may change what the run does, so a checkpointed run needs a name for it; give "
                "CheckpointConfig(capability_refs={'behavior_affecting_run_metadata': CapabilityRef(...)})",
            )
        return refs

    def _code_that_decides(self) -> Iterator[tuple[str, Any]]:
        """Functions and objects by their slot. The first two kinds are asked once, at the start, and never loaded
        elsewhere; their names say whose prompt it is."""
        agent, config = self.layers.agent, self.layers.config
        yield "agent.instructions", agent.instructions if callable(agent.instructions) else None
        yield from ((f"context_provider:{n}", provider) for n, provider in enumerate(config.context_providers))
        yield from ((f"{MEMORY_SLOT}{n}", provider) for n, provider in enumerate(config.memory_providers))
        yield BEFORE_SLOT, config.before_cycle_messages
        yield INTERRUPT_SLOT, config.interruption_messages
        yield RECONCILE_SLOT, config.reconciliation_provider
        yield METER_SLOT, config.host_cost_meter
        yield from code_of(self.hooks)

    def _provider_refs(self) -> dict[str, CapabilityRef]:
        provider = self.layers.provider
        if hasattr(provider, "reference"):
            return {PROVIDER_SLOT: CapabilityRef(id=provider.reference(self.ref), version="1")}
        refs = {MODEL_SLOT: CapabilityRef(id=str(self.ref), version="1")}
        if (ref := self._code(PROVIDER_SLOT, provider, "the model provider")) is not None:
            refs[PROVIDER_SLOT] = ref
        return refs

    def _code(self, slot: str, obj: Any, what: str) -> CapabilityRef | None:
        """The import path of code that the starter itself has anyway; needed only where others carry the run out."""
        if slot in self._given:
            return self._given[slot]
        name = references.name_of(obj)
        if name is not None:
            return CapabilityRef(id=name, version=references.version_of(obj))
        if self.layers.elsewhere:
            raise ConfigError(
                "reference_required", f"workers cannot load {what} of this run: {references.why_unnamed(obj)}"
            )
        return None

    def _name(self, slot: str, obj: Any) -> CapabilityRef | None:
        """The stable name of code that decides behaviour; a checkpoint needs it."""
        if self.layers.checkpoint is None:
            return None
        return stable_ref(slot, obj, self._given)

    @property
    def _given(self) -> dict[str, CapabilityRef]:
        return dict(self.layers.checkpoint.capability_refs) if self.layers.checkpoint else {}

    @staticmethod
    def _wire(ref: CapabilityRef | None) -> dict[str, str] | None:
        return None if ref is None else ref.model_dump()


APPROVAL_SLOT = "tool_approval:"
_LIFTED = frozenset({"context", "workspace", "session", "tool_policy.predicate", recording.SLOT})
"""Slots that have fields of their own."""


def _check_extensions(layers: Layers) -> None:
    extensions = layers.config.checkpoint_extensions
    check_registered(extensions)
    if layers.checkpoint is not None:
        check_available({}, extensions, layers.checkpoint.required_extension_namespaces)
    if extensions and layers.elsewhere:
        raise ConfigError(
            "extensions_unavailable",
            "checkpoint extensions live in the process that registers them; use execution_mode='inline', or keep the "
            "state in shared_state",
        )


def _checkpoint_policy(checkpoint: CheckpointConfig | None) -> dict[str, Any]:
    values = checkpoint or CheckpointConfig(store=object())
    return {
        "ambiguous_model_policy": str(values.ambiguous_model_policy),
        "ambiguous_tool_policy": str(values.ambiguous_tool_policy),
        "max_extension_state_bytes": values.max_extension_state_bytes,
    }


def _client(layers: Layers, resolved: ResolvedModelConfig) -> Model:
    """What is called for the model, with a copy of each call if that is wanted."""
    client, folder = layers.provider.client(resolved), layers.config.debug_dump_dir
    if folder is None:
        return as_model(client)
    if layers.elsewhere:
        raise ConfigError(
            "run_config_invalid", "workers write no debug_dump_dir; use it with execution_mode='inline' or 'threaded'"
        )
    from vv_agent.llm.dump import DumpingModel

    return DumpingModel(client, folder)


def _describe_tool(tool: Tool, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    function = (schema or tool.to_openai_schema())["function"]
    shown = {"name": tool.name, "description": function.get("description", ""), "parameters": function["parameters"]}
    return {
        "schema": {"type": "function", "function": shown},
        "tool_metadata": None if tool.tool_metadata is None else tool.tool_metadata.to_wire(),
        "timeout_seconds": tool.timeout_seconds,
    }


def _model_ref(layers: Layers) -> ModelRef:
    model = effective_model(layers.agent, layers.default, layers.run)
    if model is None:
        ref = layers.provider.default_model_ref()
        if ref is None:
            raise ConfigError(
                "model_not_configured",
                f"agent model is not configured: give {layers.agent.name!r} a model, or RunConfig(model=...)",
            )
        return ref
    return ModelRef.named(model) if isinstance(model, str) else model


def _settings(layers: Layers, resolved: ResolvedModelConfig) -> ModelSettings:
    merged = layers.provider.default_settings(resolved)
    default = layers.default.model_settings if layers.default else None
    run = layers.run.model_settings if layers.run else None
    for layer in (default, layers.agent.model_settings, run):
        merged = merged.merged(layer)
    return merged


def _policy(config: RunConfig | None) -> ToolPolicy | None:
    return config.tool_policy if config else None


def _registry(config: RunConfig) -> ToolRegistry:
    """The registry of the config's factory, else a new one with the built-in tools."""
    try:
        registry = (config.tool_registry_factory or build_default_registry)()
    except Exception as error:  # the host's own code
        what = f"tool_registry_factory failed: {type(error).__name__}: {error}"
        raise ConfigError("run_config_invalid", what) from error
    if not isinstance(registry, ToolRegistry):
        raise ConfigError("run_config_invalid", f"tool_registry_factory gave {registry!r}, not a ToolRegistry")
    return registry


def _tools(agent: Agent, registry: ToolRegistry, metadata: Mapping[str, Any], hidden: Collection[str]) -> list[Tool]:
    """The registry's tools that the model may be shown, then the agent's; a name is taken once. The `hidden` ones must
    be among the agent's."""
    tools: dict[str, Tool] = {tool.name: tool for tool in registry.shown_tools()}
    transfers = [HandoffTool.of(one) for one in agent.transfers]
    for tool in (*transfers, *agent.tools):
        if not isinstance(tool, Tool):
            raise ConfigError(
                "tool_invalid", f"{tool!r} is no tool; decorate the function with @function_tool, or use FunctionTool"
            )
        if tools.setdefault(tool.name, tool) is not tool:
            raise ConfigError(
                "tool_already_registered",
                f"tool already registered: {tool.name}; two tools of agent {agent.name!r} have that name, rename one",
            )
    listed = {tool.name for tool in (*transfers, *agent.tools)}
    offered = [tool for name, tool in tools.items() if name in listed or name not in hidden]
    return [tool.for_run(metadata) if isinstance(tool, Bash) else tool for tool in offered]


def _enabled(tool: Tool, context: RunContext) -> bool:
    return tool.is_enabled if isinstance(tool.is_enabled, bool) else bool(tool.is_enabled(context))
