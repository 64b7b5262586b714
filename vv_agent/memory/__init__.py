"""Memory: what keeps a long run inside its model's context, and what it remembers beyond it.

Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    name: f"vv_agent.memory.{module}"
    for module, names in {
        "config": "MemoryConfig Capacity capacity",
        "manager": "MemoryManager Compaction",
        "provider": "MemoryProvider MemoryProviderResult MemorySearchRequest MemorySearchResult MemorySaveRequest "
        "MemorySaveResult CompactionExhaustedError",
        "session": "SessionMemory SessionMemoryConfig SessionMemoryEntry SessionMemoryState",
        "tokens": "count_tokens count_messages",
    }.items()
    for name in names.split()
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module 'vv_agent.memory' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
