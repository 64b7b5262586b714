"""memory_local.json: counting, clearing, cutting, summarising and extracting, as pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import vocabulary
from tests.contract.aside import Cases
from tests.contract.fixtures import load
from vv_agent.memory import MemoryConfig, MemoryManager, SessionMemory, tokens
from vv_agent.memory.summary import excerpt, local, originals, parsed, rendered
from vv_agent.messages import Message, ToolCall

DATA = load("memory_local.json")
COUNTS = [f"token_counts/{n}" for n in range(len(DATA["token_counts"]))] + ["message_tokens"]
ESTIMATED = {"token_counts/0", "token_counts/2"}
"""Counts that the estimate gives too."""
CASES = Cases(
    "memory_local.json",
    differs={}
    if vocabulary.HERE
    else dict.fromkeys(sorted({*COUNTS} - ESTIMATED), "exact counts need the extra `tokens` and its vocabulary file"),
)


@pytest.fixture
def with_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The vocabulary's file where `tiktoken` looks for it, if somebody here has it."""
    if vocabulary.HERE:
        vocabulary.put("o200k_base", tmp_path)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    tokens.encoder.cache_clear()
    yield
    tokens.encoder.cache_clear()


def wire(message: dict[str, Any]) -> Message:
    calls = tuple(ToolCall(c["id"], c["name"], json.dumps(c["arguments"])) for c in message.get("tool_calls", ()))
    return Message(message["role"], message["content"], tool_call_id=message.get("tool_call_id"), tool_calls=calls)


def test_tokens_are_counted_as_the_models_do(with_vocabulary: None) -> None:
    for name, case in zip(COUNTS, [*DATA["token_counts"], DATA["message_tokens"]], strict=True):
        with CASES.run(name):
            if "messages" in case:
                count = tokens.count_messages([wire(message) for message in case["messages"]], case["model"])
            else:
                text = case.get("text", case.get("text_unit", "") * case.get("repeat", 1))
                count = tokens.count_tokens(text)
            assert count == case["tokens"]


@pytest.mark.parametrize("case", DATA["microcompact"]["cases"], ids=lambda case: str(case["repeat"]))
def test_a_result_is_cleared_when_it_is_longer_than_the_least(case: dict[str, Any]) -> None:
    with CASES.run(f"microcompact/{case['repeat']}"):
        numbers, text = DATA["microcompact"], DATA["microcompact"]["content_unit"] * case["repeat"]
        config = MemoryConfig(
            microcompact_min_result_length=numbers["minimum_chars"],
            microcompact_keep_recent_cycles=numbers["keep_recent_cycles"],
        )
        history = [
            Message("assistant", "", tool_calls=(ToolCall("old", "read_file"),)), Message("tool", text, tool_call_id="old"),
            Message("assistant", "", tool_calls=(ToolCall("new", "read_file"),)), Message("tool", text, tool_call_id="new"),
        ]  # fmt: skip
        done, changed = MemoryManager(config).microcompact_messages(history, cycle_index=3)
        assert changed is case["cleared"]
        assert done[3] == history[3]
        if case["cleared"]:
            assert done[1].content == "[Old tool result content cleared by microcompact]"
            assert done[1].metadata == {"microcompacted": True, "microcompact_original_chars": case["original_chars"]}


@pytest.mark.parametrize("case", DATA["session_prompt_truncation"]["cases"], ids=lambda case: str(case["repeat"]))
def test_long_texts_are_cut_for_a_prompt(case: dict[str, Any]) -> None:
    with CASES.run(f"session_prompt_truncation/{case['repeat']}"):
        numbers = DATA["session_prompt_truncation"]
        unit = numbers["content_unit"]
        text = rendered(Message("user", unit * case["repeat"])).removeprefix("[user] ")
        assert (numbers["notice"] in text) is case["truncated"]
        assert (len(text), text.count(unit)) == (case["content_chars"], case["unit_chars"])
        if case["truncated"]:
            head, tail = text.split(numbers["notice"])
            assert (len(head), len(tail)) == (numbers["head_chars"], numbers["tail_chars"])


def test_a_summary_is_made_without_a_model() -> None:
    with CASES.run("summary"):
        case = DATA["summary"]
        assert local([wire(message) for message in case["messages"]], case["event_limit"]) == case["expected"]


def test_the_users_own_words_survive_a_second_summary() -> None:
    with CASES.run("recompression_originals"):
        case = DATA["recompression_originals"]
        assert originals([wire(message) for message in case["messages"]]) == case["expected"]


def test_an_excerpt_counts_code_points() -> None:
    with CASES.run("unicode_excerpt"):
        case = DATA["unicode_excerpt"]
        short = excerpt(case["content_unit"] * case["repeat"], case["limit_chars"])
        assert short == case["content_unit"] * case["expected_unit_chars"] + case["suffix"]


def test_facts_are_read_from_the_first_array_of_an_answer() -> None:
    with CASES.run("session_extraction"):
        case = DATA["session_extraction"]
        session = SessionMemory(ask=lambda messages: case["raw"])
        found = session.extract([Message("user", "Go.")], current_cycle=case["cycle"], current_tokens=1)
        assert [vars(entry) for entry in found] == case["expected"]


def test_a_summary_is_read_from_the_first_object_of_an_answer() -> None:
    with CASES.run("summary_parse"):
        assert parsed(DATA["summary_parse"]["raw"]) == DATA["summary_parse"]["expected"]
