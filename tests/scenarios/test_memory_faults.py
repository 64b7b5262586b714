"""Memory among refusals, crashes and providers whose call ids come again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runs import Died, Host, asks
from tests.scenarios.test_memory import (
    SMALL,
    answers,
    compactions,
    dies,
    host,
    is_summary,
    steps,
    store,
    summarises,
)
from vv_agent import Agent, NoToolPolicy, RunConfig, Runner, function_tool
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.errors import LlmError
from vv_agent.llm.base import ModelRequest, ModelResponse, UsageReport
from vv_agent.memory import MemoryConfig, MemoryManager, MemoryProvider, SessionMemory, stages
from vv_agent.memory import summary as summaries
from vv_agent.memory.tokens import estimate
from vv_agent.messages import Message, ToolCall
from vv_agent.testing import ScriptedProvider
from vv_agent.tools import artifacts
from vv_agent.tools.registry import ToolRegistry
from vv_agent.workspace import MemoryWorkspaceBackend

__all__ = ["store"]


@pytest.mark.parametrize("n", range(7, 11))
def test_a_crash_after_a_refused_prompt_is_not_the_end_where_calls_are_reconciled(
    store: CheckpointStore, tmp_path: Path, n: int
) -> None:
    """The prompt that was refused is no longer the one of the record: the call that is planned is a new one."""
    there = host(store, tmp_path, ambiguous_model_policy="require_reconciliation")
    there.config = {**there.config, "metadata": {}}
    refused = LlmError("context_length", "prompt is too long", definite=True)
    first = there.run([*steps(3), refused, summarises, answers], die_at=("store.save.progress", "after", n))
    assert isinstance(first.error, Died)
    second = there.run([lambda request: summarises(request) if is_summary(request) else "done"] * 4)
    assert second.error is None


def test_a_result_is_judged_by_the_tool_of_its_own_call() -> None:
    history = [Message("system", "s"), Message("user", "task")]
    for name in ("sign_contract", "a", "b", "read_file"):
        history += [
            Message("assistant", "", tool_calls=(ToolCall("call_1", name),)),
            Message("tool", "r" * 5_000, tool_call_id="call_1"),
        ]
    done = stages.cleared(history, MemoryConfig())
    assert done[3].content != stages.CLEARED, "sign_contract is no tool whose results may be cleared"


def test_what_the_user_says_twice_is_kept_twice() -> None:
    history = [Message("user", text) for text in ("task", "yes", "Now delete B?", "yes")]
    assert summaries.originals(history) == ["task", "yes", "Now delete B?", "yes"]


@pytest.mark.parametrize(
    "numbers",
    [
        {"model_context_window": 8_192},
        {"model_context_window": 16_384},
        {"model_context_window": 8_192, "reserved_output_tokens": 8_192},
    ],
    ids=["8k", "16k", "no room at all"],
)
def test_a_small_window_is_used_not_summarised_away(tmp_path: Path, numbers: dict[str, int]) -> None:
    """The defaults are made for large windows; a model with a small one still sees what its tools gave."""
    there = host(MemoryStore(), tmp_path)
    there.config = {**there.config, "metadata": numbers}

    def answers_all(request: ModelRequest) -> str:
        assert [m.tool_call_id for m in request.messages if m.role == "tool"] == ["call_1", "call_2", "call_3"]
        return "done"

    outcome = there.run([*steps(3), answers_all])
    assert outcome.ok.final_output == "done"
    assert compactions(outcome) == []


def test_a_small_window_that_is_full_is_summarised(tmp_path: Path) -> None:
    there = host(MemoryStore(), tmp_path)
    there.config = {**there.config, "metadata": {"model_context_window": 2_000, "microcompact_trigger_ratio": 1}}
    assert compactions(there.run([*steps(4), summarises, "done"])) == ["summary"]


def run_of(folder: Path, metadata: dict[str, Any], *tools: Any, **more: Any) -> Host:
    there = host(MemoryStore(), folder)
    there.config, there.tools = {**there.config, "metadata": metadata}, tools or there.tools
    return replace(there, **more)


@function_tool(idempotency="supported")
def read_long(n: int) -> str:
    """Give a long text."""
    return f"long {n}: " + "page " * 800


def test_facts_that_were_paid_for_are_kept_when_the_summary_behind_them_is_lost(tmp_path: Path) -> None:
    numbers = {
        "compact_threshold": 14_600, "microcompact_trigger_ratio": 1, "tool_result_keep_last": 99,
        "session_memory_extraction_model": "scripted",
    }  # fmt: skip
    there = run_of(tmp_path, numbers, read_long, agent={"instructions": "Work. " + "x" * 44_000})

    def facts(request: ModelRequest) -> ModelResponse:
        assert request.metadata["purpose"] == "session_memory:0"
        return ModelResponse('[{"content": "the gate is blue"}]', usage=UsageReport({"total_tokens": 70}))

    def ends(request: ModelRequest) -> str:
        assert "the gate is blue" in request.messages[0].content
        return "done"

    work = [
        {**asks("read_long", call_id=f"call_{n}", arguments={"n": n}), "content": f"Reading {n}."} for n in range(1, 5)
    ]
    first = there.run([*work, facts, dies])
    assert isinstance(first.error, Died)
    second = there.run([summarises, ends])
    assert second.ok.final_output == "done"
    assert [cycle.usage.total_tokens for cycle in second.ok.token_usage.cycles].count(70) == 1


def test_a_result_that_is_too_long_by_itself_is_moved_not_summarised_away(tmp_path: Path) -> None:
    there = run_of(tmp_path, SMALL, read_long)

    def reads(request: ModelRequest) -> str:
        result = request.messages[-1]
        assert result.tool_call_id == "call_1"
        assert result.content.startswith(stages.EXCERPT)
        assert "long 1:" in result.content
        return "done"

    outcome = there.run([asks("read_long", call_id="call_1", arguments={"n": 1}), reads])
    assert outcome.ok.final_output == "done"
    assert compactions(outcome) == ["structural"]
    assert [path.read_text() for path in tmp_path.rglob("call_1.txt")] == [read_long_text(1)]


def read_long_text(n: int) -> str:
    text = f"long {n}: " + "page " * 800
    return "\n".join(text[at : at + 2_000] for at in range(0, len(text), 2_000))


def test_results_with_the_same_call_id_lie_in_files_of_their_own() -> None:
    space = MemoryWorkspaceBackend()
    kept = [artifacts.keep(space, 3, "call_1", text, lambda: None) for text in ("one", "two", "one", "two")]
    assert kept[:2] == kept[2:]
    assert [space.read_text(path) for path in kept[:2]] == ["one", "two"]


def test_an_emergency_keeps_the_newest_results_however_many_they_are() -> None:
    many = [ToolCall(f"c{n}", "look") for n in range(12)]
    newest = [
        Message("assistant", "", tool_calls=tuple(many)),
        *(Message("tool", "r", tool_call_id=c.id) for c in many),
    ]
    old = [Message("system", "s"), Message("user", "task"), Message("assistant", "hm"), Message("user", "go on")]
    assert stages.dropped([*old, *newest], 0.95, 4) == [*old[:2], *newest]


def test_facts_are_looked_for_again_where_there_was_no_answer_and_after_an_emergency() -> None:
    answers = iter([None, "[]"])
    session = SessionMemory(ask=lambda messages: next(answers))
    told = [Message("system", "s"), Message("user", "task"), *[Message("assistant", "a"), Message("user", "b")] * 20]
    session.extract(told, current_cycle=1, current_tokens=10)
    assert session.state.last_message_index == -1
    session.extract(told, current_cycle=1, current_tokens=10)
    assert session.state.last_message_index == len(told) - 1
    left, changed = MemoryManager(session_memory=session).emergency_compact(told)
    assert changed
    assert len(left) < len(told)
    assert session.state.last_message_index == -1


def test_a_request_for_facts_fits_its_model() -> None:
    session = SessionMemory(room=1_000)
    _, text = session.prompt([Message("user", "word " * 300)] * 100)
    assert estimate(text.content) <= 1_100


def test_facts_take_at_most_a_quarter_of_the_room(tmp_path: Path) -> None:
    seed = [f"fact {n}: " + "x" * 400 for n in range(60)]
    there = run_of(tmp_path, {"compact_threshold": 4_000, "session_memory_seed": seed})

    def ends(request: ModelRequest) -> str:
        assert "fact 59" in request.messages[0].content
        assert estimate(request.messages[0].content) <= 1_200
        return "done"

    assert there.run([ends]).ok.final_output == "done"


def test_a_model_is_warned_at_the_percentage_that_was_asked_for(tmp_path: Path) -> None:
    numbers = {"compact_threshold": 2_000, "include_memory_warning": True, "warning_threshold_percentage": 20}

    def ends(request: ModelRequest) -> str:
        assert stages.is_warning(request.messages[-1])
        return "done"

    assert run_of(tmp_path, numbers).run([*steps(2), ends]).ok.final_output == "done"


class Wrong(MemoryProvider):
    """A provider that gives nonsense, then fails."""

    def before_compact(self, event: Any) -> Any:
        return "nonsense"

    def after_compact(self, event: Any) -> Any:
        raise OSError("no room")


def test_what_a_memory_provider_does_wrong_is_noted_in_the_event(tmp_path: Path) -> None:
    there = host(MemoryStore(), tmp_path)
    there.config, there.checkpoint = {**there.config, "memory_providers": [Wrong()]}, None
    outcome = there.run([*steps(3), summarises, answers])
    noted = [event.metadata["memory_provider_errors"][0] for event in outcome.events if "memory_compact" in event.type]
    assert [(error["stage"], error["error_type"]) for error in noted] == [
        ("before_compact", "TypeError"), ("after_compact", "OSError"),
    ]  # fmt: skip


def test_what_one_agents_provider_counted_is_not_used_for_the_next_agent(tmp_path: Path) -> None:
    writer = Agent(name="writer", instructions="Write.", no_tool_policy=NoToolPolicy.FINISH)
    triage = Agent(name="triage", instructions="Route.", handoffs=[writer])
    moves = ToolCall("call_1", "transfer_to_writer", json.dumps({"input": "write " * 200}))
    counted = ModelResponse("", (moves,), finish_reason="tool_calls", usage=UsageReport({"prompt_tokens": 100_000}))
    config = RunConfig(metadata=SMALL, tool_registry_factory=ToolRegistry)
    runner = Runner(model_provider=ScriptedProvider([lambda _: counted, "done"]), workspace=tmp_path)
    result = runner.run_sync(triage, "Go.", run_config=config)
    assert result.final_output == "done"
    assert not [event for event in result.events if event.type == "memory_compact_started"]
