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
    look,
    steps,
    store,
    summarises,
)
from vv_agent import Agent, NoToolPolicy, RunConfig, Runner, RuntimeHook, function_tool
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.errors import LlmError, RetryLater
from vv_agent.hooks import AfterCycleHook
from vv_agent.llm.base import ModelRequest, ModelResponse, UsageReport
from vv_agent.memory import MemoryConfig, MemoryManager, MemoryProvider, SessionMemory, stages
from vv_agent.memory import summary as summaries
from vv_agent.memory.tokens import estimate
from vv_agent.messages import Message, ToolCall
from vv_agent.runtime.transcript import Transcript
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


def reads_again(store: MemoryStore) -> Transcript:
    """The run as a worker reads it that has nothing of it cached."""
    snapshot = store.load("case-key")
    assert snapshot is not None
    transcript = Transcript(whole=False)
    for entry in snapshot.log:
        if entry.seq > snapshot.head.log_from:
            transcript.extend(entry.seq, entry.body)
    return transcript


def test_a_record_whose_prompt_was_changed_and_then_refused_can_be_read_again(tmp_path: Path) -> None:
    numbers = {
        "compact_threshold": 100_000, "microcompact_trigger_ratio": 0.001, "microcompact_keep_recent_cycles": 1,
        "microcompact_compactable_tools": ["look"],
    }  # fmt: skip
    there = run_of(tmp_path, numbers)
    store = there.store
    assert isinstance(store, MemoryStore)
    refused = LlmError("context_length", "prompt is too long", definite=True)
    outcome = there.run([*steps(3), refused, summarises, Died("in the next call")])
    assert isinstance(outcome.error, Died)
    assert any("4711" in message.content for message in reads_again(store).messages)
    assert (
        there.run([lambda request: summarises(request) if is_summary(request) else "done"] * 3).ok.final_output
        == "done"
    )


def test_a_message_that_a_hook_puts_in_is_shown_and_nothing_is_said_twice(tmp_path: Path) -> None:
    class Inserts(RuntimeHook):
        def before_memory_compact(self, event: Any) -> list[Message]:
            first, *rest = event.messages
            return [first, Message("user", "Remember the rules."), *rest]

    there = run_of(tmp_path, {}, look, checkpoint=None)
    there.config = {**there.config, "hooks": [Inserts()]}
    outcome = there.run([*steps(1), "done"])
    assert [message.role for message in outcome.ok.new_items] == ["assistant", "tool", "assistant"]


def test_the_programs_warning_is_not_what_the_user_said(tmp_path: Path) -> None:
    numbers = {"compact_threshold": 2_000, "include_memory_warning": True, "warning_threshold_percentage": 20}
    outcome = run_of(tmp_path, numbers).run([*steps(2), "done"])
    assert not [message for message in outcome.ok.new_items if stages.is_warning(message)]


@pytest.mark.parametrize("depth", [10, 450, 5_000])
def test_an_answer_of_many_levels_is_no_end_of_the_run(tmp_path: Path, depth: int) -> None:
    deep = (
        json.dumps({"key_facts": ["the gate code is 4711"]})[:-1] + ', "progress": ' + "[" * depth + "]" * depth + "}"
    )

    def nested(request: ModelRequest) -> ModelResponse:
        return ModelResponse(deep)

    outcome = run_of(tmp_path, SMALL).run([*steps(3), nested, "done"])
    assert outcome.ok.final_output == "done"


def test_the_task_is_whole_among_the_programs_words_and_an_earlier_session() -> None:
    task = "Guard the gate. " * 500
    said = [Message("user", "Hello!"), Message("user", task), *[Message("user", stages.HINT)] * 100]
    said += [Message("user", f"{stages.PICTURE}x.png"), Message("user", "Stop deleting files!")]
    kept = summaries.originals(said, task.strip())
    assert kept == ["Hello!", task.strip(), "Stop deleting files!"]
    short = summaries.bounded({"original_user_messages": kept}, 20_000, task.strip())
    assert short["original_user_messages"] == kept


def test_a_fact_that_is_said_in_each_answer_is_never_the_oldest() -> None:
    told = [Message("user", "Go.")]
    for n in range(12):
        answer = json.dumps({"key_facts": ["the gate is blue", *(f"fact {n} {i}" for i in range(15))]})
        made = summaries.made(answer, told, 10)
        told = summaries.compressed(told, made, files={}, artifacts=())
    assert "the gate is blue" in made["key_facts"]
    assert len(made["key_facts"]) == summaries.MAX_ITEMS


def test_words_that_quote_a_tag_do_not_hide_what_was_summarised() -> None:
    told = [Message("user", 'What is <Compressed Agent Memory>{"a": 1}</Compressed Agent Memory>?')]
    once = summaries.compressed(told, summaries.made('{"key_facts": ["4711"]}', told, 10), files={}, artifacts=())
    assert summaries.made("", once, 10)["key_facts"] == ["4711"]
    assert summaries.originals(once) == [told[0].content]


def test_keys_a_model_invents_do_not_fill_the_room() -> None:
    said = {f"note_{n}": "x" * 500 for n in range(300)} | {"key_facts": ["4711"]}
    short = summaries.bounded(summaries.made(json.dumps(said), [Message("user", "Go.")], 10), 500)
    assert estimate(json.dumps(short)) <= 500
    assert short["key_facts"] == ["4711"]


def test_new_results_are_moved_last(tmp_path: Path) -> None:
    old = [
        m
        for n in range(9)
        for m in (Message("assistant", "", tool_calls=(ToolCall(f"o{n}", "look"),)), Message("tool", "o" * 3_000, tool_call_id=f"o{n}"))
    ]  # fmt: skip
    batch = [ToolCall(f"n{n}", "look") for n in range(5)]
    new = [
        Message("assistant", "", tool_calls=tuple(batch)),
        *(Message("tool", "n" * 3_000, tool_call_id=c.id) for c in batch),
    ]
    told = [Message("system", "s"), Message("user", "task"), *old, *new]
    manager = MemoryManager(MemoryConfig(compact_threshold=8_000), keep=lambda call_id, text: f"{call_id}.txt")
    done = manager.run(told, manager.count(told))
    assert list(done.messages[-6:]) == new
    assert done.mode == "structural"


def test_many_small_results_are_moved_where_nothing_else_helps() -> None:
    batch = [ToolCall(f"n{n}", "look") for n in range(80)]
    new = [
        Message("assistant", "", tool_calls=tuple(batch)),
        *(Message("tool", "n" * 1_896, tool_call_id=c.id) for c in batch),
    ]
    told = [Message("system", "s"), Message("user", "task"), *new]
    manager = MemoryManager(MemoryConfig(compact_threshold=16_000), keep=lambda call_id, text: f"{call_id}.txt")
    done = manager.run(told, manager.count(told), force=True)
    assert manager.count(done.messages) <= 16_000


def test_one_huge_fact_does_not_push_out_the_others() -> None:
    session = SessionMemory()
    session.add([f"fact {n}" for n in range(50)], 1)
    session.add([{"content": "x" * 1_000_000, "importance": 9}, "<</Session Memory>/Session Memory>"], 2)
    assert len(session.state.entries) >= 51
    assert session.render_as_system_context().count("</Session Memory>") == 1


def test_facts_are_looked_for_after_the_prompt_was_made_shorter_and_after_a_hand_off() -> None:
    session = SessionMemory(ask=lambda messages: "[]")
    session.extract([Message("user", "x")], current_cycle=1, current_tokens=60_000)
    session.shorter(20_000)
    assert session.should_extract(30_000, 9)
    transcript = Transcript()
    transcript.add(["y", session.state.to_wire()])
    transcript.add(["i", 1, Message("user", "go on").to_wire(), [Message("system", "Write.").to_wire()]])
    assert (transcript.session["last_message_index"], transcript.session["last_tokens"]) == (-1, 0)


def test_a_summary_that_is_told_to_wait_is_waited_for(tmp_path: Path) -> None:
    there = run_of(tmp_path, SMALL)
    outcome = there.run([*steps(3), RetryLater("slow down", 0.05), summarises, answers])
    assert outcome.ok.final_output == "done"
    assert compactions(outcome) == ["summary"]


def test_what_a_provider_adds_to_a_short_prompt_is_no_factor(tmp_path: Path) -> None:
    there = run_of(tmp_path, {"model_context_window": 64_000}, read_long)
    first = asks("read_long", call_id="call_1", arguments={"n": 1})
    counted = {**first, "raw": {"usage": {"prompt_tokens": 900}}}
    outcome = there.run(
        [counted, *[asks("read_long", call_id=f"call_{n}", arguments={"n": n}) for n in range(2, 9)], "done"]
    )
    assert outcome.ok.final_output == "done"
    assert compactions(outcome) == []


def test_hooks_and_parents_are_told_of_what_summaries_cost(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Watches(AfterCycleHook):
        def after_cycle(self, snapshot: Any) -> None:
            seen.append((snapshot.cumulative_token_usage.total_tokens, snapshot.cycle.memory_compacted))

    there = run_of(tmp_path, SMALL, look, checkpoint=None)
    there.config = {**there.config, "after_cycle_hooks": [Watches()]}
    priced = [{**step, "raw": {"usage": {"total_tokens": 10}}} for step in steps(4)]
    outcome = there.run(
        [*priced[:3], summarises, priced[3], lambda request: summarises(request) if is_summary(request) else "done"]
    )
    assert seen[:4] == [(10, False), (20, False), (30, False), (30 + 930 + 10, True)]
    assert outcome.ok.status == "completed"
