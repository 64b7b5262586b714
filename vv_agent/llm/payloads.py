"""Live payloads of clients that stream plain objects: read into parts at the border.

A payload says what it is in `event`; identity it may bring (a run, a cycle, an agent) is not looked at, and one that is
unknown, broken or looks like a lifecycle event is dropped: live text never decides anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vv_agent._json import MAX_WIRE
from vv_agent.llm.base import ReasoningDelta, TextDelta, ToolCallPreview

Live = TextDelta | ReasoningDelta | ToolCallPreview


def part_of(payload: Mapping[str, Any]) -> Live | None:
    """The part a payload stands for, or None for one that is dropped."""
    try:
        match payload.get("event"):
            case "assistant_delta":
                text = _text(payload, "content_delta") if "content_delta" in payload else _text(payload, "delta")
                return TextDelta(text, _count(payload, "content_chars"), _count(payload, "estimated_tokens"))
            case "reasoning_delta":
                text = _text(payload, "reasoning_delta")
                return ReasoningDelta(text, _count(payload, "reasoning_chars"), _count(payload, "estimated_tokens"))
            case "tool_call_started" | "tool_call_progress" as event:
                return ToolCallPreview(
                    id=_name(payload, "tool_call_id"),
                    name=_name(payload, "function_name"),
                    first=event == "tool_call_started",
                    index=_count(payload, "tool_call_index"),
                    arguments_chars=_count(payload, "arguments_chars"),
                    estimated_tokens=_count(payload, "estimated_tokens"),
                )
    except ValueError:
        return None
    return None


def _text(payload: Mapping[str, Any], name: str) -> str:
    value = payload.get(name)
    if not isinstance(value, str):
        raise ValueError(name)
    return value


def _name(payload: Mapping[str, Any], name: str) -> str:
    value = _text(payload, name)
    if not value.strip():
        raise ValueError(name)
    return value


def _count(payload: Mapping[str, Any], name: str) -> int | None:
    value = payload.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_WIRE):
        raise ValueError(name)
    return value
