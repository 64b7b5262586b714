"""What happens in one cycle of a run, and what comes next. It imports no dispatch, workers or runner.

Public names that have their homes elsewhere are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "AgentRuntime": ("vv_agent.agent_runtime", "AgentRuntime"),
    "CancellationToken": ("vv_agent.cancellation", "CancellationToken"),
    "CheckpointStore": ("vv_agent.checkpoint.store", "CheckpointStore"),
    "InMemoryCheckpointStore": ("vv_agent.checkpoint.memory", "MemoryStore"),
    "CycleRunner": ("vv_agent.runtime.advance", "CycleRunner"),
    "OperationJournalEntry": ("vv_agent.checkpoint.journal", "OperationJournalEntry"),
    "ToolCallRunner": ("vv_agent.tools.orchestrator", "ToolOrchestrator"),
}
__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vv_agent.runtime' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)
