"""Interactive sessions through the front door."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.harness import until
from tests.scenarios.conftest import Bench, an_agent
from vv_agent import (
    AgentSession,
    AgentSessionEvent,
    AgentSessionEventGapError,
    ApprovalDecision,
    CheckpointConfig,
    InteractiveAgentClient,
    LlmError,
    MemorySession,
    NoToolPolicy,
    RunConfig,
    Runner,
    SqliteSession,
    ToolContext,
    VVAgentError,
    function_tool,
)
from vv_agent.checkpoint.record import Filter, State
from vv_agent.errors import ConfigError, StoreError
from vv_agent.llm.base import ModelRequest
from vv_agent.messages import Message
from vv_agent.result import RunResult
from vv_agent.run_handle import RunHandle
from vv_agent.testing import ScriptedProvider, call, calls

RAN: list[str] = []


@function_tool(idempotency="supported", needs_approval=True)
def launch(pad: str) -> str:
    """Launch a rocket."""
    RAN.append(pad)
    return f"launched from {pad}"


@function_tool(idempotency="supported")
def look(where: str) -> str:
    """Look somewhere."""
    RAN.append(where)
    return f"looked at {where}"


@pytest.fixture(autouse=True)
def forget() -> None:
    RAN.clear()


def by_request(answer: Callable[[ModelRequest], Any]) -> ScriptedProvider:
    """A model that looks at the request in every turn."""
    return ScriptedProvider([answer] * 8)


def echo(request: ModelRequest) -> str:
    """Says what the user said last, and how much there was."""
    return f"{len(request.messages)}: {request.messages[-1].content}"


def session_of(
    folder: Path, models: ScriptedProvider, *tools: Any, config: RunConfig | None = None, **options: Any
) -> AgentSession:
    client = InteractiveAgentClient(Runner(model_provider=models), run_config=config)
    policy = options.pop("policy", NoToolPolicy.FINISH)
    return client.create_session(agent=an_agent(*tools, policy=policy), workspace=folder, **options)


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.content for message in messages]


def test_turns_share_a_history_and_a_state(tmp_path: Path) -> None:
    @function_tool(idempotency="supported")
    def count(context: ToolContext) -> str:
        """Count."""
        context.shared_state["n"] = context.shared_state.get("n", 0) + 1
        return str(context.shared_state["n"])

    def counts(request: ModelRequest) -> Any:
        return call("count") if request.messages[-1].role == "user" else f"counted {request.messages[-1].content}"

    with session_of(tmp_path, by_request(counts), count, shared_state={"n": 4}, session_id="s1") as session:
        assert session.query("Count.") == "counted 5"
        assert session.query("Again.") == "counted 6"
        assert session.shared_state["n"] == 6
        session.shared_state["n"] = 0
        assert session.shared_state["n"] == 6, "a copy"
        session.replace_shared_state({"n": 1})
        assert session.query("Again.") == "counted 2"
        assert (session.session_id, session.session.session_id) == ("s1", "s1")
        assert texts(session.messages)[-4:] == ["Again.", "", "2", "counted 2"]
        session.replace_messages([Message("user", "Hello."), Message("assistant", "Hi.")])
        assert texts(session.session.get_items()) == ["Hello.", "Hi."]
        state = session.state()
        assert (state.running, state.closed, texts(state.messages)) == (False, False, ["Hello.", "Hi."])
        assert state.latest_run is session.latest_run is not None
        assert session.latest_run.status == "completed"
    assert session.closed


@pytest.mark.feature("interactive")
def test_follow_ups_are_turns_after_this_one(bench: Bench, tmp_path: Path) -> None:
    session = InteractiveAgentClient(
        bench.runner([echo]),
        run_config=RunConfig(
            checkpoint_config=CheckpointConfig(store=bench.store), execution_backend=bench.backend, max_cycles=1
        ),
    ).create_session(
        agent=an_agent(), workspace=tmp_path, session=SqliteSession(f"{tmp_path}/s.db", "talk"), session_id="talk"
    )
    session.follow_up("two")
    session.follow_up("three")
    seen: list[AgentSessionEvent] = []
    session.subscribe(seen.append)
    result = session.prompt("one")
    assert (result.final_output, session.state().follow_ups) == ("6: three", ())
    assert texts(session.messages) == ["one", "2: one", "two", "4: two", "three", "6: three"]
    assert [one.number for one in seen] == list(range(1, len(seen) + 1))
    assert [one.event.type for one in seen].count("run_completed") == 3
    session.follow_up("five")
    assert session.prompt("four", auto_follow_up=False).final_output == "8: four"
    assert session.state().follow_ups == ("five",)
    assert session.continue_run().final_output == "10: five"
    assert session.continue_run("six").final_output == "12: six"


@pytest.mark.feature("interactive")
def test_a_turn_is_steered(bench: Bench, tmp_path: Path) -> None:
    held: list[AgentSession] = []

    def first(request: ModelRequest) -> Any:
        held[0].steer("Up.")
        return calls(("look", {"where": "left"}))

    session = InteractiveAgentClient(
        bench.runner([first, calls(("look", {"where": "up"})), "Seen."]),
        run_config=RunConfig(checkpoint_config=CheckpointConfig(store=bench.store), execution_backend=bench.backend),
    ).create_session(agent=an_agent(look), workspace=tmp_path, session=SqliteSession(f"{tmp_path}/s.db", "talk"))
    held.append(session)
    session.steer("Be quick.")
    assert session.state().steering == ("Be quick.",)
    assert session.query("Look.") == "Seen."
    assert (RAN, session.state().steering) == (["up"], ())
    users = [m.content for m in session.messages if m.role == "user"]
    assert users == ["Look.", "Be quick.", "Up."]


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.feature("interactive")
def test_a_prompt_answers_a_run_that_waits(bench: Bench, tmp_path: Path, kept: bool) -> None:
    checkpoint = CheckpointConfig(store=bench.store)
    config = RunConfig(checkpoint_config=checkpoint, execution_backend=bench.backend) if kept else None
    storage = SqliteSession(f"{tmp_path}/s.db", "talk")
    client = InteractiveAgentClient(bench.runner([echo] * 4), run_config=config)
    with client.create_session(
        agent=an_agent(policy=NoToolPolicy.WAIT_USER), workspace=tmp_path, session=storage
    ) as session:
        events: list[AgentSessionEvent] = []
        session.subscribe(events.append)
        first = session.prompt("one")
        with pytest.raises(VVAgentError, match="is wait_user") as error:
            session.query("two")
        assert error.value.code == "run_not_completed"
        assert session.query("three", require_completed=False) == "6: three"
        second = session.latest_run
        assert second is not None
        assert (first.status, second.trace_id, second.input) == ("wait_user", first.trace_id, "three")
        assert texts(session.messages) == ["one", "2: one", "two", "4: two", "three", "6: three"]
        ends = [one.event.event_id for one in events if one.event.type == "run_completed"]
        assert (len(ends), len(set(ends))) == (3, 3), "no event is told twice"


def waiting_session(bench: Bench, folder: Path, *, kept: bool) -> AgentSession:
    """One whose run waits for its user."""
    checkpoint = CheckpointConfig(store=bench.store)
    config = RunConfig(checkpoint_config=checkpoint, execution_backend=bench.backend) if kept else None
    client = InteractiveAgentClient(bench.runner([echo] * 4), run_config=config)
    storage = SqliteSession(f"{folder}/s.db", "talk")
    agent = an_agent(policy=NoToolPolicy.WAIT_USER)
    session = client.create_session(agent=agent, workspace=folder, session=storage)
    assert session.prompt("one").status == "wait_user"
    return session


@pytest.mark.parametrize("kept", [False, True])
def test_a_session_goes_on_after_an_answer_that_was_interrupted(bench: Bench, tmp_path: Path, kept: bool) -> None:
    session = waiting_session(bench, tmp_path, kept=kept)

    def listener(event: AgentSessionEvent) -> None:
        raise KeyboardInterrupt

    interrupting = session.subscribe(listener)
    with pytest.raises(KeyboardInterrupt):
        session.prompt("two")
    interrupting.close()
    result = session.prompt("three")
    assert (result.status, result.input) == ("wait_user", "three")


def test_a_session_goes_on_after_its_waiting_run_was_cancelled_elsewhere(bench: Bench, tmp_path: Path) -> None:
    session = waiting_session(bench, tmp_path, kept=True)
    (head,) = bench.store.find(Filter())
    elsewhere = bench.runner().attach(head.key, store=bench.store)
    elsewhere.cancel()
    until(lambda: bench.store.find(Filter())[0].state is State.ENDED, "the run is cancelled")
    session.steer("Be quick.")
    result = session.prompt("two")
    assert (result.status, result.run_id != head.run_id, session.state().steering) == ("wait_user", True, ())
    assert len(bench.store.find(Filter())) == 2


def test_an_answer_that_the_store_did_not_take_can_be_given_again(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = waiting_session(bench, tmp_path, kept=True)

    def lost(*_: object, **__: object) -> None:
        raise StoreError("store_unavailable", "no")

    with monkeypatch.context() as patched:
        patched.setattr(RunHandle, "resume", lost)
        with pytest.raises(StoreError):
            session.prompt("two")
    session.prompt("two")
    assert len(bench.store.find(Filter())) == 1, "the waiting run was answered"


def test_a_steer_that_the_store_did_not_take_is_not_queued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object, **__: object) -> None:
        raise StoreError("store_unavailable", "no")

    session = session_of(tmp_path, ScriptedProvider([call("launch", {"pad": "A"}), "Done."]), launch)
    results: list[RunResult] = []
    events = session.subscribe()
    with turn(session, "Launch.", results):
        asked = next(one.event for one in events if one.event.type == "approval_requested")
        with monkeypatch.context() as patched:
            patched.setattr(RunHandle, "steer", lost)
            with pytest.raises(StoreError):
                session.steer("Be quick.")
        assert session.state().steering == ()
        session.steer("Be quick.")
        session.approve(asked.request_id, ApprovalDecision.allow())  # type: ignore[attr-defined]
    assert [m.content for m in session.messages if m.role == "user"] == ["Launch.", "Be quick."]


@contextmanager
def turn(session: AgentSession, prompt: str, results: list[RunResult]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=lambda: results.append(session.prompt(prompt)))
    thread.start()
    try:
        yield thread
    finally:
        thread.join(20)
        assert not thread.is_alive()


def test_a_turn_under_way_is_approved_cancelled_and_left_alone(tmp_path: Path) -> None:
    models = ScriptedProvider([call("launch", {"pad": "A"}), "Done."])
    session = session_of(tmp_path, models, launch)
    with pytest.raises(ConfigError) as error:
        session.approve("x", ApprovalDecision.allow())
    assert (error.value.code, session.cancel()) == ("session_not_running", False)
    results: list[RunResult] = []
    events = session.subscribe()
    with turn(session, "Launch.", results):
        asked = next(one.event for one in events if one.event.type == "approval_requested")
        assert session.running
        assert session.active_run_handle is not None
        for busy in (
            lambda: session.prompt("Now."), session.continue_run, lambda: session.replace_messages([]),
            lambda: session.replace_shared_state({}),
        ):  # fmt: skip
            with pytest.raises(ConfigError) as error:
                busy()
            assert error.value.code == "session_running"
        session.approve(asked.request_id, ApprovalDecision.allow())  # type: ignore[attr-defined]
    assert (results[0].final_output, RAN) == ("Done.", ["A"])
    session.follow_up("Once more.")
    with turn(session, "Launch.", results):
        next(one for one in events if one.event.type == "approval_requested")
        assert session.cancel()
    assert (results[1].completion_reason, session.state().follow_ups) == ("cancelled", ("Once more.",))
    session.clear_queues()
    with pytest.raises(ConfigError) as error:
        session.continue_run()
    assert error.value.code == "session_no_prompt"
    with turn(session, "Launch.", results):
        next(one for one in events if one.event.type == "approval_requested")
        session.close()
    assert (results[2].completion_reason, results[2].final_output) == ("cancelled", "The session was closed.")
    assert list(events)[-1].event.type == "run_cancelled"
    for late in (lambda: session.prompt("x"), lambda: session.steer("x"), lambda: session.follow_up("x")):
        with pytest.raises(ConfigError) as error:
            late()
        assert error.value.code == "session_closed"


def test_a_slow_subscriber_is_told_what_it_missed(tmp_path: Path) -> None:
    session = session_of(tmp_path, by_request(echo))
    slow, gone = session.subscribe(capacity=2), session.subscribe()
    gone.close()
    assert gone.get() is None
    session.prompt("one")
    with pytest.raises(AgentSessionEventGapError) as error:
        slow.get()
    first = slow.get()
    assert first is not None
    assert (first.number, error.value.code) == (error.value.missed + 1, "session_event_gap")
    assert slow.get().event.type == "run_completed"  # type: ignore[union-attr]
    with pytest.raises(TimeoutError):
        slow.get(0.01)


def test_a_failed_turn_keeps_the_queue_and_a_listener_that_fails_is_its_own(tmp_path: Path) -> None:
    broken = LlmError("invalid_request", "no", definite=True)
    session = session_of(tmp_path, ScriptedProvider([broken]))
    session.follow_up("later")

    def listener(event: AgentSessionEvent) -> None:
        raise RuntimeError("no")

    session.subscribe(listener)
    assert session.prompt("one").status == "failed"
    assert session.state().follow_ups == ("later",)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (lambda s: s.prompt("  "), "message_empty"),
        (lambda s: s.steer(""), "message_empty"),
        (lambda s: s.follow_up(None), "message_empty"),
        (lambda s: s.continue_run(), "session_no_prompt"),
        (lambda s: s.subscribe(capacity=0), "session_capacity_invalid"),
    ],
)
def test_a_wrong_call_changes_nothing(tmp_path: Path, wrong: Callable[[AgentSession], object], code: str) -> None:
    session = session_of(tmp_path, by_request(echo))
    with pytest.raises(ConfigError) as error:
        wrong(session)
    assert (error.value.code, session.running, session.messages) == (code, False, [])


def test_a_session_has_the_id_of_its_storage(tmp_path: Path) -> None:
    assert session_of(tmp_path, by_request(echo), session=MemorySession("a")).session_id == "a"
    assert session_of(tmp_path, by_request(echo)).session_id.startswith("session_")
    with pytest.raises(ConfigError) as error:
        session_of(tmp_path, by_request(echo), session=MemorySession("a"), session_id="b")
    assert error.value.code == "session_id_mismatch"
    with pytest.raises(ConfigError, match="each turn is a run"):
        session_of(tmp_path, by_request(echo), config=RunConfig(checkpoint_key="k"))
