"""Events of a run: how they are numbered, stored without their texts, and read back.

An event entry holds the events of one save: `[run id, agent, cycle, attempt, [[type, n, created_at, fields, refs?],
...]]`. The envelope is filled in from the header; `refs` name fields whose text stands in the log and nowhere else:

    ["args", position]   the arguments of a call of this cycle      ["input", segment]   the input of a segment
    ["approval", position]   the arguments and the tool of a call that waits for a yes
    ["child", key, metadata]   of a run below that begins: its key, and the field itself
    ["handoff", cycle, position, more]   what the call of a hand-off says of it
    ["declared", ...]    a tool's declaration, its five fields in a row
    ["answer", segment]  the final output of a segment              ["partial", segment] its partial output

Live items have the same form, one event each, so that a reader knows an event again by its id wherever it came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

from vv_agent.checkpoint.identity import event_id
from vv_agent.checkpoint.record import Entry, EntryKind
from vv_agent.events import EVENT_CLASSES, RunEvent, make_event
from vv_agent.runtime.body import Body
from vv_agent.runtime.transcript import Transcript, pack, unpack
from vv_agent.tool_metadata import ToolMetadata
from vv_agent.tools.arguments import parse_arguments

WITHOUT_CYCLE = frozenset(
    {
        "run_started",
        "agent_started",
        "session_persisted",
        "sub_run_started",
        "sub_run_completed",
        "run_state_changed",
    }
)
"""Types that belong to the run, not to a cycle of it; an end tells in which cycle it came."""
LIVE_ONLY = frozenset({"assistant_delta", "reasoning_delta", "model_tool_call_started", "model_tool_call_progress"})
"""Types that are never stored: their text stands in the log once the model call is done."""
Refs = Mapping[str, Sequence[Any]]


class Origin(NamedTuple):
    """Where in a run events come from. (This and `Emitted` are named tuples because a cycle makes ten of each.)"""

    run_id: str
    agent: str
    cycle: int
    attempt: int
    cycle_index: int
    """The cycle's number within the segment."""

    def identify(self, event_type: str, n: int) -> str:
        return event_id(self.run_id, self.cycle, self.attempt, event_type, n)


class Emitted(NamedTuple):
    """A numbered event, not yet an object."""

    origin: Origin
    type: str
    n: int
    created_at: float
    fields: Mapping[str, Any]
    refs: Refs

    def stored(self) -> list[Any]:
        kept = {name: value for name, value in self.fields.items() if name not in self.refs}
        row: list[Any] = [self.type, self.n, self.created_at, kept]
        return [*row, {name: list(ref) for name, ref in self.refs.items()}] if self.refs else row

    def whole(self) -> Emitted:
        """The same event with its texts in it: for readers that do not have the log yet."""
        return self._replace(refs={name: ref for name, ref in self.refs.items() if ref[0] == "declared"})


@dataclass(frozen=True, slots=True)
class Numbered:
    """An event with its coordinates, by which a reader orders and drops repeats."""

    cycle: int
    attempt: int
    n: int
    event: RunEvent
    below: str | None = None
    """The key of the run below that it tells the start of."""


def event_entries(events: Iterable[Emitted]) -> tuple[bytes, ...]:
    """The bytes of event entries, one for each row of events of one origin; a live item is one with one event."""
    rows = groupby(events, key=lambda emitted: emitted.origin)
    return tuple(pack([list(origin), [emitted.stored() for emitted in row]]) for origin, row in rows)


def first_events(body: Body, now: float, events: Iterable[tuple[str, Mapping[str, Any], Refs]]) -> list[Emitted]:
    """The events of a record's creation, in cycle 0."""
    origin = Origin(body.run_id, body.agent, 0, 1, 0)
    return [Emitted(origin, kind, n, now, fields, refs) for n, (kind, fields, refs) in enumerate(events)]


def build(body: Body, emitted: Emitted) -> RunEvent:
    """The event object; `body` is of its run."""
    origin, fields = emitted.origin, dict(emitted.fields)
    if emitted.type not in WITHOUT_CYCLE:
        fields.setdefault("cycle_index", origin.cycle_index)
    if body.session_id is not None:
        fields.setdefault("session_id", body.session_id)
    if body.parent is not None:
        fields.setdefault("parent_run_id", body.parent["run_id"])
    return make_event(
        emitted.type,
        event_id=origin.identify(emitted.type, emitted.n),
        run_id=origin.run_id,
        trace_id=body.trace_id,
        created_at=emitted.created_at,
        agent_name=origin.agent,
        **fields,
    )


@lru_cache(maxsize=512)
def declared_ref(declared: ToolMetadata | None) -> Mapping[str, Sequence[Any]]:
    """The reference that stores a tool's declaration in a few bytes; none for a tool that declares nothing."""
    if declared is None:
        return {}
    return {"tool_metadata": ("declared", *declared.to_wire().values())}


class EventReader:
    """Reads a record's entries in order and gives its events, texts filled in."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self.transcript = Transcript()
        self.unknown: set[tuple[int, int, int]] = set()
        """Cycle, attempt and number of the events that were left out."""

    def feed(self, entry: Entry) -> list[Numbered]:
        """The events of one entry; a log entry has none, but its texts are kept for those that follow."""
        if entry.kind is EntryKind.LOG:
            self.transcript.extend(entry.seq, entry.body)
            return []
        return self.decode(entry.body, f"event entry {entry.seq}")

    def decode(self, body: bytes, what: str = "live item") -> list[Numbered]:
        """The events of one event entry or live item; those of a type that only newer versions know are left out."""
        header, rows = unpack(body, what)
        origin = Origin(*header)
        numbered = []
        for event_type, n, created_at, fields, *refs in rows:
            if event_type not in EVENT_CLASSES:
                self.unknown.add((origin.cycle, origin.attempt, n))
                continue
            texts = {name: self._text(origin.cycle, ref) for name, ref in (refs[0] if refs else {}).items()}
            event = build(self._body, Emitted(origin, event_type, n, created_at, {**fields, **texts}, {}))
            below = next((ref[1] for ref in (refs[0] if refs else {}).values() if ref[0] == "child"), None)
            numbered.append(Numbered(origin.cycle, origin.attempt, n, event, below))
        return numbered

    def _text(self, cycle: int, ref: Sequence[Any]) -> Any:
        match ref:
            case ["args", position]:
                return parse_arguments(self.transcript.turns[cycle].call(position).arguments)
            case ["approval", position]:
                call = self.transcript.turns[cycle].call(position)
                return {"arguments": parse_arguments(call.arguments), "tool_name": call.name}
            case ["child", _, metadata]:
                return metadata
            case ["handoff", at, position, more]:
                return {**self.transcript.turns[at].results[position]["metadata"], **more}
            case ["declared", *values]:
                return ToolMetadata(*values)
            case ["input", segment]:
                return self.transcript.inputs.get(segment, "")
            case ["answer", segment]:
                return self.transcript.answer(segment)
            case ["partial", segment]:
                return self.transcript.partial(segment)
            case _:
                return None
