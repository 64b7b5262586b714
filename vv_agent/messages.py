"""Messages of a conversation, in the one closed wire form that records, sessions and requests share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Role = Literal["system", "user", "assistant", "tool"]
_ROLES = frozenset(get_args(Role))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the model asked for. `arguments` stays the JSON text the model wrote (it may not even parse)."""

    id: str
    name: str
    arguments: str = "{}"
    extra_content: Mapping[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }
        if self.extra_content is not None:
            wire["extra_content"] = dict(self.extra_content)
        return wire

    @classmethod
    def from_wire(cls, wire: Any) -> ToolCall:
        """Read the closed form; `ValueError` names the first field that is wrong."""
        _closed(wire, "tool call", {"id", "type", "function"}, {"extra_content"})
        function = wire["function"]
        _closed(function, "tool call function", {"name", "arguments"}, set())
        if wire["type"] != "function":
            raise ValueError(f"tool call type is {wire['type']!r}; it must be 'function'")
        for owner, name in ((wire, "id"), (function, "name")):
            if not isinstance(owner[name], str) or not owner[name].strip():
                raise ValueError(f"tool call {name} must be a non-blank string")
        if not isinstance(function["arguments"], str):
            raise ValueError("tool call arguments must be a JSON string")
        extra = wire.get("extra_content")
        if "extra_content" in wire and not isinstance(extra, dict):
            raise ValueError("tool call extra_content must be an object")
        return cls(wire["id"], function["name"], function["arguments"], extra)

    def parsed(self) -> dict[str, Any]:
        """The arguments as an object; `ValueError` if the text is not one (empty text and null mean {})."""
        try:
            value = json.loads(self.arguments) if self.arguments.strip() else {}
        except RecursionError:
            raise ValueError("tool call arguments are nested too deeply") from None
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise ValueError("tool call arguments must be a JSON object")
        return value


@dataclass(frozen=True, slots=True)
class Message:
    """One message; optional fields are absent on the wire when unset, never null."""

    role: Role
    content: str
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning_content: str | None = None
    image_url: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said: no text, no call, no reasoning. Reasoning alone is real history."""
        return not (self.content or self.tool_calls or (self.reasoning_content or "").strip())

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.name is not None:
            wire["name"] = self.name
        if self.tool_call_id is not None:
            wire["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            wire["tool_calls"] = [call.to_wire() for call in self.tool_calls]
        if self.reasoning_content is not None:
            wire["reasoning_content"] = self.reasoning_content
        if self.image_url is not None:
            wire["image_url"] = self.image_url
        if self.metadata:
            wire["metadata"] = dict(self.metadata)
        return wire

    @classmethod
    def from_wire(cls, wire: Any) -> Message:
        """Read the closed form; `ValueError` names the first field that is wrong."""
        _closed(wire, "message", {"role", "content"}, _OPTIONAL)
        if wire["role"] not in _ROLES:
            raise ValueError(f"message role {wire['role']!r} is not one of {', '.join(sorted(_ROLES))}")
        for name in ("content", "name", "tool_call_id", "reasoning_content", "image_url"):
            if name in wire and not isinstance(wire[name], str):
                raise ValueError(f"message {name} must be a string")
        calls = wire.get("tool_calls", [])
        if not isinstance(calls, list):
            raise ValueError("message tool_calls must be a list")
        metadata = wire.get("metadata", {})
        if not isinstance(metadata, dict):
            raise ValueError("message metadata must be an object")
        return cls(
            role=wire["role"],
            content=wire["content"],
            name=wire.get("name"),
            tool_call_id=wire.get("tool_call_id"),
            tool_calls=tuple(ToolCall.from_wire(call) for call in calls),
            reasoning_content=wire.get("reasoning_content"),
            image_url=wire.get("image_url"),
            metadata=metadata,
        )


_OPTIONAL = {"name", "tool_call_id", "tool_calls", "reasoning_content", "image_url", "metadata"}


def _closed(wire: Any, what: str, required: set[str], optional: set[str]) -> None:
    if not isinstance(wire, dict):
        raise ValueError(f"{what} must be an object, not {type(wire).__name__}")
    if missing := required - wire.keys():
        raise ValueError(f"{what} lacks {', '.join(sorted(missing))}")
    if unknown := wire.keys() - required - optional:
        raise ValueError(f"{what} has unknown fields {', '.join(sorted(unknown))}")
