"""Identifiers that two attempts at the same work agree on (spec 11, section 3, and DESIGN 5.6).

They are computed from coordinates only: the checkpoint key, the cycle number (which rises over all segments), the
position of a call in its batch (from 1) and the name of a call site.
"""

from __future__ import annotations

import hashlib


def model_operation_id(cycle: int, slot: str) -> str:
    """The operation id of a model call. `slot` names the call site in the cycle: main, a compaction, a repair."""
    return f"op_model_cycle_{cycle}_{_hex(slot, length=16)}"


def tool_operation_id(cycle: int, position: int) -> str:
    """The operation id of the call at `position` of its batch."""
    return f"op_tool_cycle_{cycle}_call_{position}"


def idempotency_key(key: str, cycle: int, position: int) -> str:
    """The key a tool sees in every attempt at one call. A key that is stored in an entry always wins over this one."""
    return f"idem_{_hex(key, cycle, position)}"


def event_id(run_id: str, cycle: int, attempt: int, event_type: str, n: int) -> str:
    """The id of the `n`-th event of its type in one attempt at a cycle: the same facts, the same id."""
    return f"evt_{_hex(run_id, cycle, attempt, event_type, n)}"


def _hex(*parts: str | int, length: int = 32) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:length]
