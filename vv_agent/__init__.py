"""vv-agent: agent runs as checkpointed jobs that any worker can finish.

The names of the front door are loaded when they are first used, so that `import vv_agent` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES: dict[str, str] = {}
"""Public name -> module that defines it. One line a module, in the order of the layers."""


def _home(module: str, names: str) -> None:
    _HOMES.update(dict.fromkeys(names.split(), module))


_home("vv_agent.errors", "VVAgentError ConfigError SettingsError CheckpointError LlmError ToolError StoreError")
_home("vv_agent.cancellation", "CancellationToken")
_home("vv_agent.messages", "Message ToolCall")
_home("vv_agent.definition", "RunDefinition CapabilityRef")
_home("vv_agent.usage", "TokenUsage CacheUsage CacheUsageStatus UsageSource CycleTokenUsage TaskTokenUsage")
_home(
    "vv_agent.budget",
    "RunBudgetLimits HostCost HostCostMeter UnavailableMetricPolicy BudgetUsageSnapshot BudgetUnavailableDimension "
    "BudgetExhaustion BudgetDimension BudgetEnforcementBoundary BudgetExhaustionReason BudgetUnavailableReason",
)
_home("vv_agent.approvals", "ApprovalAction ApprovalDecision ApprovalBroker ApprovalProvider ApprovalRequest")
_home("vv_agent.tool_metadata", "ToolMetadata ToolSideEffect ToolIdempotency")
_home(
    "vv_agent.results",
    "AgentResult AgentStatus CompletionReason ApprovalSnapshot ResumeObservation CycleRecord "
    "ToolExecutionResult ToolStatus ToolDirective",
)
_home("vv_agent.events", "RunEvent ToolCallPlannedEvent DiagnosticEvent parse_event")
_home("vv_agent.event_store", "RunEventStore IdempotentRunEventStore JsonlRunEventStore MemoryRunEventStore")
_home("vv_agent.tracing", "Span TraceSink JsonlTraceExporter")
_home("vv_agent.result", "RunResult RunState ResolvedModel")
_home("vv_agent.definition", "RunDefinition CapabilityRef")
_home("vv_agent.checkpoint.journal", "OperationJournalEntry OperationKind OperationState OperationError")
_home("vv_agent.checkpoint.extensions", "CheckpointExtension")
_home("vv_agent.checkpoint.config", "CheckpointConfig ResumePolicy AmbiguousModelPolicy AmbiguousToolPolicy")
_home("vv_agent.checkpoint.reconciliation", "ReconciliationDecision ReconciliationProvider")
_home("vv_agent.llm.settings", "ModelSettings RetrySettings ResponseFormat ToolChoice")
_home("vv_agent.llm.reference", "ModelRef ModelProvider ResolvedModelConfig")
_home("vv_agent.llm.provider", "VvLlmModelProvider VvLlmClient")
_home("vv_agent.tools.base", "Tool ToolContext ToolExposure")
_home("vv_agent.tools.output", "ToolOutput")
_home("vv_agent.tools.function", "FunctionTool function_tool")
_home("vv_agent.tools.policy", "ToolPolicy ApprovalPolicy")
_home("vv_agent.tools.registry", "ToolRegistry")
_home("vv_agent.tools.builtin", "build_default_registry")
_home("vv_agent.sessions.base", "Session SessionAppendOutcome SessionItem SessionStore")
_home("vv_agent.sessions.memory", "MemorySession MemorySessionStore")
_home("vv_agent.sessions.sql", "SqliteSession SqliteSessionStore SqlSessionStore")
_home("vv_agent.sessions.redis", "RedisSession RedisSessionStore")
_home(
    "vv_agent.hooks",
    "RuntimeHook BeforeLlmPatch BeforeToolCallPatch AfterCycleHook AfterCycleSnapshot AfterCycleDecision "
    "AfterCycleAction NativeCycleOutcome NativeCycleOutcomeKind InputGuardrail OutputGuardrail GuardrailResult "
    "OutputValidation OutputValidationContext OutputValidationResult OutputRepairRequest",
)
_home("vv_agent.agent", "Agent Handoff NoToolPolicy RunContext SubAgentConfig handoff")
_home("vv_agent.context", "ContextFragment ContextProvider ContextRequest")
_home("vv_agent.config", "RunConfig ExecutionMode build_vv_llm_from_local_settings")
_home("vv_agent.run_handle", "RunHandle RunHandleState RunHandleStatus")
_home("vv_agent.runner", "Runner ConfiguredRunner")
_home("vv_agent.sub_tasks", "BackgroundAgentTask SubTaskManager")
_home(
    "vv_agent.interactive",
    "AgentSession AgentSessionEvent AgentSessionEventGapError AgentSessionOptions AgentSessionState "
    "InteractiveAgentClient",
)
_home("vv_agent.agent_runtime", "AgentRuntime AgentTask RuntimeRunControls")
_home("vv_agent.app_server.host", "AppServerHost DefaultAppServerHost")
_home("vv_agent.app_server.server", "AppServer")

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module 'vv_agent' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
