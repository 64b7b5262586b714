"""The public value types, re-exported from their homes."""

from __future__ import annotations

from vv_agent.budget import (
    BudgetDimension,
    BudgetEnforcementBoundary,
    BudgetExhaustion,
    BudgetExhaustionReason,
    BudgetUnavailableDimension,
    BudgetUnavailableReason,
    BudgetUsageSnapshot,
    HostCost,
    HostCostMeter,
    RunBudgetLimits,
    UnavailableMetricPolicy,
)
from vv_agent.messages import Message, ToolCall
from vv_agent.results import (
    AgentResult,
    AgentStatus,
    ApprovalSnapshot,
    CompletionReason,
    CycleRecord,
    CycleToolCall,
    ResumeObservation,
    ToolDirective,
    ToolExecutionResult,
    ToolStatus,
)
from vv_agent.tool_metadata import ToolIdempotency, ToolMetadata, ToolSideEffect
from vv_agent.usage import CacheUsage, CacheUsageStatus, CycleTokenUsage, TaskTokenUsage, TokenUsage, UsageSource

__all__ = [
    "AgentResult",
    "AgentStatus",
    "ApprovalSnapshot",
    "BudgetDimension",
    "BudgetEnforcementBoundary",
    "BudgetExhaustion",
    "BudgetExhaustionReason",
    "BudgetUnavailableDimension",
    "BudgetUnavailableReason",
    "BudgetUsageSnapshot",
    "CacheUsage",
    "CacheUsageStatus",
    "CompletionReason",
    "CycleRecord",
    "CycleTokenUsage",
    "CycleToolCall",
    "HostCost",
    "HostCostMeter",
    "Message",
    "ResumeObservation",
    "RunBudgetLimits",
    "TaskTokenUsage",
    "TokenUsage",
    "ToolCall",
    "ToolDirective",
    "ToolExecutionResult",
    "ToolIdempotency",
    "ToolMetadata",
    "ToolSideEffect",
    "ToolStatus",
    "UnavailableMetricPolicy",
    "UsageSource",
]
