"""Skills: packages of instructions in the public Agent Skills layout, which the model activates when it needs one."""

from __future__ import annotations

from vv_agent.errors import SkillError, SkillParseError, SkillValidationError
from vv_agent.skills.catalog import normalize_skill_list, render_skills_xml
from vv_agent.skills.files import (
    discover_skill_dirs,
    read_properties,
    read_skill,
    validate,
    validate_with_diagnostics,
)
from vv_agent.skills.model import LoadedSkill, SkillEntry, SkillProperties, ValidationDiagnostics, ValidationMode

__all__ = [
    "LoadedSkill",
    "SkillEntry",
    "SkillError",
    "SkillParseError",
    "SkillProperties",
    "SkillValidationError",
    "ValidationDiagnostics",
    "ValidationMode",
    "discover_skill_dirs",
    "normalize_skill_list",
    "read_properties",
    "read_skill",
    "render_skills_xml",
    "validate",
    "validate_with_diagnostics",
]
