"""The rules for the header of a skill (the public Agent Skills format)."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from vv_agent.skills.model import ValidationDiagnostics, ValidationMode

FIELDS = frozenset({"name", "description", "license", "compatibility", "allowed-tools", "metadata"})
MAX_NAME, MAX_DESCRIPTION, MAX_COMPATIBILITY = 64, 1024, 500
"""Characters."""


def diagnose(fields: Mapping[str, Any], folder: str, mode: ValidationMode) -> ValidationDiagnostics:
    """What is wrong with a header; `folder` is the name of the skill's folder, "" when it has none."""
    found: list[tuple[bool, str]] = [
        *_name(fields.get("name"), folder, mode),
        *_description(fields.get("description")),
        *_compatibility(fields.get("compatibility"), mode),
    ]
    if unknown := sorted(str(name) for name in fields if name not in FIELDS):
        found.append((mode is ValidationMode.STRICT, f"unknown fields: {', '.join(unknown)}"))
    return ValidationDiagnostics(
        errors=tuple(text for is_error, text in found if is_error),
        warnings=tuple(text for is_error, text in found if not is_error),
    )


def _name(value: Any, folder: str, mode: ValidationMode) -> Iterator[tuple[bool, str]]:
    """Faults of the name, each with whether it is an error."""
    if not isinstance(value, str) or not value.strip():
        yield True, "name is missing or no text"
        return
    name = unicodedata.normalize("NFKC", value.strip())
    if len(name) > MAX_NAME:
        yield True, f"name has {len(name)} characters, {MAX_NAME} are allowed"
    style = mode is not ValidationMode.MINIMAL
    if name != name.lower():
        yield style, f"name {name!r} must be lower case"
    if not all(letter.isalnum() or letter == "-" for letter in name):
        yield style, f"name {name!r} may hold letters, digits and hyphens only"
    if name.startswith("-") or name.endswith("-") or "--" in name:
        yield style, f"name {name!r} may not begin or end with a hyphen or hold two in a row"
    if folder and unicodedata.normalize("NFKC", folder) != name:
        yield mode is ValidationMode.STRICT, f"the folder is named {folder!r}, the skill {name!r}"


def _description(value: Any) -> Iterator[tuple[bool, str]]:
    if not isinstance(value, str) or not value.strip():
        yield True, "description is missing or no text"
    elif len(value.strip()) > MAX_DESCRIPTION:
        yield True, f"description has {len(value.strip())} characters, {MAX_DESCRIPTION} are allowed"


def _compatibility(value: Any, mode: ValidationMode) -> Iterator[tuple[bool, str]]:
    if value is None:
        return
    error = mode is not ValidationMode.MINIMAL
    if not isinstance(value, str):
        yield error, "compatibility is no text"
    elif len(value) > MAX_COMPATIBILITY:
        yield error, f"compatibility has {len(value)} characters, {MAX_COMPATIBILITY} are allowed"
