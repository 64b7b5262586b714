"""The runtime's own fields in the head of a record: small, replaced as a whole with each save that changes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from vv_agent.errors import StoreError
from vv_agent.runtime.transcript import pack, unpack


@dataclass(frozen=True, slots=True)
class Body:
    """What a worker must know before it reads the log."""

    trace_id: str
    run_id: str
    """Of the open segment."""
    agent: str
    segment: int = 0
    first_cycle: int = 1
    """Number of the segment's first cycle; `cycle_index` on the wire counts from it (one that was open has 0)."""
    checkpointed: bool = False
    """The caller asked for a checkpoint: the run shows its key and its checkpoint events."""
    live: bool = False
    """Started with somebody listening: an approval then parks inside the segment (DESIGN section 6.5)."""
    observation: dict[str, Any] | None = None
    """The operation a parked run waits for, as a ResumeObservation."""
    numbered: tuple[int, int] | None = None
    """(attempt, number of its events so far) of a cycle that was given back open: ids and order go on from there."""
    session_id: str | None = None
    node: int = 0
    """Number of the agent that works now, among those that hand over to each other."""
    handoffs: int = 0
    """How often the run was handed over."""
    came_from: dict[str, Any] | None = None
    """The segment before a hand-off that is under way: its origin, and the cycle and position of the call."""
    parent: dict[str, Any] | None = None
    """Of a run below another one: the segment (`run_id`) and the call (`call_id`) that began it, its `task_id`
    and that of the other one (`above`)."""
    workflow_name: str | None = None
    """Of the caller's trace."""
    fed: int = 0
    """Number of the last entry whose events the host's event store has."""

    def pack(self) -> bytes:
        return pack([getattr(self, name) for name in self.__slots__])

    @classmethod
    def unpack(cls, data: bytes, key: str) -> Body:
        values = unpack(data, f"the head of run {key!r}")
        try:
            body = cls(*values)
            return replace(body, numbered=(body.numbered[0], body.numbered[1])) if body.numbered else body
        except TypeError as error:
            raise StoreError("store_corrupt", f"the head of run {key!r} cannot be read: {error}") from error

    def index(self, cycle: int) -> int:
        """The cycle's number within its segment, from 1."""
        return cycle - self.first_cycle + 1
