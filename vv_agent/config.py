"""How one run is carried out: what a RunConfig may set, and which layer wins."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vv_agent._facade import (
    FUNCTION,
    LIST,
    MODEL,
    MODEL_PROVIDER,
    MODEL_SETTINGS,
    TOOL_POLICY,
    Kind,
    check_kinds,
    having,
    only_known,
)
from vv_agent.agent import MAX_CYCLES, Agent, NoToolPolicy, check_max_cycles
from vv_agent.errors import ConfigError

if TYPE_CHECKING:
    from vv_agent.approvals import ApprovalBroker, ApprovalProvider
    from vv_agent.budget import HostCostMeter, RunBudgetLimits
    from vv_agent.cancellation import CancellationToken
    from vv_agent.checkpoint.config import CheckpointConfig
    from vv_agent.checkpoint.extensions import CheckpointExtension
    from vv_agent.checkpoint.reconciliation import ReconciliationProvider
    from vv_agent.context import ContextProvider
    from vv_agent.event_store import RunEventStore
    from vv_agent.events import RunEvent
    from vv_agent.llm import ModelProvider, ModelRef, ModelSettings
    from vv_agent.llm.provider import VvLlmClient
    from vv_agent.llm.reference import ResolvedModelConfig
    from vv_agent.memory.provider import MemoryProvider
    from vv_agent.messages import Message
    from vv_agent.sessions.base import Session
    from vv_agent.tools import ToolPolicy, ToolRegistry
    from vv_agent.workspace import WorkspaceBackend

DEFAULT_MAX_CYCLES = 10
DEFAULT_MAX_HANDOFFS = 10
BeforeCycleMessages = Callable[[int, Sequence["Message"], Mapping[str, Any]], Sequence["Message"]]
"""(cycle number, messages so far, shared state) -> messages to add before the model is called."""
InterruptionMessages = Callable[[], Sequence["Message"]]
"""() -> messages that steer the run."""


class ExecutionMode(StrEnum):
    """Where cycles are advanced: in the caller's thread, on a pool of threads, or by workers."""

    INLINE = "inline"
    THREADED = "threaded"
    DISTRIBUTED = "distributed"


@only_known("run_config_invalid")
@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Options of one run; an unset field is decided by the runner's default, the agent or the framework.

    `checkpoint_key` is the short form of a `CheckpointConfig` with this key, the store of the settings and the policy
    `resume_if_present`: the same call made again attaches to the run, wherever it stands. `stream` sees every event
    of the run as it happens; its errors are ignored. `before_cycle_messages` is called between claim and model call
    of each cycle and what it returns is saved with the model's answer, so that a retry does not call it again.
    `interruption_messages` is asked before each model call and before the tools of a batch start; what it returns
    steers the run as `RunHandle.steer` does. With
    a `session` the run begins with its items (unless there are `initial_messages`) and each segment that ends adds its
    messages to it, once. `context_providers` add fragments to the system prompt, which has at most `max_context_chars`
    code points: a fragment that would pass the limit is left out as a whole. `memory_providers` see each compaction of
    the messages; the numbers of memory stand in `metadata` (`vv_agent.memory.MemoryConfig`). `tool_registry_factory` is
    called once, when the run starts, and gives the tools that stand before the agent's own (default:
    `build_default_registry`). `hooks` are `RuntimeHook`s, which follow the agent's, and `after_cycle_hooks` are
    `AfterCycleHook`s.
    `log_preview_chars` writes a line of at most so many characters to the logger `vv_agent.run` for each durable event
    seen here; `debug_dump_dir` is a folder that gets a file for each model call (not for runs of other processes).
    """

    model: ModelRef | str | None = None
    model_provider: ModelProvider | str | None = None
    model_settings: ModelSettings | None = None
    workspace: str | Path | None = None
    workspace_backend: WorkspaceBackend | None = None
    session: Session | None = None
    budget_limits: RunBudgetLimits | None = None
    host_cost_meter: HostCostMeter | None = None
    event_store: RunEventStore | None = None
    event_store_fail_closed: bool = False
    approval_provider: ApprovalProvider | None = None
    approval_broker: ApprovalBroker | None = None
    approval_timeout_seconds: float | None = None
    initial_messages: Sequence[Message] | None = None
    max_cycles: int | None = None
    max_handoffs: int | None = None
    no_tool_policy: NoToolPolicy | None = None
    tool_policy: ToolPolicy | None = None
    tool_registry_factory: Callable[[], ToolRegistry] | None = None
    execution_mode: ExecutionMode | None = None
    execution_backend: Any = None
    cancellation_token: CancellationToken | None = None
    context: Any = None
    context_providers: Sequence[ContextProvider] = ()
    memory_providers: Sequence[MemoryProvider] = ()
    max_context_chars: int | None = None
    shared_state: Mapping[str, Any] = field(default_factory=dict)
    hooks: Sequence[Any] = ()
    after_cycle_hooks: Sequence[Any] = ()
    before_cycle_messages: BeforeCycleMessages | None = None
    interruption_messages: InterruptionMessages | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    log_preview_chars: int | None = None
    debug_dump_dir: str | Path | None = None
    stream: Callable[[RunEvent], object] | None = None
    tracing: Mapping[str, Any] = field(default_factory=dict)
    checkpoint_config: CheckpointConfig | None = None
    checkpoint_key: str | None = None
    checkpoint_extensions: Sequence[CheckpointExtension] = ()
    reconciliation_provider: ReconciliationProvider | None = None
    sub_task_manager: Any = None
    """A `SubTaskManager`: it looks at the work that the run gives to other agents."""

    def __post_init__(self) -> None:
        check_max_cycles(self.max_cycles)
        most = self.max_handoffs
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or not 0 <= most <= MAX_CYCLES):
            raise ConfigError("run_config_invalid", f"max_handoffs must be between 0 and {MAX_CYCLES}")
        if self.checkpoint_key is not None and self.checkpoint_config is not None:
            raise ConfigError(
                "run_config_invalid", "give checkpoint_key or checkpoint_config, not both: the config has its own key"
            )
        for name in ("max_context_chars", "log_preview_chars"):
            limit = getattr(self, name)
            if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
                raise ConfigError("run_config_invalid", f"{name} {limit!r} must be a positive whole number")
        seconds = self.approval_timeout_seconds
        fits = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < math.inf
        if seconds is not None and not fits:
            raise ConfigError("run_config_invalid", f"approval_timeout_seconds {seconds!r} must be a number above 0")
        if self.session is not None and (isinstance(self.session, type) or not _can(self.session, "get_items")):
            raise ConfigError("session_invalid", f"{self.session!r} is no Session; use e.g. SqliteSession(path, id)")
        _check_kinds(self)
        check_kinds("run_config_invalid", "RunConfig", vars(self), _KINDS)
        object.__setattr__(self, "tracing", check_tracing(self.tracing))
        for name, method, example in _OBJECTS:
            value = getattr(self, name)
            if value is not None and (isinstance(value, type) or not _can(value, method)):
                raise ConfigError("run_config_invalid", f"{name} {value!r} has no method {method}; give {example}")
        for name, kind in (("execution_mode", ExecutionMode), ("no_tool_policy", NoToolPolicy)):
            value = getattr(self, name)
            if value is not None:
                try:
                    object.__setattr__(self, name, kind(value))
                except ValueError:
                    raise ConfigError(
                        "run_config_invalid", f"{name} {value!r} is not one of {', '.join(kind)}"
                    ) from None


_OBJECTS = (
    ("approval_provider", "decide", "an ApprovalProvider"), ("approval_broker", "register", "an ApprovalBroker"),
    ("host_cost_meter", "read", "a HostCostMeter"), ("budget_limits", "to_wire", "RunBudgetLimits(...)"),
    ("workspace_backend", "read_bytes", "a WorkspaceBackend"),
    ("sub_task_manager", "bind", "a SubTaskManager"),
    ("event_store", "replay", "a RunEventStore, e.g. JsonlRunEventStore(path)"),
)  # fmt: skip
"""Options that are objects, with a method each of them has."""

_MESSAGE = having("a Message", "role", "to_wire")
_KINDS = {
    "interruption_messages": FUNCTION, "before_cycle_messages": FUNCTION, "stream": FUNCTION,
    "tool_registry_factory": FUNCTION, "memory_providers": LIST, "hooks": LIST, "after_cycle_hooks": LIST,
    "reconciliation_provider": having("a ReconciliationProvider", "reconcile"),
    "cancellation_token": having("a CancellationToken", "cancel", "on_cancel"), "tool_policy": TOOL_POLICY,
    "model": MODEL, "model_provider": MODEL_PROVIDER, "model_settings": MODEL_SETTINGS,
    "initial_messages": Kind("a list of Message", lambda given: LIST.fits(given) and all(map(_MESSAGE.fits, given))),
}  # fmt: skip


def _check_kinds(config: RunConfig) -> None:
    for name in ("context_providers", "checkpoint_extensions", "initial_messages"):
        value = getattr(config, name)
        if value is not None and not isinstance(value, list | tuple):
            raise ConfigError("run_config_invalid", f"{name} must be a list, not {value!r}")
    for name in ("metadata", "shared_state"):
        if not isinstance(getattr(config, name), Mapping):
            raise ConfigError("run_config_invalid", f"{name} must be a mapping, not {getattr(config, name)!r}")
    check_workspace(config.workspace)


def check_workspace(folder: str | Path | None) -> None:
    """`ConfigError` for what names no folder."""
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise ConfigError("run_config_invalid", f"workspace must be the path of a folder, not {folder!r}")


def check_tracing(given: Mapping[str, Any]) -> dict[str, Any]:
    """Trace controls without what is blank; `ConfigError` for a name that is none, a wrong text or sink."""
    known = ("sink", "trace_id", "workflow_name")
    if not isinstance(given, Mapping) or (wrong := sorted(set(map(str, given)) - set(known))):
        what = f"has no {wrong[0]!r}" if isinstance(given, Mapping) else f"{given!r} is no mapping"
        raise ConfigError("run_config_invalid", f"tracing {what}; it takes {', '.join(known)}")
    kept: dict[str, Any] = {}
    for name in ("trace_id", "workflow_name"):
        text = given.get(name)
        if text is not None and not isinstance(text, str):
            raise ConfigError("run_config_invalid", f"tracing {name} {text!r} must be a text")
        if text and text.strip():
            kept[name] = text.strip()
    sink = given.get("sink")
    sinks = tuple(sink) if isinstance(sink, list | tuple) else (sink,) if sink is not None else ()
    for one in sinks:
        if isinstance(one, type) or not all(_can(one, name) for name in ("on_span_start", "on_span_end", "flush")):
            raise ConfigError(
                "run_config_invalid", f"tracing sink {one!r} is no TraceSink; use JsonlTraceExporter(path)"
            )
    return kept | ({"sink": sinks} if sinks else {})


def _can(value: object, method: str) -> bool:
    return callable(getattr(value, method, None))


_KEYWISE = ("metadata", "shared_state", "tracing")
_CONCATENATED = ("checkpoint_extensions", "context_providers", "memory_providers", "hooks", "after_cycle_hooks")
_OWN_RULE = ("model", "model_settings", "tool_policy")


def effective_config(agent: Agent, default: RunConfig | None, run: RunConfig | None) -> RunConfig:
    """The one table of precedence (spec/20): run, then runner default, then agent, then framework.

    `metadata`, `shared_state` and `tracing` are merged key by key, extensions, providers and hooks appended (an
    after-cycle hook that keeps state is one of the extensions), everything else is replaced as a whole. Model, model
    settings and tool policy follow rules of their own (`effective_model`, and the callers of `ModelSettings.merged` and
    `ToolPolicy.merged`), because the agent's and the provider's parts stand between the layers.
    """
    base, over = default or RunConfig(), run or RunConfig()
    values: dict[str, Any] = {}
    for item in fields(RunConfig):
        low, high = getattr(base, item.name), getattr(over, item.name)
        if item.name in _KEYWISE:
            values[item.name] = {**low, **high}
        elif item.name in _CONCATENATED:
            values[item.name] = (*low, *high)
        elif item.name == "event_store_fail_closed":
            values[item.name] = low or high
        elif item.name in _OWN_RULE:
            values[item.name] = high
        else:
            values[item.name] = low if high is None else high
    if over.checkpoint_key is not None or over.checkpoint_config is not None:  # one choice, replaced as a whole
        values["checkpoint_key"], values["checkpoint_config"] = over.checkpoint_key, over.checkpoint_config
    effective = RunConfig(**values)
    return replace(
        effective,
        max_cycles=effective.max_cycles or agent.max_cycles or DEFAULT_MAX_CYCLES,
        max_handoffs=DEFAULT_MAX_HANDOFFS if effective.max_handoffs is None else effective.max_handoffs,
        no_tool_policy=effective.no_tool_policy or agent.no_tool_policy or NoToolPolicy.CONTINUE,
        metadata={**agent.metadata, **effective.metadata},
        checkpoint_extensions=(*effective.checkpoint_extensions, *_stateful(effective)),
    )


def _stateful(config: RunConfig) -> list[Any]:
    """After-cycle hooks that keep state with the run and are not listed as extensions already."""
    if not config.after_cycle_hooks:
        return []
    from vv_agent.checkpoint.extensions import CheckpointExtension

    known = [id(extension) for extension in config.checkpoint_extensions]
    return [
        hook for hook in config.after_cycle_hooks if isinstance(hook, CheckpointExtension) and id(hook) not in known
    ]


def effective_model(agent: Agent, default: RunConfig | None, run: RunConfig | None) -> ModelRef | str | None:
    """Run, agent, runner default (only if the run did not bring its own provider), else None: the provider's
    default."""
    if run is not None and run.model is not None:
        return run.model
    if agent.model is not None:
        return agent.model
    replaced = run is not None and run.model_provider is not None
    return None if replaced or default is None else default.model


def build_vv_llm_from_local_settings(
    path: str | Path, backend: str, model: str, timeout_seconds: float = 90.0
) -> tuple[VvLlmClient, ResolvedModelConfig]:
    """A client of a settings file and the model it serves, for `AgentRuntime`. `SettingsError` if the file or the model
    is wrong; `timeout_seconds` is how long the model may be silent."""
    from vv_agent.llm.provider import VvLlmModelProvider
    from vv_agent.llm.reference import ModelRef

    provider = VvLlmModelProvider.from_settings_file(path, timeout_seconds=timeout_seconds)
    resolved = provider.resolve(ModelRef.backend(backend, model))
    return provider.client(resolved), resolved
