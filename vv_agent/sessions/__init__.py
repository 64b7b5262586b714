"""Sessions: the history of a conversation, kept across runs and apart from their checkpoints.

`base` has the protocol, the wire form of an item and the identity of an append; `memory`, `sql` and `redis` are places
to keep it. `open_session(ref)` opens one in another process by the name a run's definition has for it.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    **dict.fromkeys(
        ("Session", "SessionAppendOutcome", "SessionItem", "SessionStore", "open_session"), "vv_agent.sessions.base"
    ),
    **dict.fromkeys(("MemorySession", "MemorySessionStore"), "vv_agent.sessions.memory"),
    **dict.fromkeys(("SqlSessionStore", "SqliteSession", "SqliteSessionStore"), "vv_agent.sessions.sql"),
    **dict.fromkeys(("RedisSession", "RedisSessionStore"), "vv_agent.sessions.redis"),
}
__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module 'vv_agent.sessions' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
