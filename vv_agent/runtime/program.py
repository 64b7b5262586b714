"""The program of a run: what its definition describes, as objects that can be called.

A starter compiles a program from live objects (`compile_run`); a worker builds the same one from the stored
definition, by import path and settings (`Programs.get`). Both compare equal by the definition's digest.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from vv_agent import references
from vv_agent.agent import NoToolPolicy
from vv_agent.budget import RunBudgetLimits
from vv_agent.definition import REDACTED, CapabilityRef, DefinedTool, RunDefinition, RuntimeControls, StaticApproval
from vv_agent.errors import CannotServe, ConfigError, ReferenceInvalid, StoreError
from vv_agent.event_store import open_event_store
from vv_agent.hooks import Hooks
from vv_agent.results import ToolDirective, ToolExecutionResult, ToolStatus
from vv_agent.runtime.recording import CLOSED_SLOT, SLOT
from vv_agent.tool_metadata import ToolMetadata
from vv_agent.tools import agents
from vv_agent.tools.base import Tool
from vv_agent.tools.orchestrator import ToolOrchestrator
from vv_agent.tools.policy import ToolPolicy, merge_policies

if TYPE_CHECKING:
    from vv_agent.budget import HostCostMeter
    from vv_agent.checkpoint.extensions import CheckpointExtension
    from vv_agent.checkpoint.reconciliation import ReconciliationProvider
    from vv_agent.checkpoint.store import CheckpointStore
    from vv_agent.config import BeforeCycleMessages, InterruptionMessages
    from vv_agent.event_store import RunEventStore
    from vv_agent.llm.base import Model
    from vv_agent.llm.reference import ModelProvider, ResolvedModelConfig
    from vv_agent.llm.settings import ModelSettings
    from vv_agent.memory.provider import MemoryProvider
    from vv_agent.runtime.memory import Setup
    from vv_agent.runtime.opening import Opening
    from vv_agent.runtime.recipe import CycleRecipe
    from vv_agent.sessions.base import Session
    from vv_agent.workspace import WorkspaceBackend

MODEL_SLOT, PROVIDER_SLOT, BEFORE_SLOT, RECONCILE_SLOT, METER_SLOT = (
    "model", "model_provider", "before_cycle_messages", "reconciliation_provider", "host_cost_meter",
)  # fmt: skip
INTERRUPT_SLOT = "interruption_messages"
SETTINGS_PREFIX = "settings:"
FAULT_PREFIX = "fault:"
AGENT, SUB_AGENT, AGENT_TOOL = "agent:", "sub_agent:", "agent_tool:"
"""Slots of other agents: whom a run may be handed to (by number, 0 is the one that begins), whom it may give work, and
whom its tools stand for. The reference says which definition, its version what the agent (or the tool) is called."""
MEMORY_SLOT = "memory_provider:"


@dataclass(frozen=True)
class Controls:
    """Limits and switches of the loop, typed."""

    max_cycles: int
    no_tool_policy: NoToolPolicy
    tool_use_behavior: str
    stop_at_tool_names: tuple[str, ...]

    @classmethod
    def of(cls, defined: RuntimeControls) -> Controls:
        return cls(
            defined.max_cycles,
            NoToolPolicy(defined.no_tool_policy),
            defined.tool_use_behavior,
            tuple(defined.stop_at_tool_names),
        )


@dataclass(frozen=True)
class Program:
    """Everything a cycle calls. `tools` are the handlers by name; what the model sees is the definition's."""

    definition: RunDefinition
    model: Model
    resolved: ResolvedModelConfig
    settings: ModelSettings
    tools: Mapping[str, Tool]
    policy: ToolPolicy
    workspace: WorkspaceBackend | None = None
    before_cycle_messages: BeforeCycleMessages | None = None
    interruption_messages: InterruptionMessages | None = None
    reconciliation_provider: ReconciliationProvider | None = None
    extensions: Sequence[CheckpointExtension] = ()
    required_namespaces: Sequence[str] = ()
    context: Any = None
    opening: Opening | None = None
    """What a starter begins a run with; of no use once there is a record."""
    host_cost_meter: HostCostMeter | None = None
    event_store: RunEventStore | None = None
    event_store_fail_closed: bool = False
    hooks: Hooks = field(default_factory=Hooks)
    session: Session | None = None
    load_session: Callable[[str], Session] | None = None
    """Opens the session of a stored definition by its name."""
    links: Mapping[str, Program] = field(default_factory=dict)
    """Other agents of the run by their slot, of a starter: whom it may be handed to, and whom it may give work."""
    load_linked: Callable[[str], Program] | None = None
    """Gives the program of a stored definition by its digest."""
    provider: ModelProvider | None = None
    """Where the models that serve memory come from."""
    memory_providers: Sequence[MemoryProvider] = ()

    @cached_property
    def controls(self) -> Controls:
        return Controls.of(self.definition.runtime_controls)

    @cached_property
    def memory(self) -> Setup:
        """How the run's messages are kept within the model's room; its models are resolved once."""
        from vv_agent.runtime.memory import Setup

        return Setup.of(self)

    @cached_property
    def advertised(self) -> tuple[Mapping[str, Any], ...]:
        """The tool schemas the model is shown: the stored ones, less what the policy denies whatever the arguments
        are."""
        shown = {name for name, tool in self.tools.items() if self.policy.advertises(tool)}
        schemas = (tool.tool_schema for tool in self.definition.tools)
        return tuple(schema.model_dump(mode="json") for schema in schemas if schema.function.name in shown)

    @property
    def limits(self) -> RunBudgetLimits | None:
        """The limits the run was started with."""
        defined = self.definition.budget_limits
        return None if defined is None else RunBudgetLimits.from_wire(defined.model_dump(mode="json"))

    @property
    def has_session(self) -> bool:
        return self.session is not None or self.definition.session_ref is not None

    @cached_property
    def conversation(self) -> Session | None:
        """The run's session, opened; `CannotServe` when this process cannot."""
        ref = self.definition.session_ref
        if self.session is not None or ref is None or self.load_session is None:
            return self.session
        return self.load_session(ref.id)

    def linked(self, slot: str) -> Program:
        """The program of another agent that the definition names."""
        if slot in self.links:
            return self.links[slot]
        digest = self.definition.linked(slot)
        assert self.load_linked is not None
        assert digest is not None
        return self.load_linked(digest)

    def narrowed(self, denials: Mapping[str, Any]) -> Program:
        """This program under further denials."""
        if not denials:
            return self
        return replace(self, policy=merge_policies(self.policy, None, ToolPolicy(**denials)))

    def slots(self, kind: str) -> dict[str, str]:
        """Slots of linked agents of this kind, by what they are called."""
        refs = self.definition.capability_refs
        return {ref.version: slot for slot, ref in refs.items() if slot.startswith(kind)}

    @cached_property
    def closure(self) -> dict[str, Program]:
        """This program and all that are linked below it, by digest."""
        found = {self.definition.digest: self}
        for program in self.links.values():
            found |= program.closure
        return found

    @property
    def reconciles_models(self) -> bool:
        """A model call is recorded before it is made and never made again without a decision."""
        return self.definition.checkpoint_policy.ambiguous_model_policy == "require_reconciliation"

    @property
    def reconciles_tools(self) -> bool:
        """A tool call that failed after its start without saying whether it had its effect is never passed over."""
        return self.definition.checkpoint_policy.ambiguous_tool_policy == "require_reconciliation"

    @property
    def max_extension_bytes(self) -> int:
        return self.definition.checkpoint_policy.max_extension_state_bytes

    @cached_property
    def _defined(self) -> dict[str, DefinedTool]:
        return {tool.tool_schema.function.name: tool for tool in self.definition.tools}

    @cached_property
    def _shown_names(self) -> frozenset[str]:
        return frozenset(schema["function"]["name"] for schema in self.advertised)

    def idempotency(self, name: str) -> Literal["supported", "unsupported", "unknown"]:
        """What a tool declared when the run began."""
        defined = self._defined.get(name)
        return defined.tool_metadata.idempotency if defined and defined.tool_metadata else "unknown"

    def asks(self, name: str) -> bool:
        """Whether the tool asked for approval of every call when the run began."""
        approval = self._defined[name].approval if name in self._defined else None
        return isinstance(approval, StaticApproval) and approval.required

    def declared(self, name: str) -> ToolMetadata | None:
        """A tool's declaration, for events."""
        tool = self.tools.get(name)
        return tool.tool_metadata if tool is not None else None

    @cached_property
    def orchestrator(self) -> ToolOrchestrator:
        """What a call has to pass, by the schemas the model was shown."""
        parameters = {name: tool.tool_schema.function.parameters for name, tool in self._defined.items()}
        return ToolOrchestrator(self.tools, self.policy, self._shown_names, parameters)

    def finishing(self, name: str, result: ToolExecutionResult) -> str | None:
        """The completion reason if the agent's `tool_use_behavior` makes this result finish the run (spec/20)."""
        if result.status_code is not ToolStatus.SUCCESS or result.directive is not ToolDirective.CONTINUE:
            return None
        if self.controls.tool_use_behavior == "stop_on_first_tool":
            return "stop_on_first_tool"
        if self.controls.tool_use_behavior == "stop_at_tool_names" and name in self.controls.stop_at_tool_names:
            return "stop_at_tool_name"
        return None


@dataclass
class Programs:
    """Programs of this process: the live ones of its starters, and those it builds from stored definitions.

    `imports` are the modules code may be loaded from. `settings_provider` gives the provider of the settings file
    when a definition names a model of it; it is called at first use. `builtins` are the handlers of the built-in
    tools by name.
    """

    store: CheckpointStore
    imports: tuple[str, ...] = ()
    settings_provider: Callable[[], ModelProvider] | None = None
    session_urls: tuple[str | None, ...] = ()
    """Where this process knows stores of sessions, passwords included."""
    size: int = 128
    _live: dict[str, list[Program]] = field(default_factory=dict)
    _roots: dict[str, str] = field(default_factory=dict)
    """Root key of the runs below a starter's."""
    _built: OrderedDict[str, Program] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def bind(self, key: str, program: Program) -> None:
        """Use a starter's live objects for a run of its own; those of the newest starter, if there are several."""
        with self._lock:
            self._live.setdefault(key, []).append(program)

    def unbind(self, key: str, program: Program) -> None:
        with self._lock:
            left = [other for other in self._live.pop(key, ()) if other is not program]
            if left:
                self._live[key] = left
            else:
                self._roots = {below: root for below, root in self._roots.items() if root != key}

    def live_type(self, key: str, definition: str) -> Any:
        """The output type a starter of this process gave the run."""
        mine = [live.hooks.output_type for live in self._live.get(key, ()) if live.definition.digest == definition]
        return mine[-1] if mine else None

    def get(self, recipe: CycleRecipe) -> Program:
        """The program of a run; `CannotServe` when this process has not what it takes."""
        for live in reversed(self._live.get(self._roots.get(recipe.key, recipe.key), ())):
            if (program := live.closure.get(recipe.definition)) is not None:
                return program
        return self._stored(recipe.definition)

    def adopt(self, key: str, root: str) -> None:
        """A run below another one uses the live objects of that one's starter, if it is of this process."""
        with self._lock:
            if root in self._live and key != root:
                self._roots[key] = root

    def _stored(self, digest: str) -> Program:
        with self._lock:
            built = self._built.get(digest)
            if built is not None:
                self._built.move_to_end(digest)
                return built
        built = self._build(digest)
        with self._lock:
            self._built[digest] = built
            while len(self._built) > self.size:
                self._built.popitem(last=False)
        return built

    def _build(self, digest: str) -> Program:
        definition = RunDefinition.decode(self.store.definition(digest))
        if definition.digest != digest:
            raise StoreError("store_corrupt", f"the stored definition {digest} has digest {definition.digest}")
        try:
            return self._load(definition)
        except (ReferenceInvalid, ConfigError) as error:
            raise CannotServe("run_incompatible", f"this process cannot run it: {error}") from error

    def _load(self, definition: RunDefinition) -> Program:
        from vv_agent.llm.base import Model
        from vv_agent.llm.reference import ModelRef
        from vv_agent.llm.settings import ModelSettings
        from vv_agent.runtime.hooks import load_hooks
        from vv_agent.workspace import open_workspace

        refs = {slot: ref.id for slot, ref in definition.capability_refs.items()}
        provider, ref = self._provider(refs)
        resolved = provider.resolve(ModelRef.parse(ref))
        if resolved.model_id != definition.model.model_id:
            raise ConfigError(
                "model_mismatch",
                f"the run was started with model id {definition.model.model_id!r}, here {ref!r} is "
                f"{resolved.model_id!r}; make the settings of workers and clients agree",
            )
        stored = definition.model.settings.model_dump(mode="json", exclude_unset=True)
        stored["timeout_seconds"] = definition.model.transport_timeout_seconds
        _no_redacted(stored)
        model = provider.client(resolved)
        assert isinstance(model, Model)
        predicate = definition.tool_policy.predicate_ref
        program = Program(
            definition=definition,
            model=model,
            resolved=resolved,
            settings=provider.default_settings(resolved).merged(ModelSettings.from_wire(stored)),
            tools={
                tool.tool_schema.function.name: self._tool(n, tool, definition.capability_refs)
                for n, tool in enumerate(definition.tools)
            },
            policy=policy_of(definition, self._object(predicate.id) if predicate else None),
            workspace=open_workspace(definition.workspace_ref.id) if definition.workspace_ref else None,
            before_cycle_messages=self._optional(refs, BEFORE_SLOT),
            interruption_messages=self._optional(refs, INTERRUPT_SLOT),
            reconciliation_provider=self._optional(refs, RECONCILE_SLOT),
            host_cost_meter=self._optional(refs, METER_SLOT),
            hooks=load_hooks(refs, self._object),
            context=self._object(definition.context_ref.id) if definition.context_ref else None,
            load_session=self._session,
            load_linked=self._stored,
            event_store=self._event_store(refs),
            event_store_fail_closed=CLOSED_SLOT in refs,
            provider=provider,
            memory_providers=[
                self._object(refs[slot]) for slot in sorted(refs, key=_number) if slot.startswith(MEMORY_SLOT)
            ],
        )
        program.memory  # noqa: B018 - its models must be there
        return program

    def _provider(self, refs: Mapping[str, str]) -> tuple[ModelProvider, str]:
        name = refs.get(PROVIDER_SLOT)
        if name is None:
            raise ConfigError(
                "reference_required",
                "the model provider of this run lives in the process that started it; run it again there with the same "
                "agent and key",
            )
        if name.startswith(SETTINGS_PREFIX):
            if self.settings_provider is None:
                raise ConfigError("settings_not_found", "the run names a model of the settings file, here is none")
            return self.settings_provider(), name.removeprefix(SETTINGS_PREFIX)
        return self._object(name), refs[MODEL_SLOT]

    def _tool(self, number: int, defined: DefinedTool, refs: Mapping[str, CapabilityRef]) -> Tool:
        name = defined.tool_schema.function.name
        slot = tool_slot(number)
        if slot not in refs:
            raise ConfigError(
                "reference_required",
                f"tool {name!r} of this run is local to the process that started it; run it again there with the same "
                "agent and key, or move the tool to the top level of a module",
            )
        if (agent := agents.defined(defined, refs[slot])) is not None:
            return agent
        tool: Tool = self._object(refs[slot].id)
        check_compatible(tool, defined)
        return tool

    def _session(self, ref: str) -> Session:
        from vv_agent.runtime.conversation import SESSION_PREFIX
        from vv_agent.sessions.base import open_session

        if ref.startswith(SESSION_PREFIX):
            return open_session(ref.removeprefix(SESSION_PREFIX), self.session_urls)
        try:
            session: Session = self._object(ref)
        except ReferenceInvalid as error:
            raise CannotServe("session_unavailable", f"the session of the run cannot be opened: {error}") from error
        return session

    def _event_store(self, refs: Mapping[str, str]) -> RunEventStore | None:
        ref = refs.get(SLOT) or refs.get(CLOSED_SLOT)
        if ref is None:
            return None
        store: RunEventStore = open_event_store(ref) or self._object(ref)
        return store

    def _optional(self, refs: Mapping[str, str], slot: str) -> Any:
        return self._object(refs[slot]) if slot in refs else None

    def _object(self, ref: str) -> Any:
        return references.load(ref, self.imports)


def _number(slot: str) -> int:
    """The number at the end of a slot."""
    number = slot.rpartition(":")[2]
    return int(number) if number.isdigit() else 0


def tool_slot(number: int) -> str:
    """The slot that names the code of the tool at this place of the definition."""
    return f"tool:{number}"


def policy_of(definition: RunDefinition, predicate: Any) -> ToolPolicy:
    """The stored policy as an object."""
    stored = definition.tool_policy
    return ToolPolicy(
        allowed_tools=stored.allowed_tools,
        disallowed_tools=stored.disallowed_tools,
        approval=stored.approval,  # type: ignore[arg-type]  # read by its constructor
        can_use_tool=predicate,
        denied_side_effects=stored.denied_side_effects,
        denied_capability_tags=stored.denied_capability_tags,
        deny_terminal_tools=stored.deny_terminal_tools,
        denied_cost_dimensions=stored.denied_cost_dimensions,
    )


def check_compatible(tool: Tool, defined: DefinedTool) -> None:
    """Refuse a handler that does not fit the stored schema: incompatible parameters, or weaker idempotency (DESIGN
    5.5).

    An edited description is no mismatch: the model sees the stored one.
    """
    name = defined.tool_schema.function.name
    stored, current = defined.tool_schema.function.parameters, tool.params_json_schema
    known = current.get("properties", {})
    lost = sorted(set(stored.get("properties", {})) - set(known))
    added = sorted(set(current.get("required", [])) - set(stored.get("required", [])))
    changed = sorted(
        field
        for field, schema in stored.get("properties", {}).items()
        if field in known and schema.get("type") != known[field].get("type")
    )
    before = defined.tool_metadata.idempotency if defined.tool_metadata else "unknown"
    now = tool.tool_metadata.idempotency.value if tool.tool_metadata else "unknown"
    problems = [
        *(f"it lost {field!r}" for field in lost),
        *(f"it now requires {field!r}" for field in added),
        *(f"{field!r} has another type" for field in changed),
        *(["it no longer declares idempotency 'supported'"] if before == "supported" != now else []),
    ]
    if problems:
        raise ConfigError(
            "tool_incompatible",
            f"tool {name!r} is not the one the run was started with: {'; '.join(problems)}; deploy the same version, "
            "or start a new run",
        )


def _no_redacted(settings: Mapping[str, Any]) -> None:
    """Credentials never lie in a definition: a run that needs one from its settings can only run where it was
    started."""
    for name in ("extra_headers", "extra_body", "extra_args"):
        for field_name, value in (settings.get(name) or {}).items():
            if value == REDACTED:
                raise ConfigError(
                    "credential_missing",
                    f"{name}[{field_name!r}] is a credential that is not stored with the run; put it into the settings "
                    "file of the workers",
                )
