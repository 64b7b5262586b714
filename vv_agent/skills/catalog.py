"""An agent's list of skills: from what the host wrote to entries, and from entries to what the prompt shows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from vv_agent.errors import SkillError
from vv_agent.skills.document import as_text
from vv_agent.skills.files import SkillFile, skill_files
from vv_agent.skills.model import LoadedSkill, SkillEntry, ValidationMode
from vv_agent.workspace import LocalWorkspaceBackend, WorkspaceBackend
from vv_agent.workspace.base import shown

DEFAULT_BUDGET = 8000
"""Code points that the list of skills may take in a prompt."""


def normalize_skill_list(
    raw_skills: Sequence[Any] | None,
    *,
    workspace: WorkspaceBackend | str | os.PathLike[str] | None = None,
    load_instructions: bool = False,
) -> list[SkillEntry]:
    """The skills of a list whose items are paths, objects or entries; of two with one name the first is kept
    that can be loaded.

    A path names a SKILL.md, a folder with one, or a folder of such folders; a relative one lies in the workspace, if
    one is given. An object has `name` and `description`, perhaps `instructions`, `location` and other properties; or
    only a `location`, where the rest is read. Files are judged by `ValidationMode.COMPAT`; one that is not valid
    becomes an entry with a `load_error`. `SkillError` for a path where nothing is, and for an item that is none.
    """
    if raw_skills is not None and (isinstance(raw_skills, str) or not isinstance(raw_skills, Sequence)):
        raise SkillError(f"a list of skills is needed, not {raw_skills!r}")
    files = LocalWorkspaceBackend(workspace) if isinstance(workspace, str | os.PathLike) else workspace
    entries: dict[str, SkillEntry] = {}
    for raw in raw_skills or ():
        for entry in _entries(raw, files, load_instructions):
            known = entries.get(entry.name)
            if known is None or (known.load_error and not entry.load_error):
                entries[entry.name] = entry
    return list(entries.values())


def load_instructions_of(entry: SkillEntry, workspace: WorkspaceBackend | None) -> str:
    """The instructions of an entry, read where this process finds them; `SkillError` when it cannot."""
    if entry.load_error is not None:
        raise SkillError(entry.load_error)
    if entry.instructions is not None:
        return entry.instructions
    if entry.location is None:
        raise SkillError(f"skill {entry.name!r} has neither instructions nor a location; give it one of them")
    loaded = _file_at(entry.location, workspace).load(ValidationMode.COMPAT)
    if loaded.properties.name != entry.name:
        raise SkillError(f"{entry.location} holds the skill {loaded.properties.name!r} now, not {entry.name!r}")
    return loaded.instructions


def render_skills_xml(entries: Iterable[SkillEntry], *, budget: int = DEFAULT_BUDGET) -> str:
    """The `<available_skills>` block within `budget` code points; "" when there is nothing to offer.

    Over the budget, locations are left out; still over it, as many skills as fit are listed, and a comment says how
    many are not.
    """
    offered = [entry for entry in entries if entry.load_error is None]
    if not offered:
        return ""
    for with_location in (True, False):
        whole = _block([_element(entry, with_location) for entry in offered])
        if len(whole) <= budget:
            return whole
    elements = [_element(entry, False) for entry in offered]
    used, shown = len(_shortened(elements, 0)), 0
    while (used := used + len(elements[shown]) + 1) <= budget:
        shown += 1
    return _shortened(elements, shown)


def _shortened(elements: Sequence[str], shown: int) -> str:
    return _block([*elements[:shown], f"<!-- {len(elements) - shown} more skills are not listed -->"])


def _block(elements: Sequence[str]) -> str:
    return "\n".join(["<available_skills>", *elements, "</available_skills>"])


def _element(entry: SkillEntry, with_location: bool) -> str:
    fields = {"name": entry.name, "description": entry.description}
    if with_location and entry.location is not None:
        fields["location"] = entry.location
    lines = (f"<{tag}>{escape(value)}</{tag}>" for tag, value in fields.items())
    return "\n".join(["<skill>", *lines, "</skill>"])


def _entries(raw: Any, workspace: WorkspaceBackend | None, load: bool) -> Iterator[SkillEntry]:
    match raw:
        case SkillEntry():
            yield raw
        case str() | Path() if str(raw).strip():
            for file in skill_files(str(raw).strip(), workspace):
                yield _read(file, load)
        case Mapping() if _text(raw, "name") and (_text(raw, "description") or _text(raw, "load_error")):
            yield _described(raw)
        case Mapping() if location := _text(raw, "location"):
            yield _read(_file_at(location, workspace), load)
        case _:
            raise SkillError(
                f"{raw!r:.200} names no skill; give a path, or an object with name and description or with a location"
            )


def _described(raw: Mapping[str, Any]) -> SkillEntry:
    metadata = raw.get("metadata")
    return SkillEntry(
        name=_text(raw, "name"),
        description=_text(raw, "description"),
        location=_text(raw, "location") or None,
        instructions=_text(raw, "instructions") or None,
        compatibility=as_text(raw.get("compatibility")),
        allowed_tools=as_text(raw.get("allowed_tools", raw.get("allowed-tools"))),
        metadata={str(name): str(value) for name, value in metadata.items()} if isinstance(metadata, Mapping) else {},
        load_error=_text(raw, "load_error") or None,
    )


def _read(file: SkillFile, load: bool) -> SkillEntry:
    location = shown(file.location)
    try:
        if location != file.location:
            raise SkillError("its path is no UTF-8 text; rename the folder")
        return _entry(file.load(ValidationMode.COMPAT), location, load)
    except (SkillError, ValueError) as error:  # ValueError: a number too long to be shown
        reason = error.message if isinstance(error, SkillError) else str(error)
        return SkillEntry(name=shown(file.folder) or location, description="", location=location, load_error=reason)


def _entry(skill: LoadedSkill, location: str, load: bool) -> SkillEntry:
    found = skill.properties
    return SkillEntry(
        name=found.name, description=found.description, location=location,
        instructions=skill.instructions if load else None, compatibility=found.compatibility,
        allowed_tools=found.allowed_tools, metadata=found.metadata,
    )  # fmt: skip


def _file_at(location: str, workspace: WorkspaceBackend | None) -> SkillFile:
    """The one skill file at a location, the SKILL.md of a folder too."""
    if files := skill_files(location, workspace):
        return files[0]
    raise SkillError(f"there is no SKILL.md at {location!r}; correct the location, or put the skill there")


def _text(raw: Mapping[str, Any], name: str) -> str:
    value = raw.get(name)
    return value.strip() if isinstance(value, str) else ""
