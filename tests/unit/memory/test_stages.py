"""The parts of memory one by one: counting, clearing, dropping, facts, and what the log takes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vv_agent.errors import ConfigError
from vv_agent.memory import MemoryConfig, MemoryManager, SessionMemory, SessionMemoryConfig
from vv_agent.memory.stages import dropped, without_images
from vv_agent.memory.summary import MAX_REQUESTS_CHARS, answered, bounded, local, made, originals, prompt
from vv_agent.memory.tokens import estimate, estimate_message
from vv_agent.messages import Message, ToolCall
from vv_agent.runtime.transcript import Transcript, log_entry
from vv_agent.workspace import LocalWorkspaceBackend, MemoryWorkspaceBackend


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("a", 1), ("x" * 400, 100), ("山" * 100, 70), ("山" * 100 + "x" * 100, 95), ("😀" * 9, 9)],
)
def test_the_estimate_knows_wide_characters(text: str, tokens: int) -> None:
    assert estimate(text) == tokens


def turn(n: int, result: str = "fine") -> list[Message]:
    return [
        Message("assistant", f"step {n}", tool_calls=(ToolCall(f"c{n}", "look"),)),
        Message("tool", result, tool_call_id=f"c{n}"),
    ]


def history(count: int) -> list[Message]:
    return [Message("system", "Work."), Message("user", "The task."), *(m for n in range(count) for m in turn(n))]


@pytest.mark.parametrize("ratio", [0.2, 0.4, 0.6, 0.95, 5.0])
def test_an_emergency_keeps_the_task_and_never_begins_with_a_result(ratio: float) -> None:
    left = dropped(history(20), ratio, 4)
    assert [message.role for message in left[:2]] == ["system", "user"]
    assert left[2].role == "assistant"
    assert left[-1] == history(20)[-1]
    assert len(left) >= 2 + 4 - 1
    assert len(left) < 42


def test_an_emergency_leaves_few_messages_alone() -> None:
    assert dropped(history(2), 0.9, 10) == history(2)


def test_an_image_stays_until_the_model_has_answered_to_it() -> None:
    shown = [Message("user", "Look.", image_url="data:x"), *turn(1), Message("user", "And this.", image_url="data:y")]
    done = without_images(shown)
    assert done[0] == Message("user", "Look.\n[image payload compacted]")
    assert done[-1] == shown[-1]
    assert estimate_message(done[0]) < estimate_message(shown[0]) - 700


def test_a_models_answer_is_freed_of_what_is_around_it() -> None:
    raw = '<analysis>hm {1}</analysis><summary>```json\n{"key_facts": ["a"]}\n```</summary>'
    assert answered(raw) == '{"key_facts": ["a"]}'
    read = made(raw, [Message("user", "Do it.")], 10)
    assert read == {"summary_version": "2.0", "original_user_messages": ["Do it."], "key_facts": ["a"]}
    assert made("All is well.", [], 10)["current_work_state"] == "All is well."
    assert made(" <analysis>only</analysis> ", [], 10) == local([], 10)


@pytest.mark.parametrize(
    "answer",
    ['{"key_facts": ["new"], "progress": [{"cut": "o', '```json\n{"files": [{"path": "a"}', "I cannot help with that.", "[]", "{}"],
)  # fmt: skip
def test_an_answer_that_is_no_summary_leaves_what_an_earlier_one_held(answer: str) -> None:
    memory = '<Compressed Agent Memory>\n{"key_facts": ["the code is 7"]}\n</Compressed Agent Memory>'
    told = [Message("system", "s"), Message("user", memory), *turn(1)]
    assert made(answer, told, 10)["key_facts"] == ["the code is 7"]
    assert "cut" not in made(answer, told, 10)


def test_what_the_model_wrote_down_and_earlier_facts_are_in_every_summary() -> None:
    note = ToolCall("n", "compress_memory", '{"core_information": "the gate is blue"}')
    memory = '<Compressed Agent Memory>\n{"key_facts": ["the code is 7"]}\n</Compressed Agent Memory>'
    told = [Message("system", "s"), Message("user", memory), Message("assistant", "", tool_calls=(note,))]
    kept = made('{"key_facts": ["new"]}', told, 10)["key_facts"]
    assert kept == ["the code is 7", "new", "the gate is blue"]


@pytest.mark.parametrize("room", [500, 2_000, 20_000])
def test_a_summary_is_never_longer_than_its_part_of_the_room(room: int) -> None:
    said = {
        "progress": [f"{n} " + "x" * 3_000 for n in range(200)],
        "original_user_messages": ["Do it.", *["y" * 4_000] * 9],
    }
    short = bounded(said, room)
    assert estimate(str(short)) <= room * 1.1
    assert short["progress"][-1].startswith("199 ")
    assert short["original_user_messages"][0] == "Do it."


def test_many_words_of_the_user_are_kept_from_the_newest_on_and_the_first_whole() -> None:
    said = [Message("user", "T" * 9_000), *(Message("user", f"{n} " + "w" * 1_000) for n in range(100))]
    kept = originals(said)
    assert kept[0] == "T" * 9_000
    assert kept[-1].startswith("99 ")
    assert sum(map(len, kept[1:])) <= MAX_REQUESTS_CHARS


def test_a_request_for_a_summary_fits_its_model() -> None:
    long = [Message("user", "山水" * 5_000), *(m for n in range(300) for m in turn(n, "word " * 500))]
    for room in (200, 2_000, 20_000):
        system, text = prompt(long, "zh-CN", room)
        assert "JSON" in system.content
        assert estimate(text.content) <= room * 1.1 + 10


def test_what_a_summary_by_rules_held_is_in_the_next_one() -> None:
    note = ToolCall("n", "compress_memory", '{"core_information": "the code is 7"}')
    first = [Message("system", "s"), Message("user", "Go."), Message("assistant", "", tool_calls=(note,))]
    manager = MemoryManager(MemoryConfig(compact_threshold=1))
    once = list(manager.run([*first, *turn(1)], 10**6, force=True).messages)
    twice = list(manager.run([*once, *turn(2)], 10**6, force=True).messages)
    assert "the code is 7" in twice[1].content
    assert local(twice, 10)["key_facts"] == ["the code is 7"]
    assert originals(twice) == ["Go."]


def test_files_of_the_work_are_put_back_after_a_summary_if_they_are_inside(tmp_path: Path) -> None:
    space = MemoryWorkspaceBackend()
    space.write_text("a.py", "print(1)")
    calls = [ToolCall(f"c{n}", "edit_file", f'{{"path": "{path}"}}') for n, path in enumerate(("a.py", "../b.py"))]
    told = [Message("system", "s"), Message("user", "Go."), Message("assistant", "", tool_calls=tuple(calls)), *turn(7)]
    said = [Message("assistant", "word " * 2_000), Message("user", "Go on.")]
    manager = MemoryManager(MemoryConfig(compact_threshold=500), workspace=space)
    done = manager.run([*told, *said, *turn(8)], 10**6)
    assert "<file path=" not in manager.run([*told, *said, *turn(8)], 10**6, force=True).messages[1].content
    assert '<file path="a.py">\nprint(1)\n</file>' in done.messages[1].content
    assert '<file path="../b.py">' not in done.messages[1].content


@pytest.mark.parametrize(
    "metadata", [{"compact_threshold": "many"}, {"microcompact_trigger_ratio": 2}, {"include_memory_warning": "yes"}]
)
def test_a_number_of_the_wrong_kind_is_named(metadata: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(metadata))):
        MemoryConfig.from_metadata(metadata)


def test_percentages_are_brought_within_one_to_a_hundred() -> None:
    assert MemoryConfig.from_metadata({"memory_threshold_percentage": "0"}).warning_threshold_percentage == 1
    assert MemoryConfig.from_metadata({"warning_threshold_percentage": 900}).warning_threshold_percentage == 100


def test_facts_are_asked_for_when_there_is_enough_and_again_when_it_has_grown() -> None:
    session = SessionMemory(SessionMemoryConfig(min_tokens=100, growth_ratio=0.5), ask=lambda messages: "[]")
    assert not session.should_extract(99, 5)
    assert not session.should_extract(100, 4)
    assert session.should_extract(100, 5)
    session.extract([Message("user", "x")], current_cycle=1, current_tokens=100)
    assert not session.should_extract(149, 9)
    assert session.should_extract(150, 0)
    session.on_compaction(current_tokens=40)
    assert session.should_extract(90, 0)


def test_facts_are_merged_pruned_and_found_again_in_the_workspace(tmp_path: Path) -> None:
    space = LocalWorkspaceBackend(tmp_path)
    config = SessionMemoryConfig(max_tokens=30)
    session = SessionMemory(config, ask=lambda messages: "[]", workspace=space, scope="../odd scope")
    session.add([{"content": "Same Fact", "importance": 3}, {"content": "same fact", "importance": 9}, 7, {"x": 1}], 1)
    assert [(e.content, e.importance) for e in session.state.entries] == [("same fact", 9)]
    session.add([{"content": "y" * 60, "importance": 2}, {"content": "z" * 60, "importance": 4}], 2)
    assert [entry.content[0] for entry in session.state.entries] == ["s", "z"]
    session.save()
    assert session.path.startswith(".memory/session/")
    assert ".." not in session.path
    other = SessionMemory(config, workspace=space, scope="../odd scope")
    other.load()
    assert other.state.entries == session.state.entries
    space.write_text(session.path, "{ damaged")
    SessionMemory(config, workspace=space, scope="../odd scope").load()


def test_the_log_takes_what_changed_until_a_reset_is_worth_it() -> None:
    transcript = Transcript()
    words = [f"word{n}" for n in range(2_000)]
    for n in range(40):
        message = Message("user", " ".join(words[n:] + words[:n]))
        transcript.extend(n + 1, log_entry([["m", n, message.to_wire()]]))
    one = [*transcript.messages[:-1], Message("user", "short")]
    (item,) = transcript.rewritten(40, 0, one)
    assert (item[0], list(item[3])) == ("k", [39])
    small = [Message("user", f"{n}") for n in range(40)]
    (reset,) = transcript.rewritten(40, 0, small)
    assert reset[0] == "r"
    (more,) = transcript.rewritten(40, 0, [*one, Message("user", "new")])
    assert (more[0], list(more[3]), [wire["content"] for wire in more[4]]) == ("k", [39], ["new"])
    (fewer,) = transcript.rewritten(40, 0, one[:5])
    assert fewer[0] == "r"
    transcript.add(reset)
    assert (transcript.messages, len(transcript.history)) == (small, 40)
    assert transcript.estimated == sum(map(estimate_message, small))
