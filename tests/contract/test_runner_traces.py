"""runner_events.jsonl, runner_trace.jsonl, runner_trace_spans.json: the events of whole runs in order, and their spans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.runs import QueueModel, QueueProvider, asks, response
from vv_agent import Agent, LlmError, MemorySession, RunConfig, Runner, TraceSink, function_tool
from vv_agent.llm.base import ModelRequest, ModelResponse, Part, TextDelta
from vv_agent.result import RunResult
from vv_agent.tracing import Span

EVENTS = [json.loads(line) for line in load("runner_events.jsonl")]
TRACE = [json.loads(line) for line in load("runner_trace.jsonl")]
SPANS = load("runner_trace_spans.json")
CASES = Cases("runner_trace_spans.json")
CONSTANT = {"event_id": "evt_dynamic", "run_id": "run_dynamic", "created_at": 0.0}
REDUCED = (
    "type", "cycle_index", "agent_name", "model", "delta", "tool_name", "tool_call_id", "arguments", "status",
    "directive", "error_code", "execution_started", "duration_ms", "final_output",
)  # fmt: skip


class Speaking(QueueModel):
    """Says the text of each step in the given pieces."""

    def __init__(self, steps: list[Any], pieces: list[list[str]]) -> None:
        super().__init__(steps)
        self.pieces = pieces

    def stream(self, request: ModelRequest) -> Iterator[Part]:
        for piece in self.pieces.pop(0):
            yield TextDelta(piece)
        for part in super().stream(request):
            if not isinstance(part, TextDelta):
                yield part


@function_tool(idempotency="supported")
def lookup(query: str) -> str:
    """Look something up."""
    return query


def run(name: str, steps: list[ModelResponse], pieces: list[list[str]], folder: Path, **more: Any) -> RunResult:
    provider = QueueProvider([])
    provider._model = Speaking(list(steps), pieces)  # type: ignore[assignment]
    agent = Agent(name=name, instructions="Trace.", tools=[lookup])
    text = EVENTS[0]["input"] if name == EVENTS[0]["agent_name"] else "go"
    return Runner(model_provider=provider, workspace=folder).run_sync(agent, text, run_config=RunConfig(**more))


def call_step(name: str, call_id: str, text: str, **arguments: Any) -> ModelResponse:
    return response(asks(name, call_id=call_id, arguments=arguments) | {"content": text})


def constant(wire: dict[str, Any]) -> dict[str, Any]:
    """What is measured or drawn becomes what the fixture has; a model's name is that of our script."""
    fixed = {**wire, **CONSTANT, **({"duration_ms": 0} if "duration_ms" in wire else {})}
    fixed |= {"model": "golden-model"} if "model" in fixed else {}
    return {key: value for key, value in fixed.items() if key not in OURS.get(wire["type"], ())}


OURS = {
    "assistant_delta": ("content_chars", "estimated_tokens"), "tool_call_planned": ("tool_metadata",),
    "tool_call_started": ("tool_metadata",), "tool_call_completed": ("tool_metadata",),
}  # fmt: skip
"""Optional fields that we send and the fixture's run did not."""


def test_the_events_of_a_run_with_a_session(tmp_path: Path) -> None:
    step = call_step("task_finish", "finish_golden", "complete assistant message", message="done")
    result = run(
        "runner-agent", [step], [["complete ", "assistant message"]], tmp_path,
        session=MemorySession("session_runner_parity"), tracing={"trace_id": "trace_runner_parity"},
    )  # fmt: skip
    told = [event for event in result.events if not event.type.startswith("model_tool_call")]
    assert [constant(event.to_wire()) for event in told] == EVENTS


def test_the_events_of_two_cycles(tmp_path: Path) -> None:
    steps = [
        call_step("lookup", "lookup-call", "lookup", query="parity"),
        call_step("task_finish", "finish-call", "finish", message="done"),
    ]
    result = run("trace-agent", steps, [["lookup"], ["finish"]], tmp_path)
    named = {event["type"] for event in TRACE}
    told = [constant(event.to_wire()) for event in result.events if event.type in named]
    reduced = [{key: wire[key] for key in REDUCED if key in wire} for wire in told]
    assert reduced == [event | ({"model": "golden-model"} if "model" in event else {}) for event in TRACE]


class Collector(TraceSink):
    def __init__(self) -> None:
        self.told: list[tuple[str, Span]] = []

    def on_span_start(self, span: Span) -> None:
        self.told.append(("start", span))

    def on_span_end(self, span: Span) -> None:
        self.told.append(("end", span))

    def order(self, what: str) -> list[str]:
        return [span.name for told, span in self.told if told == what]


class Broken(TraceSink):
    def on_span_start(self, span: Span) -> None:
        raise OSError("no room")

    on_span_end = on_span_start

    def flush(self) -> None:
        raise OSError("no room")


def test_the_order_of_spans_and_their_parents(tmp_path: Path) -> None:
    with CASES.run("topology"):
        sink, wanted = Collector(), SPANS["topology"]
        step = call_step("task_finish", "finish-call", "finish", message="done")
        run("trace-agent", [step], [["finish"]], tmp_path, tracing={"sink": sink})
        assert (sink.order("start"), sink.order("end")) == (wanted["start_order"], wanted["end_order"])
        names = {span.span_id: span.name for _, span in sink.told}
        assert {span.name: names.get(span.parent_id or "") for _, span in sink.told} == wanted["parents"]


def test_a_failed_run_ends_its_spans(tmp_path: Path) -> None:
    with CASES.run("failure_cleanup"):
        sink, wanted = Collector(), SPANS["failure_cleanup"]
        broken: Any = LlmError("invalid_request", "no", retryable=False)
        run("trace-agent", [broken], [[]], tmp_path, tracing={"sink": sink})
        assert (sink.order("start"), sink.order("end")) == (wanted["started"], wanted["ended"])
        assert {span.metadata["status"] for what, span in sink.told if what == "end"} == {wanted["run_status"]}


def test_a_sink_that_fails_changes_nothing(tmp_path: Path) -> None:
    with CASES.run("sink_failure"):
        assert SPANS["sink_failure"]["isolated"]
        step = call_step("task_finish", "finish-call", "finish", message="done")
        result = run("trace-agent", [step], [["finish"]], tmp_path, tracing={"sink": Broken()})
        assert result.status == SPANS["sink_failure"]["run_status"]
