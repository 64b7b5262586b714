"""A claimed run that turns out to need what this process does not have is given back whole: another one goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.agents import by_agent, heard
from vv_agent import Agent, CheckpointConfig, NoToolPolicy, RunConfig, Runner
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Head, State
from vv_agent.errors import CannotServe
from vv_agent.runtime import delegation
from vv_agent.runtime.program import Program
from vv_agent.testing import ScriptedProvider, call, calls

FINISH = NoToolPolicy.FINISH


class Bound:
    """One run in a store, through the front door."""

    def __init__(self, agent: Agent, script: list[Any], folder: Path) -> None:
        self.store = MemoryStore()
        self._agent = agent
        self._runner = Runner(model_provider=ScriptedProvider(script), workspace=folder)
        checkpoint = CheckpointConfig(key="k", store=self.store, resume_policy="resume_if_present")
        self._config = RunConfig(checkpoint_config=checkpoint)

    def run(self) -> Any:
        return self._runner.run_sync(self._agent, "Go.", run_config=self._config)

    def refused(self) -> Head:
        """The record after this process could not go on with it."""
        with pytest.raises(CannotServe, match="no such module"):
            self.run()
        look = self.store.look("k")
        assert look is not None
        assert (look.head.state, look.head.recoveries) == (State.READY, 0)
        assert "no such module" in (look.head.refusal or "")
        return look.head


def missing(*args: Any, **more: Any) -> Any:
    raise CannotServe("run_incompatible", "no such module")


def handed_over(folder: Path) -> Bound:
    writer = Agent(name="writer", instructions="Write.", no_tool_policy=FINISH)
    script = by_agent({
        "Route.": [call("transfer_to_writer", {"input": "an essay"})], "Write.": [heard(lambda said: f"wrote: {said}")],
    })  # fmt: skip
    return Bound(Agent(name="triage", instructions="Route.", handoffs=[writer]), script, folder)


def test_an_agent_that_cannot_be_loaded_takes_nothing_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = handed_over(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Program, "linked", missing)
        bound.refused()
    assert bound.run().final_output == "wrote: an essay"


def test_a_claim_on_a_run_whose_agent_cannot_be_loaded_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = handed_over(tmp_path)
    with monkeypatch.context() as patch:  # the second agent has begun, and is given back before its model call
        patch.setattr("vv_agent.runtime.memory.keep_within", missing)
        bound.refused()
    with monkeypatch.context() as patch:
        patch.setattr(Program, "linked", missing)
        first, second = bound.refused(), bound.refused()
    assert first.refused_at == second.refused_at is not None, "claimed and given back, it is as unserved as before"
    assert bound.run().final_output == "wrote: an essay"
    assert bound.store.look("k").head.refused_at is None  # type: ignore[union-attr]


def test_what_came_of_other_agents_is_kept_until_all_of_it_can_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desks = [Agent(name=name, instructions=f"Answer for {name}.", no_tool_policy=FINISH) for name in ("north", "south")]
    tasks = [(desk.name, {"task_description": "Weather?"}) for desk in desks]
    script = by_agent({
        "Ask.": [calls(*tasks), "Done."], "Answer for north": ["Snow."], "Answer for south": ["Sun."],
    })  # fmt: skip
    agent = Agent(name="a", instructions="Ask.", tools=[desk.as_tool() for desk in desks], no_tool_policy=FINISH)
    bound, outcome = Bound(agent, script, tmp_path), delegation._outcome
    with monkeypatch.context() as patch:
        patch.setattr(delegation, "_outcome", lambda run, name: missing() if "south" in name else outcome(run, name))
        bound.refused()
    result = bound.run()
    assert result.final_output == "Done."
    assert [message.content for message in result.messages if message.role == "tool"] == ["Snow.", "Sun."]
    assert len([head for head in bound.store.find() if head.root_key == "k"]) == 3
