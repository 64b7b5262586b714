"""What a tool declares about itself: its side effect, whether it can be repeated, and labels for policies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from vv_agent._json import utf16_order
from vv_agent.errors import ConfigError

MAX_LABELS = 32
"""Most entries of one list of labels, after duplicates are dropped."""

MAX_LABEL_LENGTH = 128
"""Longest label, in Unicode code points."""

_WHITESPACE = "\t\n\r "


class ToolSideEffect(StrEnum):
    """The coarse kind of effect a tool has outside the run. The values have no order."""

    UNKNOWN = "unknown"
    NONE = "none"
    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"
    NETWORK = "network"
    EXTERNAL = "external"


class ToolIdempotency(StrEnum):
    """Whether a call that is made again with the same idempotency key has its effect only once."""

    UNKNOWN = "unknown"
    SUPPORTED = "supported"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True)
class ToolMetadata:
    """A tool's declaration, in canonical form as soon as it exists; the model never sees it.

    Labels are opaque: trimmed, without duplicates, sorted by UTF-16 code units. `terminal` says that the tool may
    finish or pause the run; it ends nothing by itself. Wrong values raise `ConfigError` `tool_metadata_invalid`.
    """

    side_effect: ToolSideEffect = ToolSideEffect.UNKNOWN
    idempotency: ToolIdempotency = ToolIdempotency.UNKNOWN
    terminal: bool = False
    capability_tags: tuple[str, ...] = ()
    cost_dimensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, kind in (("side_effect", ToolSideEffect), ("idempotency", ToolIdempotency)):
            object.__setattr__(self, name, _member(kind, getattr(self, name), name))
        if not isinstance(self.terminal, bool):
            raise _invalid("terminal must be true or false")
        for name in ("capability_tags", "cost_dimensions"):
            object.__setattr__(self, name, normalize_labels(getattr(self, name), name))

    def to_wire(self) -> dict[str, Any]:
        """All five fields."""
        return {
            "side_effect": self.side_effect.value,
            "idempotency": self.idempotency.value,
            "terminal": self.terminal,
            "capability_tags": list(self.capability_tags),
            "cost_dimensions": list(self.cost_dimensions),
        }

    @classmethod
    def from_wire(cls, wire: Any) -> ToolMetadata:
        """Read the closed object; absent fields have their defaults, lists are normalised."""
        if not isinstance(wire, dict):
            raise _invalid(f"it must be an object, not {type(wire).__name__}")
        if unknown := wire.keys() - {field.name for field in fields(cls)}:
            raise _invalid(f"unknown fields {', '.join(sorted(map(str, unknown)))}")
        return cls(**wire)


def normalize_labels(labels: Iterable[str], what: str) -> tuple[str, ...]:
    """Trim, drop duplicates, sort; `what` names the list in errors. Tool policies use the same form.

    Only tab, line feed, carriage return and space are trimmed, and the order is that of UTF-16 code units: every
    language has these two, so every implementation comes to the same bytes.
    """
    if isinstance(labels, str) or not isinstance(labels, list | tuple | set | frozenset):
        raise _invalid(f"{what} must be a list of strings")
    kept: set[str] = set()
    for label in labels:
        if not isinstance(label, str):
            raise _invalid(f"{what} must hold strings, not {type(label).__name__}")
        trimmed = label.strip(_WHITESPACE)
        if not trimmed:
            raise _invalid(f"{what} holds a blank label")
        if len(trimmed) > MAX_LABEL_LENGTH:
            raise _invalid(f"{what} holds a label of {len(trimmed)} characters; at most {MAX_LABEL_LENGTH} are allowed")
        kept.add(trimmed)
    if len(kept) > MAX_LABELS:
        raise _invalid(f"{what} holds {len(kept)} labels; at most {MAX_LABELS} are allowed")
    return tuple(sorted(kept, key=utf16_order))


def _member(kind: type[StrEnum], value: Any, name: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        raise _invalid(f"{name} {value!r} is not one of {', '.join(kind)}") from None


def _invalid(problem: str) -> ConfigError:
    return ConfigError("tool_metadata_invalid", f"tool metadata: {problem}")
