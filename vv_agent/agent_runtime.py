"""The low-level entry: one task on one client, without agents and providers. A thin layer over the Runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vv_agent._facade import only_known
from vv_agent.agent import Agent, NoToolPolicy
from vv_agent.config import BeforeCycleMessages, InterruptionMessages, RunConfig
from vv_agent.errors import ConfigError
from vv_agent.llm.base import Model
from vv_agent.llm.client import LLMClient, as_model
from vv_agent.llm.reference import ModelRef, ResolvedModelConfig
from vv_agent.llm.settings import ModelSettings
from vv_agent.messages import Message
from vv_agent.results import AgentResult
from vv_agent.runner import Runner
from vv_agent.tools.policy import ToolPolicy
from vv_agent.tools.registry import ToolRegistry

if TYPE_CHECKING:
    from vv_agent.approvals import ApprovalProvider
    from vv_agent.budget import HostCostMeter, RunBudgetLimits
    from vv_agent.cancellation import CancellationToken
    from vv_agent.checkpoint.config import CheckpointConfig
    from vv_agent.events import RunEvent
    from vv_agent.workspace import WorkspaceBackend


@only_known("run_config_invalid")
@dataclass(frozen=True, kw_only=True)
class AgentTask:
    """What is to be done, and by which model. `exclude_tools` are tools of the registry that are not offered;
    `agent_type` "computer" offers the shell."""

    task_id: str
    model: str
    system_prompt: str
    user_prompt: str
    max_cycles: int = 8
    no_tool_policy: NoToolPolicy = NoToolPolicy.CONTINUE
    agent_type: str | None = None
    exclude_tools: Sequence[str] = ()
    model_settings: ModelSettings | None = None
    initial_messages: Sequence[Message] = ()
    initial_shared_state: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RuntimeRunControls:
    """What concerns one run of a task; each field is that of `RunConfig`."""

    workspace: str | Path | None = None
    workspace_backend: WorkspaceBackend | None = None
    stream: Callable[[RunEvent], object] | None = None
    cancellation_token: CancellationToken | None = None
    before_cycle_messages: BeforeCycleMessages | None = None
    interruption_messages: InterruptionMessages | None = None
    budget_limits: RunBudgetLimits | None = None
    host_cost_meter: HostCostMeter | None = None
    approval_provider: ApprovalProvider | None = None
    checkpoint_config: CheckpointConfig | None = None
    execution_backend: Any = None
    context: Any = None


class AgentRuntime:
    """Runs tasks on one client: that of `build_vv_llm_from_local_settings`, a `Model`, or any object with `complete`.
    The tools are those of the registry (default: the built-in ones).

    Example:
        >>> from vv_agent import AgentRuntime, AgentTask
        >>> from vv_agent.testing import ScriptedModel, call
        >>> runtime = AgentRuntime(ScriptedModel([call("task_finish", {"message": "Hello."})]))
        >>> task = AgentTask(task_id="demo", model="demo-model", system_prompt="Greet.", user_prompt="Hi")
        >>> runtime.run(task).final_answer
        'Hello.'
    """

    def __init__(self, llm: Model | LLMClient, *, tool_registry: ToolRegistry | None = None) -> None:
        self._runner = Runner(model_provider=_OneClient(llm))
        self._registry = tool_registry

    def run(self, task: AgentTask, controls: RuntimeRunControls | None = None) -> AgentResult:
        """Run a task and wait; raises what `Runner.run_sync` raises."""
        if not isinstance(task, AgentTask):
            raise ConfigError("run_config_invalid", f"a runtime runs an AgentTask(...), not {task!r}")
        if controls is not None and not isinstance(controls, RuntimeRunControls):
            raise ConfigError("run_config_invalid", f"controls must be RuntimeRunControls(...), not {controls!r}")
        registry = self._registry
        given = controls or RuntimeRunControls()
        config = RunConfig(
            max_cycles=task.max_cycles, no_tool_policy=task.no_tool_policy,
            initial_messages=task.initial_messages, shared_state=task.initial_shared_state,
            tool_policy=ToolPolicy(disallowed_tools=task.exclude_tools),
            tool_registry_factory=None if registry is None else lambda: registry,
            metadata={**task.metadata, **({"agent_type": task.agent_type} if task.agent_type else {})},
            **{item.name: getattr(given, item.name) for item in fields(RuntimeRunControls)},
        )  # fmt: skip
        agent = Agent(
            name=task.task_id, instructions=task.system_prompt, model=task.model, model_settings=task.model_settings
        )
        return self._runner.run_sync(agent, task.user_prompt, run_config=config).raw_result


class _OneClient:
    """A provider of one client, which serves the model it was made for, or any if it does not say."""

    def __init__(self, llm: Model | LLMClient) -> None:
        self._llm = llm
        self._resolved: ResolvedModelConfig | None = getattr(llm, "resolved", None)

    def resolve(self, model: ModelRef) -> ResolvedModelConfig:
        known = self._resolved
        if known is None:
            return ResolvedModelConfig("runtime", model.model, model.model, model.model)
        names = (known.requested_model, known.selected_model, known.model_id)
        if model.model not in names:
            raise ConfigError("model_mismatch", f"the client serves {names[0]!r}, the task names {model.model!r}")
        return known

    def client(self, resolved: ResolvedModelConfig) -> Model:
        return as_model(self._llm)

    def default_settings(self, resolved: ResolvedModelConfig) -> ModelSettings:
        return ModelSettings()

    def default_model_ref(self) -> ModelRef | None:
        return None
