"""The text of a SKILL.md: a YAML header between two lines of `---`, then the instructions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vv_agent.errors import SkillParseError, SkillValidationError
from vv_agent.skills.model import SkillProperties

MAX_HEADER_CHARS = 16_384
_MAX_DEPTH = 16


def parse(text: str, where: str) -> tuple[dict[str, Any], str]:
    """The fields of the header, and the instructions. `where` names the file in errors (`SkillParseError`).

    YAML is loaded without tags, aliases and deep nesting: a skill may come from anywhere.
    """
    first, _, rest = text.partition("\n")
    if first.rstrip() != "---":
        raise SkillParseError(f"{where} does not begin with a line of three hyphens; put a YAML header there")
    header: list[str] = []
    lines = rest.split("\n")
    for number, line in enumerate(lines):
        if line.rstrip() == "---":
            return _fields("\n".join(header), where), "\n".join(lines[number + 1 :]).strip()
        header.append(line)
    raise SkillParseError(f"{where}: the YAML header is not closed by a second line of three hyphens")


def properties_of(fields: Mapping[str, Any], where: str) -> SkillProperties:
    """The header as a value; `SkillValidationError` when name or description is missing."""
    missing = [
        f"{name} is missing or no text" for name in ("name", "description")
        if not isinstance(fields.get(name), str) or not fields[name].strip()
    ]  # fmt: skip
    if missing:
        raise SkillValidationError(where, missing)
    metadata = fields.get("metadata")
    return SkillProperties(
        name=fields["name"].strip(),
        description=fields["description"].strip(),
        license=as_text(fields.get("license")),
        compatibility=as_text(fields.get("compatibility")),
        allowed_tools=as_text(fields.get("allowed-tools")),
        metadata={str(name): str(value) for name, value in metadata.items()} if isinstance(metadata, Mapping) else {},
    )


def as_text(value: Any) -> str | None:
    """A field as text: a list's items with spaces between, anything else as Python shows it."""
    if value is None:
        return None
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _fields(header: str, where: str) -> dict[str, Any]:
    import yaml

    if len(header) > MAX_HEADER_CHARS:
        raise SkillParseError(f"{where}: the header has {len(header)} characters, {MAX_HEADER_CHARS} are allowed")
    try:
        depth = 0
        for event in yaml.parse(header, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > _MAX_DEPTH or getattr(event, "tag", None):
                raise SkillParseError(f"{where}: the header uses aliases, tags or deep nesting; write plain fields")
            if isinstance(event, yaml.ScalarEvent):
                event.value.encode()  # half a surrogate pair could not be stored
        fields = yaml.safe_load(header)
    except (yaml.YAMLError, ValueError) as error:
        raise SkillParseError(f"{where}: the header is no valid YAML: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(fields, dict):
        raise SkillParseError(f"{where}: the header is no mapping of fields; write name: ... and description: ...")
    return fields
