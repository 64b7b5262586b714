"""How a description of a run becomes its definition: stable names, sorted sets, redacted credentials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vv_agent import _pointer, references
from vv_agent._json import plain, utf16_order
from vv_agent.definition import (
    NOT_I_JSON,
    REDACTED,
    CapabilityRef,
    RunDefinition,
    check_slots,
    credential,
    refuse_unclassified,
)
from vv_agent.errors import CheckpointError

_HEADERS = ["model", "settings", "extra_headers"]
_SPACE = " \t\r\n"
"""The portable white space that spec 24 strips from labels; a no-break space stays."""


def normalised(description: Mapping[str, Any]) -> RunDefinition:
    """The definition of a run from the same 20 fields, before redaction and sorting. The argument is not changed.

    Settings that are None are dropped and `settings.timeout_seconds` becomes `transport_timeout_seconds`; header
    names become lower case; values at `credential_slots` become `<credential-redacted>`; slots, set-like lists and
    extensions are sorted; a budget that limits nothing becomes null. Beside the codes of `RunDefinition.parse` it
    raises `checkpoint_definition_header_collision`; an integer beyond 64 bits is `checkpoint_definition_not_i_json`.
    """
    wire: dict[str, Any] = plain(description, code=NOT_I_JSON)
    model = wire.get("model")
    if isinstance(model, dict) and isinstance(model.get("settings"), dict):
        _effective_settings(model)
        _redact(wire)
    for holder, name, space in _sets(wire):
        if isinstance(holder.get(name), list) and all(isinstance(item, str) for item in holder[name]):
            holder[name] = sorted({item.strip(space) if space else item for item in holder[name]}, key=utf16_order)
    extensions = wire.get("extensions")
    if isinstance(extensions, list) and all(isinstance(item, dict) for item in extensions):
        extensions.sort(key=lambda item: utf16_order(str(item.get("namespace"))))
    budget = wire.get("budget_limits")
    if isinstance(budget, dict) and all(
        limit in (None, {}) for name, limit in budget.items() if name != "unavailable_metric_policy"
    ):
        wire["budget_limits"] = None
    return RunDefinition.parse(wire)


def has_credential(wire: Mapping[str, Any], slot: str) -> bool:
    """Whether a description has a value at a credential slot."""
    try:
        credential(wire, slot)
    except CheckpointError:
        return False
    return True


def stable_ref(slot: str, obj: Any, given: Mapping[str, CapabilityRef]) -> CapabilityRef | None:
    """The stable name of a process-local object that decides behaviour, else `checkpoint_definition_unstable`.

    A reference the host gave for the slot wins; else the object's import path names it. None needs no name. Observers
    that change nothing (tracers, event sinks) are not asked for.
    """
    if obj is None:
        return None
    if (ref := given.get(slot)) is not None:
        return ref
    if (name := references.name_of(obj)) is None:
        raise CheckpointError(
            "checkpoint_definition_unstable",
            f"{slot} has no name that another process could find: {references.why_unnamed(obj)}; "
            f"or name it with CheckpointConfig(capability_refs={{{slot!r}: CapabilityRef(id=..., version=...)}})",
        )
    return CapabilityRef(id=name, version=references.version_of(obj))


def _effective_settings(model: dict[str, Any]) -> None:
    settings = {name: value for name, value in model["settings"].items() if value is not None}
    model["settings"] = settings
    timeout = settings.pop("timeout_seconds", None)
    if model.get("transport_timeout_seconds") is None:
        model["transport_timeout_seconds"] = timeout
    headers = settings.get("extra_headers")
    if isinstance(headers, dict):
        settings["extra_headers"] = lower = {_lower(name): value for name, value in headers.items()}
        if len(lower) != len(headers):
            raise CheckpointError(
                "checkpoint_definition_header_collision",
                f"among the headers {', '.join(sorted(headers))} one stands in two spellings; keep one",
            )


def _redact(wire: dict[str, Any]) -> None:
    slots = wire.get("credential_slots")
    if not isinstance(slots, list) or not all(map(_pointer.is_pointer, slots)):
        return
    slots = sorted({_header_slot(slot) for slot in slots}, key=utf16_order)
    check_slots(slots)
    refuse_unclassified(wire["model"]["settings"].get("extra_headers"), slots)
    for slot in slots:
        credential(wire, slot)
        _pointer.replace(wire, slot, REDACTED)
    wire["credential_slots"] = slots


def _header_slot(slot: str) -> str:
    steps = _pointer.split(slot)
    return _pointer.join([*_HEADERS, _lower(steps[-1])]) if steps[:-1] == _HEADERS else slot


def _lower(name: str) -> str:
    """ASCII lower case; header names are ASCII, other letters stay as they are."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


def _sets(wire: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Every set-like list as (holder, field, characters to strip from its items)."""
    policy = wire.get("tool_policy")
    if isinstance(policy, dict):
        for name in ("allowed_tools", "disallowed_tools", "denied_side_effects"):
            yield policy, name, ""
        for name in ("denied_capability_tags", "denied_cost_dimensions"):
            yield policy, name, _SPACE
    for tool in wire.get("tools") or ():
        metadata = tool.get("tool_metadata") if isinstance(tool, dict) else None
        if isinstance(metadata, dict):
            yield metadata, "capability_tags", _SPACE
            yield metadata, "cost_dimensions", _SPACE
