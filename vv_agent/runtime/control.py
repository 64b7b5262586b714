"""The tools that after-cycle hooks denied: an entry of the shared state that only grows, and that no tool changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vv_agent._json import utf16_order
from vv_agent.errors import VVAgentError

KEY = "_vv_agent_after_cycle_control"
SCHEMA = "vv-agent.after-cycle-control.v1"
GUARD_CODE = "guardrail_failed"
BLOCKED_CODE = "guardrail_blocked"


class HookFailed(VVAgentError):
    """Code of the host failed, or gave what it must not: the run fails. Never leaves the runtime."""


def denied(state: Mapping[str, Any]) -> tuple[str, ...]:
    """The names that are denied; `after_cycle_control_state_invalid` for an entry of another form."""
    stored = state.get(KEY)
    if stored is None:
        return ()
    names = stored.get("disallowed_tools") if isinstance(stored, dict) else None
    if (
        not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
        or stored != _entry(names)
        or names != _entry(names)["disallowed_tools"]
    ):
        raise HookFailed(
            "after_cycle_control_state_invalid",
            f"shared_state[{KEY!r}] is no {SCHEMA}: schema_version, and disallowed_tools sorted by UTF-16 units; "
            "leave the entry to the runtime",
        )
    return tuple(names)


def denying(state: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The state with these names denied as well."""
    return {**state, KEY: _entry([*denied(state), *names])}


def kept(before: Mapping[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """`after` with the entry of `before`: what a tool does to it does not count."""
    if after.get(KEY) is before.get(KEY):
        return after
    rest = {name: value for name, value in after.items() if name != KEY}
    return {**rest, KEY: before[KEY]} if KEY in before else rest


def _entry(names: Iterable[str]) -> dict[str, Any]:
    return {"schema_version": SCHEMA, "disallowed_tools": sorted(set(names), key=utf16_order)}
