"""Messages in provider form."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.llm.calling import request
from vv_agent.llm.projection import provider_body, provider_message, provider_messages
from vv_agent.messages import Message, ToolCall

CALL = ToolCall("call_a", "add", "{}")


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (Message("system", "Be kind."), {"role": "system", "content": "Be kind."}),
        (Message("user", "Hi", name="ann", metadata={"k": 1}), {"role": "user", "content": "Hi", "name": "ann"}),
        (
            Message("user", "Look", image_url="data:image/png;base64,AA"),
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
                ],
            },
        ),
        (
            Message("user", "", image_url="http://x/y.png"),
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]},
        ),
        (
            Message("assistant", "", tool_calls=(CALL,)),
            {"role": "assistant", "content": None, "tool_calls": [CALL.to_wire()]},
        ),
        (
            Message("assistant", "On it", tool_calls=(CALL,), reasoning_content="why"),
            {"role": "assistant", "content": "On it", "tool_calls": [CALL.to_wire()], "reasoning_content": "why"},
        ),
        (
            Message("assistant", "", reasoning_content="private reasoning chain"),
            {"role": "assistant", "content": "", "reasoning_content": "private reasoning chain"},
        ),
        (Message("tool", "3", tool_call_id="call_a"), {"role": "tool", "content": "3", "tool_call_id": "call_a"}),
    ],
)
def test_a_message_in_provider_form(message: Message, wire: dict[str, Any]) -> None:
    assert provider_message(message) == wire


def test_signatures_of_tool_calls_go_back_to_the_provider() -> None:
    signed = ToolCall("call_a", "add", "{}", {"google": {"thought_signature": "s"}})
    (wire,) = provider_messages([Message("assistant", "", tool_calls=(signed,))])
    assert wire["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "s"}}


def test_a_request_without_settings_sends_no_options() -> None:
    assert provider_body(request(), "m").keys() == {"model", "messages", "stream", "stream_options"}
