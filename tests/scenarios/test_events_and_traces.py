"""The host's event store and its trace sinks: the same events and spans from every backend and store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.runs import Died, Recording
from tests.scenarios.agents import by_agent
from tests.scenarios.conftest import Bench, an_agent
from vv_agent import (
    Agent,
    CheckpointConfig,
    ConfigError,
    ExecutionMode,
    JsonlRunEventStore,
    JsonlTraceExporter,
    MemoryRunEventStore,
    MemorySession,
    NoToolPolicy,
    RunConfig,
    Runner,
    Span,
    TraceSink,
    function_tool,
)
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.events import RunEvent
from vv_agent.runtime.owner import process_owner
from vv_agent.testing import ScriptedProvider, call, calls
from vv_agent.tools.registry import ToolRegistry
from vv_agent.tracing import Tracer, spans

MODELS = ScriptedProvider(["Done."])
LIVE = {"assistant_delta", "reasoning_delta", "model_tool_call_started", "model_tool_call_progress"}


@function_tool(idempotency="supported")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


STEPS = [calls(("add", {"a": 1, "b": 1}), ("add", {"a": 2, "b": 2})), "Done."]


class Collector(TraceSink):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Span]] = []

    def on_span_start(self, span: Span) -> None:
        self.told.append(("start", span))

    def on_span_end(self, span: Span) -> None:
        self.told.append(("end", span))

    def flush(self) -> None:
        self.told.append(("flush", Span("", "", "")))

    def names(self) -> list[str]:
        return [f"{what} {span.name}".strip() for what, span in self.told]


class Broken(TraceSink):
    def on_span_start(self, span: Span) -> None:
        raise RuntimeError("no disk")

    on_span_end = on_span_start

    def flush(self) -> None:
        raise RuntimeError("no disk")


class Full:
    """An event store that has room for some events."""

    def __init__(self, room: int) -> None:
        self.kept: list[RunEvent] = []
        self.room = room

    def append(self, event: RunEvent) -> None:
        if len(self.kept) >= self.room:
            raise OSError("disk full")
        self.kept.append(event)

    def replay(self, run_id: str, include_children: bool = True) -> Any:
        return (event for event in self.kept if event.run_id == run_id)


def durable(events: Any) -> list[dict[str, Any]]:
    return [event.to_wire() for event in events if event.type not in LIVE and getattr(event, "code", "") != "live_gap"]


@pytest.mark.feature("event store")
def test_an_event_store_has_each_event_once_and_in_order(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "out" / "events.jsonl"
    store = JsonlRunEventStore(path)
    first = bench.run(an_agent(add, policy=NoToolPolicy.WAIT_USER), STEPS, key="k", event_store=store)
    assert first.status == "wait_user"
    second = bench.runner(STEPS).resume("k", input="Thank you.", store=bench.store)
    assert second.run_id != first.run_id
    attached = bench.runner().attach("k", store=bench.store)
    attached.result(10)
    kept = [*store.replay(first.run_id), *store.replay(second.run_id)]
    assert durable(kept) == durable(attached.events())
    assert len(kept) == len(path.read_text().splitlines())


@pytest.mark.feature("traces")
def test_spans_are_the_same_wherever_the_run_was_advanced(bench: Bench, tmp_path: Path) -> None:
    sink, exporter = Collector(), JsonlTraceExporter(tmp_path / "traces" / "t.jsonl")
    tracing = {"sink": [Broken(), sink, exporter], "trace_id": " trace_mine ", "workflow_name": "sums"}
    handle = bench.start(an_agent(add), STEPS, key="k", tracing=tracing)
    result = handle.result(10)
    assert sink.names() == [
        "start run", "start agent", "start tool", "start tool", "end tool", "end tool", "end agent", "end run", "flush",
    ]  # fmt: skip
    assert [(what, span.to_wire()) for what, span in spans(handle.events(), "sums")] == [
        (what, span.to_wire()) for what, span in sink.told[:-1]
    ]
    run = sink.told[-2][1]
    assert (run.trace_id, run.metadata) == (
        "trace_mine",
        {
            "run_id": result.run_id, "agent_name": "tester", "workflow_name": "sums", "status": "completed",
            "final_output": "Done.",
        },
    )  # fmt: skip
    assert result.metadata["run_span"] == run.to_wire()
    assert result.trace_id == "trace_mine"
    lines = [json.loads(line) for line in exporter.path.read_text().splitlines()]
    assert [line["event"] for line in lines].count("span_end") == 4
    assert lines[-1] == {"event": "span_end", "timestamp": run.ended_at, "span": run.to_wire()}


VERBS = ("create", "claim", "save.progress", "save.commit", "save.end")


def keeps(store: Any, key: str = "k") -> CheckpointConfig:
    return CheckpointConfig(key=key, store=store, resume_policy="resume_if_present")


def test_a_worker_that_goes_on_appends_what_the_last_one_left_and_nothing_twice(tmp_path: Path) -> None:
    """The process dies before or after each write to the store in turn, and the call is made again."""
    runner = Runner(model_provider=ScriptedProvider(STEPS), workspace=tmp_path)
    for kind in (MemoryRunEventStore, lambda: Full(1000)):
        deaths = 0
        for point in [(f"store.{verb}", side, 1) for verb in VERBS for side in ("before", "after")]:
            kept, home = kind(), MemoryStore()
            config = RunConfig(checkpoint_config=keeps(Recording(home, point)), event_store=kept)
            try:
                runner.run_sync(an_agent(add), "Go.", run_config=config)
            except Died:
                deaths += 1
                home.expire(process_owner())
            config = RunConfig(checkpoint_config=keeps(home), event_store=kept)
            result = runner.run_sync(an_agent(add), "Go.", run_config=config)
            assert result.status == "completed"
            handle = runner.attach("k", store=home)
            handle.result(10)
            assert durable(kept.replay(result.run_id)) == durable(handle.events())
        assert deaths == 2 * len(VERBS)


@pytest.mark.parametrize("room", [0, 4])
def test_a_store_that_fails_is_told_of_and_the_run_goes_on(tmp_path: Path, room: int) -> None:
    runner = Runner(model_provider=ScriptedProvider(STEPS), workspace=tmp_path)
    result = runner.run_sync(an_agent(add), "Go.", run_config=RunConfig(event_store=Full(room)))
    assert (result.status, result.final_output) == ("completed", "Done.")
    (told,) = [event for event in result.events if event.type == "diagnostic"]
    assert (told.code, told.details) == ("event_store_append_failed", {"error": "disk full"})


@pytest.mark.parametrize("room", [0, 4, 16])
@pytest.mark.parametrize("session", [False, True])
def test_a_run_that_must_not_go_on_without_its_store_fails(tmp_path: Path, room: int, session: bool) -> None:
    """With room for all but the last event it fails too; the event that told of its end is then only in its record."""
    config = RunConfig(session=MemorySession("t") if session else None)
    whole = Runner(model_provider=ScriptedProvider(STEPS), workspace=tmp_path).run_sync(
        an_agent(add), "Go.", run_config=config
    )
    store = Full(min(room, len(durable(whole.events)) - 1))
    runner = Runner(
        model_provider=ScriptedProvider(STEPS), workspace=tmp_path,
        default_run_config=RunConfig(event_store_fail_closed=True),
    )  # fmt: skip
    config = RunConfig(event_store=store, session=MemorySession("t") if session else None)
    result = runner.run_sync(an_agent(add), "Go.", run_config=config)
    assert (result.status, result.completion_reason, result.error_code) == (
        "failed", "failed", "event_store_append_failed",
    )  # fmt: skip
    assert result.final_output == "run event store append failed: disk full"
    assert result.metadata["run_span"]["name"] == "run"


def test_an_end_that_was_cut_off_between_its_two_saves_is_finished(tmp_path: Path) -> None:
    runner = Runner(model_provider=ScriptedProvider(["Done."]), workspace=tmp_path)
    kept, home = MemoryRunEventStore(), MemoryStore()
    config = RunConfig(checkpoint_config=keeps(Recording(home, ("store.save.end", "before", 1))), event_store=kept)
    with pytest.raises(Died):
        runner.run_sync(an_agent(), "Go.", run_config=config)
    look = home.look("k")
    assert look is not None
    assert (look.head.state, look.head.ending) == ("claimed", True)
    home.expire(process_owner())
    again = Runner(model_provider=ScriptedProvider([]), workspace=tmp_path)
    result = again.run_sync(an_agent(), "Go.", run_config=RunConfig(checkpoint_config=keeps(home), event_store=kept))
    assert (result.status, result.final_output) == ("completed", "Done.")
    assert [event.type for event in kept.replay(result.run_id)].count("run_completed") == 1


def test_a_run_may_go_on_with_another_store_which_gets_the_rest(tmp_path: Path) -> None:
    home, first, second = MemoryStore(), *(JsonlRunEventStore(tmp_path / name) for name in ("a.jsonl", "b.jsonl"))
    runner = Runner(model_provider=ScriptedProvider(STEPS), workspace=tmp_path)
    dying = Recording(home, ("store.save.commit", "after", 1))
    with pytest.raises(Died):
        runner.run_sync(an_agent(add), "Go.", run_config=RunConfig(checkpoint_config=keeps(dying), event_store=first))
    home.expire(process_owner())
    result = runner.run_sync(
        an_agent(add), "Go.", run_config=RunConfig(checkpoint_config=keeps(home), event_store=second)
    )
    assert result.status == "completed"
    kept = [*first.replay(result.run_id), *second.replay(result.run_id)]
    assert list(first.replay(result.run_id))
    assert kept[0].type == "run_started"
    assert kept[-1].type == "run_completed"
    assert len({event.event_id for event in kept}) == len(kept)


@function_tool(idempotency="supported")
def look(n: int) -> str:
    """Look something up."""
    return f"result {n}: " + "sheep " * 150


@pytest.mark.parametrize("fails", [False, True])
def test_events_that_point_back_over_a_compaction_are_whole(tmp_path: Path, fails: bool) -> None:
    """The process dies after the compaction. The next one begins to read there, and appends the rest: the end of the
    hand-off before it, or, where the store was away until then, all."""
    said = [call("transfer_to_editor", {"input": "count"}), *(call("look", {"n": n}) for n in range(1, 4)), "Done."]
    editor = Agent(name="editor", instructions="Edit.", no_tool_policy=NoToolPolicy.FINISH, tools=[look])
    triage = Agent(name="triage", instructions="Route.", handoffs=[editor])
    kept, home = Full(0 if fails else 1000), MemoryStore()
    more: dict[str, Any] = {"event_store": kept, "max_cycles": 9, "tool_registry_factory": ToolRegistry}
    more["metadata"] = {"compact_threshold": 700, "microcompact_trigger_ratio": 1}

    def go_on(steps: list[Any], store: Any) -> Any:
        config = RunConfig(checkpoint_config=keeps(store), **more)
        runner = Runner(model_provider=ScriptedProvider(steps), workspace=tmp_path)
        return runner.run_sync(triage, "Go.", run_config=config)

    with pytest.raises(Died):
        go_on(said, Recording(home, ("store.save.progress", "after", 5)))
    look_at = home.look("k")
    assert look_at is not None
    assert look_at.head.log_from > 0
    home.expire(process_owner())
    kept.room = 1000
    result = go_on(["Done."] * 6, home)
    assert (result.status, result.final_output) == ("completed", "Done.")
    attached = Runner(model_provider=MODELS, workspace=tmp_path).attach("k", store=home)
    attached.result(10)
    events = durable(attached.events())
    assert [e for e in events if e["type"] == "handoff_completed"]
    assert durable(kept.kept) == events


def test_workers_are_named_a_store_or_the_run_is_refused(tmp_path: Path) -> None:
    runner = Runner(model_provider=MODELS, workspace=tmp_path)
    config = RunConfig(
        execution_mode=ExecutionMode.DISTRIBUTED, checkpoint_config=keeps(MemoryStore()), event_store=Full(1)
    )
    with pytest.raises(ConfigError, match="cannot open the event store") as caught:
        runner.run_sync(an_agent(), "Go.", run_config=config)
    assert caught.value.code == "reference_required"


@pytest.mark.parametrize(
    "wrong",
    [
        {"event_store": "events.jsonl"}, {"event_store": JsonlRunEventStore}, {"tracing": "t"},
        {"tracing": {"sinks": []}}, {"tracing": {"sink": 5}}, {"tracing": {"trace_id": 5}},
    ],
)  # fmt: skip
def test_what_is_no_event_store_or_trace_control_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig(**wrong)
    assert caught.value.code == "run_config_invalid"


def test_parts_of_tracing_are_taken_from_the_run_then_from_the_runner(tmp_path: Path) -> None:
    sink = Collector()
    runner = Runner(
        model_provider=ScriptedProvider(["Done."]), workspace=tmp_path,
        default_run_config=RunConfig(tracing={"sink": sink, "workflow_name": "of the runner", "trace_id": "t1"}),
    )  # fmt: skip
    config = RunConfig(tracing={"workflow_name": "mine", "trace_id": "  "})
    result = runner.run_sync(an_agent(), "Go.", run_config=config)
    assert (result.trace_id, result.metadata["run_span"]["metadata"]["workflow_name"]) == ("t1", "mine")
    assert sink.names()[-1] == "flush"


def test_a_call_without_an_end_is_abandoned(tmp_path: Path) -> None:
    home, sink = MemoryStore(), Collector()
    steps = [call("add", {"a": 1, "b": 1}), "Done."]
    runner = Runner(model_provider=ScriptedProvider(steps), workspace=tmp_path)
    handle = runner.start(an_agent(add), "Go.", run_config=RunConfig(checkpoint_config=keeps(home)))
    handle.result(10)
    events = [event for event in handle.events() if event.type != "tool_call_completed"]
    tools = [span for what, span in spans(events) if what == "end" and span.name == "tool"]
    assert [tool.metadata["status"] for tool in tools] == ["abandoned"]
    assert sink.told == []


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [Agent(name="writer", instructions="Write.", no_tool_policy=NoToolPolicy.FINISH).as_tool()]},
        {"handoffs": [Agent(name="writer", instructions="Write.", no_tool_policy=NoToolPolicy.FINISH)]},
    ],
    ids=["agent tool", "hand-off"],
)
def test_each_span_begins_and_ends_once(tmp_path: Path, more: dict[str, Any]) -> None:
    agent = Agent(name="triage", instructions="Route.", no_tool_policy=NoToolPolicy.FINISH, **more)
    name = "transfer_to_writer" if "handoffs" in more else more["tools"][0].name
    script = by_agent(
        {
            "Route.": [
                call(name, {"input" if "handoffs" in more else "task_description": "write"}),
                "Done.",
            ],
            "Write.": ["written"],
        }
    )
    sink = Collector()
    runner = Runner(model_provider=ScriptedProvider(script), workspace=tmp_path)
    assert runner.run_sync(agent, "Go.", run_config=RunConfig(tracing={"sink": sink})).status == "completed"
    begun, ended = ([span.span_id for what, span in sink.told if what == kind] for kind in ("start", "end"))
    assert len(begun) == len(set(begun)) >= 4
    assert sorted(begun) == sorted(ended)
    assert {span.metadata["status"] for what, span in sink.told if what == "end"} <= {"completed", "success"}


def test_what_is_open_when_nobody_follows_any_more_is_abandoned(tmp_path: Path) -> None:
    runner = Runner(model_provider=ScriptedProvider([call("add", {"a": 1, "b": 1}), "Done."]), workspace=tmp_path)
    events = runner.run_sync(an_agent(add), "Go.").events
    sink = Collector()
    tracer = Tracer([sink], None)
    for event in events[: [event.type for event in events].index("tool_call_started") + 1]:
        tracer.put(event)
    tracer.close()
    assert sink.names() == [
        "start run", "start agent", "start tool", "end tool", "end agent", "end run", "flush",
    ]  # fmt: skip
    assert {span.metadata["status"] for what, span in sink.told if what == "end"} == {"abandoned"}
