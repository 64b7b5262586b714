"""A store that does not answer for a while: what is known is kept, nothing is started twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.runs import KEY, Host, QueueProvider, asks
from vv_agent import Agent, CheckpointConfig, NoToolPolicy, RunConfig, Runner, function_tool
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Change, Claim, Saved, State
from vv_agent.errors import StoreError
from vv_agent.runtime import patience
from vv_agent.runtime.advance import _ready
from vv_agent.runtime.context import Engine
from vv_agent.runtime.program import Programs
from vv_agent.tools.base import ToolContext


class Failing(MemoryStore):
    """Verbs named in `down` fail as often as it says."""

    def __init__(self) -> None:
        super().__init__()
        self.down: dict[str, int] = {}

    def _pass(self, verb: str) -> None:
        if self.down.get(verb, 0) > 0:
            self.down[verb] -= 1
            raise StoreError("store_unavailable", "it does not answer")

    def save(self, claim: Claim, change: Change) -> Saved:
        self._pass("save")
        return super().save(claim, change)

    def claim(self, *args: Any, **options: Any) -> Any:
        taken = super().claim(*args, **options)
        self._pass("claim")
        return taken

    def find(self, filter_: Any = None) -> Any:
        self._pass("find")
        return super().find(filter_)

    def create(self, runs: Any) -> Any:
        made = super().create(runs)
        self._pass("create")
        return made


def test_the_outcome_of_a_call_outlives_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE", 0.0)
    store, calls = Failing(), []

    @function_tool(name="write_record")
    def pay(context: ToolContext) -> str:
        """Pay."""
        calls.append(1)
        store.down["save"] = 5
        return "paid"

    outcome = Host(store, tmp_path, [pay]).run([asks(), "done"])
    assert (outcome.ok.status, len(calls), store.down["save"]) == ("completed", 1, 0)


@pytest.mark.parametrize("verb", ["claim", "create"])
def test_a_verb_whose_answer_was_lost_is_repeated(verb: str, tmp_path: Path) -> None:
    store = Failing()
    store.down[verb] = 2
    outcome = Host(store, tmp_path).run(["done"])
    assert (outcome.ok.status, outcome.model_calls) == ("completed", 1)
    assert not [event for event in outcome.events if event.type == "model_retry_duplicate_risk"]


def test_an_interrupted_run_goes_on_at_once(tmp_path: Path) -> None:
    store = MemoryStore()

    def interrupt(request: Any) -> Any:
        raise KeyboardInterrupt

    host = Host(store, tmp_path, checkpoint={"ambiguous_model_policy": "retry_with_duplicate_risk"})
    with pytest.raises(KeyboardInterrupt):
        host.run([interrupt])
    snapshot = store.load(KEY)
    assert snapshot is not None
    assert snapshot.head.state is State.READY
    assert host.run(["done"]).ok.status == "completed"


class Interrupted(Failing):
    """Ctrl-C arrives once a save was carried out, before its answer."""

    def save(self, claim: Claim, change: Change) -> Saved:
        saved = super().save(claim, change)
        if self.down.pop("interrupt", 0):
            raise KeyboardInterrupt
        return saved


def test_a_run_that_is_interrupted_in_a_save_goes_on_at_once(tmp_path: Path) -> None:
    @function_tool(name="write_record", idempotency="supported")
    def pay() -> str:
        """Pay."""
        store.down["interrupt"] = 1
        return "paid"

    store = Interrupted()
    host = Host(store, tmp_path, [pay], checkpoint={"ambiguous_model_policy": "retry_with_duplicate_risk"})
    with pytest.raises(KeyboardInterrupt):
        host.run([asks(), asks(call_id="call_2"), "done"])
    snapshot = store.load(KEY)
    assert snapshot is not None
    assert snapshot.head.state is State.READY


def test_a_cancel_that_is_kept_counts_whatever_comes_after_it(tmp_path: Path) -> None:
    store = Failing()
    runner = Runner(model_provider=QueueProvider(["Which one?"]), workspace=tmp_path)
    agent = Agent(name="asks", instructions="Ask.", no_tool_policy=NoToolPolicy.WAIT_USER)
    config = RunConfig(checkpoint_config=CheckpointConfig(key=KEY, store=store))
    handle = runner.start(agent, "Go.", run_config=config)
    assert handle.result(10).status == "wait_user"
    store.down["find"] = 1
    assert handle.cancel("enough")
    assert store.down["find"] == 0


class Blind(MemoryStore):
    def look(self, key: str) -> Any:
        raise StoreError("store_unavailable", "it does not answer")


def test_a_run_that_ended_does_not_fail_because_the_next_one_cannot_be_seen() -> None:
    store = Blind()
    assert _ready(Engine(store, Programs(store)), ["parent"]) == ()
