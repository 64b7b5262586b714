"""Our requests in the form of chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vv_agent.llm.base import ModelRequest
from vv_agent.llm.settings import ModelSettings
from vv_agent.messages import Message

_SENT_AS_THEY_ARE = ("temperature", "top_p", "max_tokens", "reasoning", "response_format")


def provider_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The history in provider form (new objects; the caller's messages stay as they are)."""
    return [provider_message(message) for message in messages]


def provider_message(message: Message) -> dict[str, Any]:
    """One message: empty optional fields dropped, metadata never sent.

    A user's image becomes text and image_url blocks. An assistant with tool calls and no text has content null;
    one with nothing but reasoning has an explicit empty text.
    """
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "user" and message.image_url:
        text = [{"type": "text", "text": message.content}] if message.content else []
        wire["content"] = [*text, {"type": "image_url", "image_url": {"url": message.image_url}}]
    if message.name:
        wire["name"] = message.name
    if message.role == "tool" and message.tool_call_id:
        wire["tool_call_id"] = message.tool_call_id
    if message.role == "assistant":
        if message.tool_calls:
            wire["tool_calls"] = [call.to_wire() for call in message.tool_calls]
            wire["content"] = message.content or None
        if message.reasoning_content:
            wire["reasoning_content"] = message.reasoning_content
    return wire


def provider_body(request: ModelRequest, model_id: str) -> dict[str, Any]:
    """The body of a streamed call. `extra_args`, then `extra_body`, go over everything else at the top level."""
    settings = request.settings or ModelSettings()
    wire = settings.to_wire()
    body: dict[str, Any] = {
        "model": model_id,
        "stream": True,
        "stream_options": {"include_usage": True},
        **{name: wire[name] for name in _SENT_AS_THEY_ARE if name in wire},
    }
    if request.tools:  # providers refuse the two options without tools
        body["tools"] = [dict(tool) for tool in request.tools]
        body.update({name: wire[name] for name in ("tool_choice", "parallel_tool_calls") if name in wire})
    body["messages"] = provider_messages(request.messages)  # last: what comes before is the same in every request
    return {**body, **wire.get("extra_args", {}), **wire.get("extra_body", {})}


def silence_limit(request: ModelRequest, default: float) -> float:
    """Seconds the provider may be silent: the call's own setting, else `default`."""
    own = request.settings.timeout_seconds if request.settings else None
    return default if own is None else own


def extra_headers(request: ModelRequest) -> Mapping[str, str]:
    """Headers of the settings, and the idempotency key if the request has one."""
    headers = dict((request.settings.extra_headers if request.settings else None) or {})
    if request.idempotency_key:
        headers["Idempotency-Key"] = request.idempotency_key
    return headers
