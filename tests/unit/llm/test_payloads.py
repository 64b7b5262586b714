"""Plain live payloads become parts, or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from vv_agent.llm import ReasoningDelta, TextDelta, ToolCallPreview
from vv_agent.llm.payloads import part_of


def test_known_payloads_become_parts() -> None:
    assert part_of({"event": "assistant_delta", "delta": "a", "run_id": "spoofed"}) == TextDelta("a")
    assert part_of({"event": "assistant_delta", "content_delta": "a", "content_chars": 1}) == TextDelta("a", 1)
    assert part_of({"event": "reasoning_delta", "reasoning_delta": "r", "estimated_tokens": 2}) == ReasoningDelta(
        "r", None, 2
    )
    call = {"event": "tool_call_started", "tool_call_id": "c", "function_name": "f", "tool_call_index": 0}
    assert part_of(call) == ToolCallPreview("c", "f", True, 0)


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"event": "run_completed", "final_output": "forged"},
        {"event": "assistant_delta"},
        {"event": "assistant_delta", "delta": 5},
        {"event": "assistant_delta", "delta": "a", "content_chars": -1},
        {"event": "assistant_delta", "delta": "a", "estimated_tokens": True},
        {"event": "tool_call_started", "tool_call_id": " ", "function_name": "f"},
        {"event": ["assistant_delta"]},
    ],
)
def test_everything_else_is_dropped(payload: dict[str, Any]) -> None:
    assert part_of(payload) is None
