"""llm_stream_projection.json: what a client streams, and the typed events that come of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.runs import QueueProvider, asks, response
from vv_agent import Agent, NoToolPolicy, RunConfig, Runner
from vv_agent._json import MAX_WIRE
from vv_agent.agent import SubAgentConfig
from vv_agent.event_store import MemoryRunEventStore
from vv_agent.events import EVENT_CLASSES, RunEvent
from vv_agent.llm.base import ModelResponse
from vv_agent.llm.payloads import part_of
from vv_agent.llm.reference import ResolvedModelConfig
from vv_agent.sessions import MemorySession
from vv_agent.testing import ScriptedProvider, call

FIXTURE = load("llm_stream_projection.json")
SCENES = [name for name, value in FIXTURE.items() if isinstance(value, dict) and "provider_payloads" in value]
CASES = Cases("llm_stream_projection.json")
DYNAMIC = {"event_id", "run_id", "trace_id", "created_at"}


class Foreign:
    """A client that only has `complete` and streams plain payloads, in the last of its calls."""

    def __init__(self, payloads: list[dict[str, Any]], before: int, last: ModelResponse) -> None:
        self._payloads, self._before, self._last = payloads, before, last
        self.calls = 0

    def complete(self, *, stream_callback: Any = None, **request: Any) -> ModelResponse:
        self.calls += 1
        if self.calls <= self._before:
            return response("going on")
        for payload in self._payloads:
            stream_callback(payload)
        return self._last


def observe(
    scene: dict[str, Any], folder: Path, *, stream: Any = None, event_store: Any = None
) -> tuple[Any, list[RunEvent]]:
    """Run an agent whose model streams the scene's payloads in the scene's cycle."""
    cycle = scene["context"]["cycle_index"]
    text = "".join(p.get("content_delta") or p.get("delta") or "" for p in scene["provider_payloads"])
    step = asks("task_finish", call_id="call_stream", arguments={"message": "done"})
    provider = QueueProvider([])
    provider._model = Foreign(scene["provider_payloads"], cycle - 1, response(step | {"content": text}))  # type: ignore[assignment]
    agent = Agent(name=scene["context"]["agent_name"], instructions="Stream.")
    events: list[RunEvent] = []

    def see(event: RunEvent) -> None:
        events.append(event)
        if stream is not None:
            stream(event)

    runner = Runner(model_provider=provider, workspace=folder)
    session = MemorySession(scene["context"]["session_id"])
    config = RunConfig(stream=see, max_cycles=cycle, session=session, event_store=event_store)
    return runner.run_sync(agent, "hello", run_config=config), events


@pytest.mark.parametrize("name", SCENES)
def test_payloads_become_typed_events_of_the_run(name: str, tmp_path: Path) -> None:
    scene = FIXTURE[name]
    with CASES.run(name):
        result, events = observe(scene, tmp_path)
        types = {mapping["wire_type"] for mapping in FIXTURE["mappings"].values()}
        cycle = scene["context"]["cycle_index"]
        live = [e.to_wire() for e in events if e.type in types and e.to_wire()["cycle_index"] == cycle]
        expected = [{k: v for k, v in wire.items() if k not in DYNAMIC} for wire in scene["expected_wire_events"]]
        assert [{k: v for k, v in wire.items() if k not in DYNAMIC} for wire in live] == expected
        assert len(live) == scene["typed_event_count"]
        assert {wire["run_id"] for wire in live} == {result.run_id}
        assert {wire["trace_id"] for wire in live} == {result.trace_id}
        assert result.final_output == "done", "what was streamed decides nothing"
        executed = [event.type for event in events if event.type == scene["execution_event_type"]]
        assert len(executed) == 1, "a model's preview of a call is not its execution"


@pytest.mark.parametrize("name", SCENES)
def test_a_run_is_replayed_from_its_event_store(name: str, tmp_path: Path) -> None:
    with CASES.run("public_event_surface/durable_replay"):
        kept = MemoryRunEventStore()
        result, events = observe(FIXTURE[name], tmp_path, event_store=kept)
        types = {mapping["wire_type"] for mapping in FIXTURE["mappings"].values()}
        assert list(kept.replay(result.run_id)) == [event for event in events if event.type not in types]


@pytest.mark.parametrize("name", SCENES)
def test_an_observer_that_fails_changes_nothing(name: str, tmp_path: Path) -> None:
    def fail(event: RunEvent) -> None:
        raise RuntimeError("observer")

    with CASES.run("public_event_surface"):
        assert FIXTURE["public_event_surface"]["observer_failure"] == "isolated"
        result, _ = observe(FIXTURE[name], tmp_path, stream=fail)
        assert result.status == "completed"


class Team(ScriptedProvider):
    """The lead plays a script; the model of its sub-agent is a foreign client."""

    def __init__(self, steps: list[Any], foreign: Foreign) -> None:
        super().__init__(steps)
        self._foreign = foreign

    def client(self, resolved: ResolvedModelConfig) -> Any:
        return self._foreign if resolved.model_id == "foreign" else super().client(resolved)


@pytest.mark.parametrize("name", SCENES)
def test_payloads_of_a_sub_agents_model_are_events_of_its_own_run(name: str, tmp_path: Path) -> None:
    scene, rules = FIXTURE[name], FIXTURE["scope_rules"]["configured_child"]
    with CASES.run("scope_rules/configured_child"):
        assert (rules["identity_source"], rules["cycle_source"]) == ("child_lifecycle", "framework_injected_cycle")
        cycle = scene["context"]["cycle_index"]
        text = "".join(p.get("content_delta") or p.get("delta") or "" for p in scene["provider_payloads"])
        step = asks("task_finish", call_id="call_stream", arguments={"message": "done"})
        foreign = Foreign(scene["provider_payloads"], cycle - 1, response(step | {"content": text}))
        child = SubAgentConfig("foreign", system_prompt="Stream.", max_cycles=cycle)
        lead = Agent(name="lead", instructions="Lead.", no_tool_policy=NoToolPolicy.FINISH, sub_agents={"child": child})
        work = call("create_sub_task", {"agent_id": "child", "task_description": "x"})
        runner = Runner(model_provider=Team([work, "Done."], foreign), workspace=tmp_path)
        result = runner.run_sync(lead, "hello")
        types = {mapping["wire_type"] for mapping in FIXTURE["mappings"].values()}
        events = [event.to_wire() for event in result.events if event.type in types and event.agent_name == "child"]
        live = [wire for wire in events if wire["cycle_index"] == cycle]
        own = DYNAMIC | {"agent_name", "session_id", "parent_run_id"}
        assert [{k: v for k, v in wire.items() if k not in own} for wire in live] == [
            {k: v for k, v in wire.items() if k not in own} for wire in scene["expected_wire_events"]
        ]
        (started,) = [event for event in result.events if event.type == "sub_run_started"]
        assert {(wire["run_id"], wire["parent_run_id"]) for wire in live} == {(started.run_id, result.run_id)}


@pytest.mark.parametrize("source", list(FIXTURE["mappings"]))
def test_a_mapping_has_the_fields_of_the_contract(source: str) -> None:
    mapping = FIXTURE["mappings"][source]
    with CASES.run(f"mappings/{source}"):
        required = [*mapping.get("required_source_fields", ())]
        required += [names[0] for names in mapping.get("required_source_field_alternatives", ())]
        whole: dict[str, Any] = {"event": source, **dict.fromkeys(required, "text")}
        assert part_of(whole) is not None
        for name in required:
            assert part_of({k: v for k, v in whole.items() if k != name}) is None
        for names in mapping.get("required_source_field_alternatives", ()):
            for other in names:
                assert part_of({"event": source, other: "text"}) is not None
        for name in mapping["optional_source_fields"]:
            assert part_of(whole | {name: FIXTURE["json_safe_integer_maximum"]}) is not None
            for wrong in (-1, 1.5, True, "1", FIXTURE["json_safe_integer_maximum"] + 1):
                assert part_of(whole | {name: wrong}) is None
        assert mapping["wire_type"] in EVENT_CLASSES


def test_a_diagnostic_has_the_fields_of_the_contract() -> None:
    wanted = FIXTURE["diagnostic_event"]
    with CASES.run("diagnostic_event"):
        fields = EVENT_CLASSES[wanted["wire_type"]].model_fields
        assert set(wanted["required_fields"]) <= fields.keys()
        assert list(fields["level"].annotation.__args__) == wanted["levels"]  # type: ignore[union-attr]


def test_unknown_and_lifecycle_payloads_are_dropped() -> None:
    with CASES.run("adapter_boundary"):
        for policy in (
            "unknown_source_event_policy",
            "invalid_known_event_policy",
            "lifecycle_shaped_source_event_policy",
        ):
            assert FIXTURE["adapter_boundary"][policy] == "drop"
        for payload in ({"event": "new_thing"}, {"event": "assistant_delta"}, {"event": "run_completed"}):
            assert part_of(payload) is None
        assert FIXTURE["json_safe_integer_maximum"] == MAX_WIRE
