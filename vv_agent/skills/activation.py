"""Activating a skill: its instructions for the model, and the history of it in the run's shared state."""

from __future__ import annotations

from typing import Any

from vv_agent.errors import SkillError, ToolError
from vv_agent.skills.catalog import load_instructions_of, normalize_skill_list
from vv_agent.workspace import WorkspaceBackend

AVAILABLE, ACTIVE, LOG = "available_skills", "active_skills", "skill_activation_log"
"""Keys of the shared state: the list of skills, the names activated so far, and each activation."""


def activate(
    shared_state: dict[str, Any], skill_name: str, reason: str, *, cycle_index: int, workspace: WorkspaceBackend | None
) -> dict[str, Any]:
    """What the model gets for a skill of `shared_state`, which then remembers the activation.

    Raises `ToolError` with `skill_name_required`, `no_skills_configured`, `skill_not_allowed` or `skill_invalid`.
    """
    name, reason = skill_name.strip(), reason.strip()
    if not name:
        raise ToolError("skill_name cannot be blank; give the name of a skill", "skill_name_required")
    if not shared_state.get(AVAILABLE):
        raise ToolError("No skills are configured for this task", "no_skills_configured")
    try:
        entries = {entry.name: entry for entry in normalize_skill_list(shared_state[AVAILABLE], workspace=workspace)}
        if name not in entries:
            known = ", ".join(entry.name for entry in entries.values() if entry.load_error is None) or "none"
            raise ToolError(f"Skill {name!r} is not among the skills of this task: {known:.2000}", "skill_not_allowed")
        entry = entries[name]
        instructions = load_instructions_of(entry, workspace)
    except SkillError as error:
        raise ToolError(f"Skill {name!r} cannot be activated: {error.message}", "skill_invalid") from error
    active = _list(shared_state, ACTIVE)
    shared_state[ACTIVE] = active if name in active else [*active, name]
    shared_state[LOG] = [*_list(shared_state, LOG), {"skill_name": name, "reason": reason, "cycle_index": cycle_index}]
    optional = {
        "description": entry.description, "location": entry.location, "allowed_tools": entry.allowed_tools,
        "reason": reason,
    }  # fmt: skip
    return {
        "status": "activated",
        "skill_name": name,
        "message": f"Skill '{name}' has been activated. Follow the instructions below.",
        "instructions": instructions,
    } | {field: value for field, value in optional.items() if value}


def _list(shared_state: dict[str, Any], key: str) -> list[Any]:
    value = shared_state.get(key)
    return value if isinstance(value, list) else []
