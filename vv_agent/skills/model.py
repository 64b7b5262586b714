"""What is known of a skill: its properties, its file, and how an agent's list of skills names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

MAX_FILE_BYTES = 262_144
"""A SKILL.md may have this many bytes at most: it goes into the model's context as a whole."""


class ValidationMode(StrEnum):
    """How strictly a header is judged: `compat` takes skills written for other programs, `minimal` needs little more
    than a name and a description."""

    STRICT = "strict"
    COMPAT = "compat"
    MINIMAL = "minimal"


@dataclass(frozen=True)
class ValidationDiagnostics:
    """What is wrong with a skill, and what is only unusual; one sentence each."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SkillProperties:
    """The header of a SKILL.md."""

    name: str
    description: str
    license: str | None = None
    compatibility: str | None = None
    allowed_tools: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LoadedSkill:
    """A skill that was read and found valid."""

    properties: SkillProperties
    skill_md_path: Path
    instructions: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SkillEntry:
    """A skill in an agent's list.

    `location` is the path of its SKILL.md, relative to the workspace or absolute; `instructions` are there when the
    host gave them or asked for them, else they are read when the skill is activated. A skill with a `load_error` is
    listed so that somebody can see why, but never offered to the model.
    """

    name: str
    description: str
    location: str | None = None
    instructions: str | None = None
    compatibility: str | None = None
    allowed_tools: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    load_error: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """The entry as JSON values; what is not set is left out. `normalize_skill_list` reads it again."""
        wire = {item.name: getattr(self, item.name) for item in fields(self)}
        wire["metadata"] = dict(self.metadata)
        return {name: value for name, value in wire.items() if value or name in ("name", "description")}
