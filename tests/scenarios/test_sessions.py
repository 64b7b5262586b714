"""Runs with a session, through the front door: what they begin with, what they leave, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.scenarios import module_of_a_shop as shop
from vv_agent import Agent, CheckpointConfig, Message, NoToolPolicy, RunConfig, Runner
from vv_agent.checkpoint.store import open_store
from vv_agent.dispatch.distributed import DistributedBackend
from vv_agent.dispatch.store import StoreDispatcher
from vv_agent.dispatch.threaded import ThreadBackend
from vv_agent.errors import CheckpointError, ConfigError, StoreError
from vv_agent.sessions import MemorySession, SqliteSession
from vv_agent.sessions.base import Session, commit_id, payload_digest
from vv_agent.settings import Settings
from vv_agent.testing import ScriptedProvider, call

AGENT = Agent(name="a", instructions="Answer.", no_tool_policy=NoToolPolicy.FINISH)
TRAVEL = ScriptedProvider(["Where to?", call("task_finish", {"message": "Booked."})])
ASKING = Agent(name="a", instructions="Answer.", no_tool_policy=NoToolPolicy.WAIT_USER)


def texts(session: Session) -> list[tuple[str, str]]:
    return [(item.role, item.content) for item in session.get_items()]


def test_a_run_begins_with_the_history_and_adds_its_messages() -> None:
    session = MemorySession("t")
    session.add_items([Message("user", "My name is Ada."), Message("assistant", "Hello, Ada.")])
    provider = ScriptedProvider(["You are Ada."])
    result = Runner(model_provider=provider).run_sync(AGENT, "Who am I?", run_config=RunConfig(session=session))
    assert [m.content for m in result.raw_result.messages][1:4] == ["My name is Ada.", "Hello, Ada.", "Who am I?"]
    assert texts(session)[2:] == [("user", "Who am I?"), ("assistant", "You are Ada.")]
    assert [event.type for event in result.events][-2:] == ["session_persisted", "run_completed"]
    assert {event.session_id for event in result.events} == {"t"}


def test_messages_given_for_the_run_come_instead_of_the_history() -> None:
    session = MemorySession("t")
    session.add_items([Message("user", "old")])
    config = RunConfig(session=session, initial_messages=[Message("user", "given")])
    result = Runner(model_provider=ScriptedProvider(["Hm."])).run_sync(AGENT, "now", run_config=config)
    assert [m.content for m in result.raw_result.messages if m.role == "user"] == ["given", "now"]
    assert texts(session) == [("user", "old"), ("user", "now"), ("assistant", "Hm.")]


def backends(store: Any) -> dict[str, Any]:
    return {"inline": None, "threaded": ThreadBackend(1), "distributed": DistributedBackend(StoreDispatcher(store))}


@pytest.mark.parametrize("mode", ["inline", "threaded", "distributed"])
def test_the_same_call_again_adds_nothing(tmp_path: Path, mode: str) -> None:
    session = SqliteSession(tmp_path / "sessions.db", "t")
    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    config = RunConfig(
        session=session, execution_backend=backends(store)[mode],
        checkpoint_config=CheckpointConfig(key="k", store=store, resume_policy="resume_if_present"),
    )  # fmt: skip
    runner = Runner(model_provider=shop.models, workspace=tmp_path)
    for _ in range(2):
        assert runner.run_sync(shop.agent, "What is a pear?", run_config=config).final_output == "A pear costs 2.50."
    roles = [role for role, _ in texts(session)]
    assert roles == ["user", "assistant", "tool", "assistant"]
    store.close()


def test_each_segment_adds_its_own_messages(tmp_path: Path) -> None:
    session = SqliteSession(tmp_path / "sessions.db", "t")
    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    runner = Runner(model_provider=TRAVEL, settings=Settings(imports=(__name__,)), workspace=tmp_path)
    config = RunConfig(session=session, checkpoint_config=CheckpointConfig(key="k", store=store))
    first = runner.run_sync(ASKING, "A train, please.", run_config=config)
    assert first.status == "wait_user"
    assert texts(session) == [("user", "A train, please."), ("assistant", "Where to?")]
    second = runner.resume("k", input="Ulm", store=store)
    assert second.final_output == "Booked."
    assert [role for role, _ in texts(session)] == ["user", "assistant", "user", "assistant", "tool"]
    store.close()


def test_a_failed_and_a_cancelled_run_leave_their_messages_too() -> None:
    from vv_agent import CancellationToken

    session = MemorySession("t")
    runner = Runner(model_provider=ScriptedProvider([call("no_such_tool", {})] * 9))
    agent = Agent(name="a", instructions="Answer.")
    assert runner.run_sync(agent, "go", run_config=RunConfig(session=session, max_cycles=1)).status == "max_cycles"
    token = CancellationToken()
    token.cancel("enough")
    cancelled = runner.run_sync(agent, "stop", run_config=RunConfig(session=session, cancellation_token=token))
    assert cancelled.completion_reason == "cancelled"
    assert [text for role, text in texts(session) if role == "user"] == ["go", "stop"]


class Plain:
    """A session of the host's own that cannot append once; it fails when told to."""

    session_id = "plain"

    def __init__(self) -> None:
        self.items: list[Message] = []
        self.fault: Exception | None = None

    def get_items(self, limit: int | None = None) -> list[Message]:
        return list(self.items)

    def add_items(self, items: Any) -> None:
        if self.fault is not None:
            raise self.fault
        self.items += items


def test_a_session_of_the_host_serves_runs_without_a_checkpoint_only(tmp_path: Path) -> None:
    session: Any = Plain()
    runner = Runner(model_provider=ScriptedProvider(["Hello."]))
    runner.run_sync(AGENT, "Hi", run_config=RunConfig(session=session))
    assert [item.content for item in session.items] == ["Hi", "Hello."]
    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    config = RunConfig(session=session, checkpoint_config=CheckpointConfig(key="k", store=store))
    with pytest.raises(CheckpointError, match="checkpoint_session_idempotency_unsupported"):
        runner.run_sync(AGENT, "Hi", run_config=config)
    assert store.look("k") is None, "nothing was created"
    store.close()


def test_a_session_that_does_not_take_the_messages_is_an_error() -> None:
    session: Any = Plain()
    session.fault = OSError("disk full")
    with pytest.raises(StoreError, match=r"session 'plain' did not take the messages .*disk full"):
        Runner(model_provider=ScriptedProvider(["Hello."])).run_sync(AGENT, "Hi", run_config=RunConfig(session=session))


def test_a_session_that_holds_another_run_under_the_key_fails_the_run(tmp_path: Path) -> None:
    session = SqliteSession(tmp_path / "sessions.db", "t")
    other = [Message("user", "of another life")]
    session.add_items_once(commit_id("k"), payload_digest(other), other)
    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    config = RunConfig(session=session, checkpoint_config=CheckpointConfig(key="k", store=store))
    result = Runner(model_provider=ScriptedProvider(["Hello."])).run_sync(AGENT, "Hi", run_config=config)
    assert (result.status, result.error_code) == ("failed", "session_commit_identity_conflict")
    assert len(session.get_items()) == 1
    store.close()


def test_a_queued_run_needs_a_session_that_workers_can_open(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    config = RunConfig(
        session=MemorySession("t"), checkpoint_config=CheckpointConfig(key="k", store=store),
        execution_backend=DistributedBackend(StoreDispatcher(store)),
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"reference_required: .* use SqliteSession"):
        Runner(model_provider=shop.models).run_sync(shop.agent, "Pears?", run_config=config)
    store.close()


def test_what_is_no_session_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"session_invalid: 'thread-1' is no Session"):
        RunConfig(session="thread-1")  # type: ignore[arg-type]
