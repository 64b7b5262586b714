"""Traces: what a run did as spans (run, agent, tool), made from its events by one projection, the same everywhere."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from vv_agent.events import (
    AgentStartedEvent,
    RunCancelledEvent,
    RunCompletedEvent,
    RunEvent,
    RunFailedEvent,
    RunStartedEvent,
    SubRunCompletedEvent,
    ToolCallCompletedEvent,
    ToolCallStartedEvent,
)

Change = tuple[Literal["start", "end"], "Span"]
_ABANDONED = {"status": "abandoned"}


@dataclass
class Span:
    """A stretch of work. Times are in seconds since 1970; `ended_at` is None while it lasts."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None = None
    started_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def finish(self, metadata: Mapping[str, Any] | None = None) -> None:
        """End the span now and add to its metadata; one that ended keeps its time."""
        self.ended_at = time.time() if self.ended_at is None else self.ended_at
        self.metadata = {**self.metadata, **(metadata or {})}

    def to_wire(self) -> dict[str, Any]:
        """The span as JSON values."""
        return asdict(self)


class TraceSink:
    """Gets spans as they begin and end, in order; `flush` comes last. A sink that raises is not asked why."""

    def on_span_start(self, span: Span) -> None:
        """A span began."""

    def on_span_end(self, span: Span) -> None:
        """A span ended; it is the same by its `span_id`."""

    def flush(self) -> None:
        """The run ended, or nobody follows it any more."""


class JsonlTraceExporter(TraceSink):
    """One line for each begin and end of a span in a UTF-8 file: `{"event": "span_start", "timestamp", "span"}`.

    The file and its folders are created by the first line. Several runs may share an exporter.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()

    def on_span_start(self, span: Span) -> None:
        self._write("span_start", span.started_at, span)

    def on_span_end(self, span: Span) -> None:
        self._write("span_end", span.ended_at, span)

    def _write(self, event: str, timestamp: float | None, span: Span) -> None:
        line = json.dumps({"event": event, "timestamp": timestamp, "span": span.to_wire()}, ensure_ascii=False)
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                file.write(line.encode("utf-8", "replace") + b"\n")


def spans(events: Iterable[RunEvent], workflow_name: str | None = None) -> Iterator[Change]:
    """The begins and ends of spans that events tell of, for example `spans(handle.events())`.

    The ids are made from those of the run and its calls, so that every reader of a run makes the same spans. Events
    that begin in the middle of a run open its spans there. A call that has no end when its run has is `abandoned`.
    """
    projection = Projection(workflow_name)
    for event in events:
        yield from projection.feed(event)


@dataclass
class _Open:
    """The spans of one run id that have not ended."""

    run: Span
    agent: Span | None = None
    tools: dict[str, Span] = field(default_factory=dict)

    def spans(self) -> list[Span]:
        """The innermost first."""
        return [*self.tools.values(), *([self.agent] if self.agent else []), self.run]


class Projection:
    """The state between two events: what is open, by run id."""

    def __init__(self, workflow_name: str | None = None) -> None:
        self._workflow = workflow_name
        self._open: dict[str, _Open] = {}
        self._over: set[str] = set()
        """Run ids that ended: what is told of them later (a hand-off that is complete) opens nothing."""

    def feed(self, event: RunEvent) -> list[Change]:
        """What one event begins and ends."""
        if event.run_id in self._over:
            return []
        changes = self._begin(event)
        here = self._open[event.run_id]
        match event:
            case ToolCallStartedEvent():
                if (lost := here.tools.pop(event.tool_call_id, None)) is not None:  # a worker died in it
                    changes.append(_ended(lost, event, **_ABANDONED))
                parent, facts = here.agent or here.run, {"tool_name": event.tool_name, "agent_name": event.agent_name}
                span = _begun("tool", event, event.event_id, parent, facts)
                here.tools[event.tool_call_id] = span
                changes.append(("start", span))
            case ToolCallCompletedEvent() if event.tool_call_id in here.tools:
                changes.append(_ended(here.tools.pop(event.tool_call_id), event, status=event.status))
            case RunCompletedEvent() | RunFailedEvent() | RunCancelledEvent() | SubRunCompletedEvent():
                changes += self._end(event)
        return changes

    def abandon(self) -> list[Change]:
        """End now what is open, the innermost first: no further events come."""
        left = [span for here in reversed(self._open.values()) for span in here.spans()]
        self._over |= self._open.keys()
        self._open.clear()
        now = time.time()
        return [("end", replace(one, ended_at=now, metadata={**one.metadata, **_ABANDONED})) for one in left]

    def _begin(self, event: RunEvent) -> list[Change]:
        changes: list[Change] = []
        here = self._open.get(event.run_id)
        if here is None:
            facts = {"run_id": event.run_id, "agent_name": event.agent_name, "workflow_name": self._workflow}
            here = self._open[event.run_id] = _Open(_begun("run", event, event.run_id, None, facts))
            changes.append(("start", here.run))
        other = isinstance(event, AgentStartedEvent) and here.agent is not None
        if other and here.agent is not None and here.agent.metadata["agent_name"] != event.agent_name:
            changes.append(_ended(here.agent, event, status="completed"))
            here.agent = None
        if here.agent is None and not isinstance(event, RunStartedEvent):
            facts = {"agent_name": event.agent_name}
            here.agent = _begun("agent", event, f"{event.run_id} {event.agent_name}", here.run, facts)
            changes.append(("start", here.agent))
        return changes

    def _end(
        self, event: RunCompletedEvent | RunFailedEvent | RunCancelledEvent | SubRunCompletedEvent
    ) -> list[Change]:
        here = self._open.pop(event.run_id)
        self._over.add(event.run_id)
        changes = [_ended(tool, event, **_ABANDONED) for tool in here.tools.values()]
        status: str
        if isinstance(event, RunCompletedEvent):
            status, facts = event.status.value, {"final_output": event.final_output}
        elif isinstance(event, RunFailedEvent):
            status, facts = event.status.value if event.status else "failed", {"error": event.error}
        elif isinstance(event, SubRunCompletedEvent):
            status, facts = event.status, {"final_output": event.final_output}
            if event.error is not None:
                facts = {"error": event.error}
        else:
            status, facts = "cancelled", {"error": event.reason}
        if here.agent is not None:
            changes.append(_ended(here.agent, event, status=status))
        return [*changes, _ended(here.run, event, status=status, **facts)]


def _begun(name: str, event: RunEvent, identity: str, parent: Span | None, facts: Mapping[str, Any]) -> Span:
    parent_id = parent.span_id if parent else None
    return Span(name, event.trace_id, span_id(name, identity), parent_id, event.created_at, None, facts)


def span_id(name: str, identity: str) -> str:
    """The id of a span: `span_` and 32 hex digits of what it stands for."""
    return f"span_{hashlib.sha256(f'{name} {identity}'.encode()).hexdigest()[:32]}"


def _ended(span: Span, event: RunEvent, **facts: Any) -> Change:
    return "end", replace(span, ended_at=event.created_at, metadata={**span.metadata, **facts})


class Tracer:
    """Tells sinks of the spans of the events it is given. What a sink raises stays with that sink."""

    def __init__(self, sinks: Sequence[TraceSink], workflow_name: str | None) -> None:
        self._sinks = sinks
        self._projection = Projection(workflow_name)

    def put(self, event: RunEvent) -> None:
        """Pass on what one event begins and ends."""
        self._tell(self._projection.feed(event))

    def _tell(self, changes: list[Change]) -> None:
        for what, span in changes:
            for sink in self._sinks:
                _quietly(sink.on_span_start if what == "start" else sink.on_span_end, replace(span))

    def close(self) -> None:
        """No further events come: what is open ends as `abandoned`."""
        self._tell(self._projection.abandon())
        for sink in self._sinks:
            _quietly(sink.flush)


def _quietly(call: Any, *args: Any) -> None:
    try:
        call(*args)
    except Exception:
        return
