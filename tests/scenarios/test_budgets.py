"""Limits of a run, through the front door and on every store: stop, raise, go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.harness import until
from vv_agent import Agent, CheckpointConfig, NoToolPolicy, RunConfig, Runner, function_tool
from vv_agent.budget import RunBudgetLimits
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Change, Claim, Saved, State
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.dispatch.distributed import DistributedBackend
from vv_agent.dispatch.store import StoreDispatcher
from vv_agent.dispatch.threaded import ThreadBackend
from vv_agent.errors import CheckpointError, ConfigError
from vv_agent.llm.base import ModelResponse, UsageReport
from vv_agent.messages import ToolCall
from vv_agent.runtime.inbox import budget_signal
from vv_agent.sessions import SqliteSession
from vv_agent.settings import Settings
from vv_agent.testing import ScriptedProvider

RAN: list[str] = []


@function_tool(idempotency="supported")
def look(where: str) -> str:
    """Look somewhere."""
    RAN.append(where)
    return "nothing there"


def turn(text: str, *calls: str) -> ModelResponse:
    """A turn of 10 tokens that looks in these places."""
    wanted = tuple(ToolCall(f"c{n}", "look", f'{{"where": "{where}"}}') for n, where in enumerate(calls))
    return ModelResponse(text, wanted, usage=UsageReport({"prompt_tokens": 8, "total_tokens": 10}))


MODELS = ScriptedProvider([turn("Let me see.", "left", "right"), turn("Once more.", "up"), turn("Nothing.")])
AGENT = Agent(name="looker", instructions="Look.", tools=[look], no_tool_policy=NoToolPolicy.FINISH)


def runner(folder: Path) -> Runner:
    return Runner(model_provider=MODELS, workspace=folder, settings=Settings(imports=(__name__,)))


def backends(store: Any) -> dict[str, Any]:
    return {"inline": None, "threaded": ThreadBackend(1), "distributed": DistributedBackend(StoreDispatcher(store))}


@pytest.fixture(autouse=True)
def forget() -> None:
    RAN.clear()


@pytest.mark.parametrize("mode", ["inline", "threaded", "distributed"])
def test_a_run_out_of_budget_goes_on_where_it_stopped_once_it_is_raised(
    real_store: CheckpointStore, tmp_path: Path, mode: str
) -> None:
    config = RunConfig(
        budget_limits=RunBudgetLimits(max_tool_calls=1), execution_backend=backends(real_store)[mode],
        checkpoint_config=CheckpointConfig(key="k", store=real_store),
    )  # fmt: skip
    first = runner(tmp_path).run_sync(AGENT, "Is it there?", run_config=config)
    assert (first.status, first.completion_reason) == ("failed", "budget_exhausted")
    assert first.raw_result.error == "Run budget exhausted."
    assert RAN == [], "a batch that does not fit runs nothing"
    look_at = real_store.look("k")
    assert look_at is not None
    assert (look_at.head.state, look_at.head.reason) == (State.PARKED, "budget")
    same = runner(tmp_path).resume("k", store=real_store)
    assert same.completion_reason == "budget_exhausted", "nothing was raised yet"
    for none in ({}, {"max_tool_calls_by_name": {"nosuch": 5}}, {"max_total_tokens": 10**6}):
        limits = RunBudgetLimits(max_tool_calls=1, **none)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="budget_limits_invalid: these limits of run 'k'"):
            runner(tmp_path).raise_budget("k", limits, store=real_store)

    runner(tmp_path).raise_budget("k", RunBudgetLimits(max_tool_calls=5), store=real_store)
    second = runner(tmp_path).resume("k", store=real_store)
    assert (second.status, second.final_output) == ("completed", "Nothing.")
    assert sorted(RAN[:2]) == ["left", "right"]
    assert RAN[2:] == ["up"]
    assert second.budget_usage is not None
    assert (second.budget_usage.tool_calls, second.budget_usage.cycles) == (3, 3), "each cycle counts once"
    assert second.run_id != first.run_id


def test_a_raise_takes_effect_on_a_run_under_way(real_store: CheckpointStore, tmp_path: Path) -> None:
    def raises(request: Any) -> ModelResponse:
        runner(tmp_path).raise_budget("k", RunBudgetLimits(max_total_tokens=100), store=real_store)
        return turn("Let me see.", "left")

    models = ScriptedProvider([raises, turn("Once more.", "up"), turn("Nothing.")])
    config = RunConfig(
        budget_limits=RunBudgetLimits(max_total_tokens=15),
        checkpoint_config=CheckpointConfig(key="k", store=real_store),
    )
    result = Runner(model_provider=models, workspace=tmp_path).run_sync(AGENT, "Is it there?", run_config=config)
    assert (result.status, result.final_output) == ("completed", "Nothing.")


def test_the_messages_of_both_segments_are_in_the_session(tmp_path: Path, real_store: CheckpointStore) -> None:
    session = SqliteSession(tmp_path / "sessions.db", "t")
    config = RunConfig(
        budget_limits=RunBudgetLimits(max_tool_calls=1), session=session,
        checkpoint_config=CheckpointConfig(key="k", store=real_store),
    )  # fmt: skip
    runner(tmp_path).run_sync(AGENT, "Is it there?", run_config=config)
    assert [item.role for item in session.get_items()] == ["user", "assistant"]
    runner(tmp_path).raise_budget("k", RunBudgetLimits(max_tool_calls=5), store=real_store)
    runner(tmp_path).resume("k", store=real_store)
    roles = [item.role for item in session.get_items()]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]


def test_a_run_out_of_budget_can_be_cancelled(tmp_path: Path, real_store: CheckpointStore) -> None:
    config = RunConfig(
        budget_limits=RunBudgetLimits(max_tool_calls=1), checkpoint_config=CheckpointConfig(key="k", store=real_store)
    )
    runner(tmp_path).run_sync(AGENT, "Is it there?", run_config=config)
    handle = runner(tmp_path).attach("k", store=real_store)
    assert handle.cancel("enough")
    ended = until(lambda: (at := real_store.look("k")) and at.head.state is State.ENDED and at, "it ends")
    assert ended
    result = runner(tmp_path).resume("k", store=real_store)
    assert result.completion_reason == "cancelled"
    assert [message.role for message in result.raw_result.messages][-2:] == ["tool", "tool"], "each call has a result"


def test_without_a_checkpoint_the_run_ends(tmp_path: Path) -> None:
    config = RunConfig(budget_limits=RunBudgetLimits(max_total_tokens=5))
    result = runner(tmp_path).run_sync(AGENT, "Is it there?", run_config=config)
    assert result.completion_reason == "budget_exhausted"
    assert [event.type for event in result.events][-2:] == ["budget_exhausted", "run_failed"]
    assert result.events[-1].to_wire()["budget_exhaustion"]["overshoot"] == 5


def test_what_cannot_be_raised_says_why(tmp_path: Path, real_store: CheckpointStore) -> None:
    config = RunConfig(checkpoint_config=CheckpointConfig(key="k", store=real_store))
    runner(tmp_path).run_sync(AGENT, "Is it there?", run_config=config)
    with pytest.raises(ConfigError, match="budget_not_limited: run 'k' was started without limits"):
        runner(tmp_path).raise_budget("k", RunBudgetLimits(max_tool_calls=5), store=real_store)
    with pytest.raises(CheckpointError, match="checkpoint_not_found"):
        runner(tmp_path).raise_budget("nothing", RunBudgetLimits(max_tool_calls=5), store=real_store)
    limited = RunConfig(
        budget_limits=RunBudgetLimits(max_tool_calls=9), checkpoint_config=CheckpointConfig(key="l", store=real_store)
    )
    runner(tmp_path).run_sync(AGENT, "Is it there?", run_config=limited)
    with pytest.raises(CheckpointError, match="run_finished"):
        runner(tmp_path).raise_budget("l", RunBudgetLimits(max_tool_calls=10), store=real_store)


class Meanwhile(MemoryStore):
    """Somebody raises the budget just before the end that it caused is saved."""

    raised = False

    def save(self, claim: Claim, change: Change) -> Saved:
        if change.closing and not self.raised:
            self.raised = True
            self.post(claim.key, budget_signal("meanwhile", RunBudgetLimits(max_tool_calls=5)))
        return super().save(claim, change)


def test_a_raise_that_comes_before_the_end_is_saved_lets_the_run_go_on(tmp_path: Path) -> None:
    store = Meanwhile()
    config = RunConfig(
        budget_limits=RunBudgetLimits(max_tool_calls=1), checkpoint_config=CheckpointConfig(key="k", store=store)
    )
    result = runner(tmp_path).run_sync(AGENT, "Is it there?", run_config=config)
    assert store.raised
    assert (result.status, result.final_output) == ("completed", "Nothing.")
    assert sorted(RAN) == ["left", "right", "up"]
    assert [event.type for event in result.events].count("run_started") == 1
