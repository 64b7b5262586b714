"""Things that happen between two steps of a run: a stop, a cancel, a second caller, a session that is down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.harness import until
from vv_agent import (
    Agent,
    ApprovalDecision,
    CheckpointConfig,
    CheckpointExtension,
    NoToolPolicy,
    RunConfig,
    Runner,
    function_tool,
    process,
)
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Change, Claim, Park, Saved, State
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.errors import StoreError
from vv_agent.run_handle import RunHandle
from vv_agent.runtime.transcript import unpack
from vv_agent.sessions.base import Once, StoredSession
from vv_agent.sessions.memory import MemorySessionStore
from vv_agent.settings import Settings
from vv_agent.testing import ScriptedProvider, calls

RAN: list[str] = []


@function_tool(needs_approval=True, idempotency="supported")
def launch(pad: str) -> str:
    """Launch a rocket."""
    RAN.append(pad)
    return f"launched from {pad}"


AGENT = Agent(name="rocket", instructions="Launch.", tools=[launch], no_tool_policy=NoToolPolicy.FINISH)


def kept(store: CheckpointStore, **more: Any) -> RunConfig:
    return RunConfig(
        checkpoint_config=CheckpointConfig(key="k", store=store, resume_policy="resume_if_present"), **more
    )


class StoppedMeanwhile(MemoryStore):
    """The process is told to stop while it claims a run."""

    def claim(self, *args: Any, **more: Any) -> Any:
        answer = super().claim(*args, **more)
        process.engine_for(self, Settings()).stop()
        return answer


def test_a_stop_that_comes_with_the_claim_is_seen(tmp_path: Path) -> None:
    store = StoppedMeanwhile()
    models = ScriptedProvider(["Done."])
    Runner(model_provider=models, workspace=tmp_path).start(AGENT, "Go.", run_config=kept(store))
    head = until(lambda: (at := store.look("k")) and at.head.state is State.READY and at.head, "it was given back")
    assert (head.cycle, head.attempt) == (1, 1)


class CancelledMeanwhile(MemoryStore):
    """A cancel comes between the save that parks the run and whatever its process does next."""

    handle: RunHandle | None = None

    def save(self, claim: Claim, change: Change) -> Saved:
        saved = super().save(claim, change)
        if isinstance(change.then, Park) and self.handle is not None:
            assert self.handle.cancel("enough")
        return saved


def test_a_cancel_right_after_the_park_is_carried_out(tmp_path: Path) -> None:
    store = CancelledMeanwhile()

    def asks(request: Any) -> Any:
        until(lambda: store.handle, "the handle is there")
        return calls(("ask_user", {"question": "?"}))(request)

    runner = Runner(model_provider=ScriptedProvider([asks]), workspace=tmp_path)
    store.handle = runner.start(AGENT, "Go.", run_config=kept(store))
    until(lambda: (at := store.look("k")) and at.head.state is State.ENDED, "it ends")
    assert store.look("k").head.signal_n == 0  # type: ignore[union-attr]


def test_two_callers_of_one_waiting_run_both_see_its_end(real_store: CheckpointStore, tmp_path: Path) -> None:
    models = ScriptedProvider([calls(("launch", {"pad": "A"})), "Done."])
    runner = Runner(model_provider=models, workspace=tmp_path)
    first = runner.start(AGENT, "Go.", run_config=kept(real_store))
    until(lambda: (at := real_store.look("k")) and at.head.state is State.PARKED, "it is parked")
    second = runner.start(AGENT, "Go.", run_config=kept(real_store))
    asked = next(event for event in second.events() if event.type == "approval_requested")
    second.approve(asked.request_id, ApprovalDecision.allow())
    results = [handle.result(10) for handle in (first, second)]
    assert [result.status for result in results] == ["completed", "completed"]
    assert any(result.events[-1].type == "run_completed" for result in results), "whoever carried it on saw it all"


class DownAtFirst(MemorySessionStore):
    """A session store that does not answer the first append."""

    ref = "elsewhere://sessions"
    down = True

    def append(self, session_id: str, rows: Any, once: Once | None = None) -> str | None:
        if self.down:
            raise OSError("down")
        return super().append(session_id, rows, once)


class Counter(CheckpointExtension):
    namespace, version, required = "acme.count", "1", False

    def __init__(self) -> None:
        self.n = 0

    def snapshot(self) -> Any:
        return {"n": self.n}

    def restore(self, state: Any) -> None:
        self.n = state["n"]


def test_finishing_an_end_keeps_what_extensions_had(tmp_path: Path) -> None:
    store, sessions = MemoryStore(), DownAtFirst()
    session, counter = StoredSession(sessions, "s"), Counter()

    @function_tool(idempotency="supported")
    def bump() -> str:
        """Count."""
        counter.n += 7
        return "ok"

    agent = Agent(name="counting", instructions="Count.", tools=[bump], no_tool_policy=NoToolPolicy.FINISH)
    models = ScriptedProvider([calls(("bump", {})), calls(("ask_user", {"question": "?"}))])
    runner = Runner(model_provider=models, workspace=tmp_path)
    with pytest.raises(StoreError, match="did not take the messages"):
        runner.run_sync(agent, "Go.", run_config=kept(store, session=session, checkpoint_extensions=[counter]))
    store.expire(store.look("k").head.owner or "")  # type: ignore[union-attr]
    sessions.down = False
    again = kept(store, session=session, checkpoint_extensions=[Counter()])
    assert runner.run_sync(agent, "Go.", run_config=again).status == "wait_user"
    snapshot = store.load("k")
    assert snapshot is not None
    assert unpack((snapshot.blobs or {})["extensions"], "x")["acme.count"]["state"] == {"n": 7}
    assert len(session.get_items()) == 5
