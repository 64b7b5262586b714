"""The record of a run and the stores that keep it. Nothing in here knows what an agent is.

`record` has the values, `transitions` the rules (pure), `store` the verbs and their contract; `memory`, `sql` and
`redis` are places to keep it all. `open_store(url)` gives the store a URL names.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    **dict.fromkeys(("CheckpointStore", "open_store"), "vv_agent.checkpoint.store"),
    **dict.fromkeys(
        (
            "Change", "Claim", "Claimed", "Commit", "End", "Entry", "Filter", "Head", "NewRun", "Park", "ParkReason",
            "Posted", "Presence", "Progress", "Refused", "Release", "Renewed", "Saved", "Seen", "Serves", "Signal",
            "Snapshot", "State",
        ),
        "vv_agent.checkpoint.record",
    ),
    "MemoryStore": "vv_agent.checkpoint.memory",
    "RedisStore": "vv_agent.checkpoint.redis",
    "SqlStore": "vv_agent.checkpoint.sql",
}  # fmt: skip
__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module 'vv_agent.checkpoint' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
