"""Chunks that no scenario of the fake server sends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fake_openai import chunk, text, tool
from vv_agent.errors import LlmError
from vv_agent.llm.base import Part, TextDelta, ToolCallDelta, UsageReport
from vv_agent.llm.chunks import ChunkReader


def read(*chunks: Any) -> list[Part]:
    reader = ChunkReader("here")
    parts = [part for item in chunks for part in reader.feed(item)]
    return [*parts, *reader.end()]


def deltas(*values: dict[str, Any]) -> list[Part]:
    return read(*map(chunk, values), chunk({}, "stop"))[:-1]


def test_usage_may_stand_in_the_last_choice() -> None:
    last = chunk({}, "stop")
    last["choices"][0]["usage"] = {"prompt_tokens": 1}
    assert read(chunk(text("x")), last)[1] == UsageReport({"prompt_tokens": 1})


def test_the_last_usage_counts() -> None:
    first, last = chunk(text("x")), {"id": "c", "choices": [], "usage": {"prompt_tokens": 2}}
    first["usage"] = {"prompt_tokens": 1}
    assert read(first, chunk({}, "stop"), last)[1] == UsageReport({"prompt_tokens": 2})


def test_text_may_come_as_blocks_or_as_a_refusal() -> None:
    assert deltas({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}) == [TextDelta("ab")]
    assert deltas({"content": None, "refusal": "No."}) == [TextDelta("No.")]


def test_repeated_ids_and_names_do_not_start_a_new_call() -> None:
    parts = deltas(tool(0, "a", "add", "{"), tool(0, "a", "add", "}"))
    assert parts == [ToolCallDelta(0, "a", "add", "{"), ToolCallDelta(0, "a", "add", "}")]


def test_pieces_without_index_that_name_their_call_may_interleave() -> None:
    parts = deltas(tool(None, "a", "x", "1"), tool(None, "b", "y", "2"), tool(None, "a", None, "3"))
    assert [(part.index, part.arguments) for part in parts if isinstance(part, ToolCallDelta)] == [
        (0, "1"),
        (1, "2"),
        (0, "3"),
    ]


def test_odd_fields_of_a_call_do_no_harm() -> None:
    piece = {"index": [0], "id": 7, "function": {"name": None, "arguments": {"a": 1}}}
    assert deltas({"tool_calls": [piece]}) == [ToolCallDelta(0, "call_1_1", None, '{"a": 1}')]


def test_extra_content_of_a_call_is_kept() -> None:
    signed = tool(0, "a", "add", "{}")
    signed["tool_calls"][0]["extra_content"] = {"google": {}}
    assert deltas(signed) == [ToolCallDelta(0, "a", "add", "{}", {"google": {}})]


@pytest.mark.parametrize(
    "foreign",
    [
        {},
        [],
        "x",
        {"choices": [{"delta": "x"}]},
        {"choices": [{"delta": {"tool_calls": ["x"]}}]},
        {"choices": [{"delta": {"tool_calls": 5}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": "x"}]}}]},
        {"id": "c", "choices": "x"},
        {"id": "c", "choices": ["x"]},
        {"object": "list", "data": []},
    ],
)
def test_a_foreign_form_is_a_protocol_failure(foreign: Any) -> None:
    with pytest.raises(LlmError) as caught:
        read(foreign)
    assert caught.value.kind == "protocol"
