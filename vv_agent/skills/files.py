"""Skills on disk and in workspaces: finding, reading and judging them.

Everything is read through a workspace backend, which never follows a link out of its root.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vv_agent.errors import SkillError, SkillParseError, SkillValidationError, ToolError
from vv_agent.skills.document import parse, properties_of
from vv_agent.skills.model import MAX_FILE_BYTES, LoadedSkill, SkillProperties, ValidationDiagnostics, ValidationMode
from vv_agent.skills.validation import diagnose
from vv_agent.workspace import LocalWorkspaceBackend, WorkspaceBackend

NAMES = ("SKILL.md", "skill.md")


@dataclass(frozen=True)
class SkillFile:
    """A SKILL.md: where it lies below a backend's root, and its name for others (in the workspace, or absolute)."""

    backend: WorkspaceBackend
    path: str
    location: str

    @property
    def folder(self) -> str:
        return PurePosixPath(self.location).parent.name

    def text(self) -> str:
        """The file's text; `SkillError` when it is not there, too large or elsewhere, `SkillParseError` when it is not
        UTF-8."""
        try:
            info = self.backend.file_info(self.path)
            if info is None or not info.is_file:
                raise SkillError(f"{self.location} is not there; put the skill there, or correct the list of skills")
            if info.size > MAX_FILE_BYTES:
                raise SkillError(f"{self.location} has {info.size} bytes, {MAX_FILE_BYTES} are allowed; shorten it")
            return self.backend.read_bytes(self.path).decode("utf-8-sig").replace("\r\n", "\n")
        except ToolError as error:
            raise SkillError(f"{self.location} cannot be read: {error.message}") from error
        except UnicodeDecodeError as error:
            raise SkillParseError(f"{self.location} is not UTF-8 text; save it as UTF-8") from error

    def load(self, mode: ValidationMode) -> LoadedSkill:
        """The skill, if it is valid."""
        fields, instructions = parse(self.text(), self.location)
        found = diagnose(fields, self.folder, mode)
        if found.errors:
            raise SkillValidationError(self.location, found.errors)
        properties = properties_of(fields, self.location)
        return LoadedSkill(
            properties=properties, skill_md_path=Path(self.location), instructions=instructions, warnings=found.warnings
        )


def skill_files(path: str, workspace: WorkspaceBackend | None) -> list[SkillFile]:
    """The skills a path names: a SKILL.md, a folder with one, or a folder of such folders.

    A relative path lies in the workspace, if there is one; any other one on this machine. `SkillError` when nothing is
    there.
    """
    backend, inside, root = _place(path, workspace)
    try:
        info = backend.file_info(inside)
        if info is not None and info.is_file:
            return [SkillFile(backend, info.path, os.path.join(root, info.path))]
        found = [file for name in NAMES for file in backend.list_files(inside, f"**/{name}")]
    except ToolError as error:
        raise SkillError(f"skills at {path!r} cannot be read: {error.message}") from error
    if info is None and not found:  # storage without folders knows only files
        raise SkillError(f"there are no skills at {path!r}; correct the path, or put them there for this process")
    by_folder = {PurePosixPath(file).parent: file for file in reversed(found)}  # SKILL.md before skill.md
    return [SkillFile(backend, file, os.path.join(root, file)) for _, file in sorted(by_folder.items())]


def _place(path: str, workspace: WorkspaceBackend | None) -> tuple[WorkspaceBackend, str, str]:
    """The backend to read with, the path below its root, and how that root is named in a location."""
    expanded = os.path.expanduser(path)
    if workspace is not None and not os.path.isabs(expanded):
        return workspace, path, ""
    absolute = os.path.abspath(expanded)
    folder = absolute if os.path.isdir(absolute) else os.path.dirname(absolute)
    return LocalWorkspaceBackend(folder), os.path.relpath(absolute, folder), folder


def discover_skill_dirs(root: str | os.PathLike[str]) -> list[Path]:
    """The folders with a SKILL.md at or below `root`, root first, then by name; links are not followed outside."""
    return [Path(file.location).parent for file in skill_files(os.fspath(root), None)]


def read_properties(skill_dir: str | os.PathLike[str]) -> SkillProperties:
    """The header of a skill. Raises `SkillError`, `SkillParseError`, and `SkillValidationError` without a name or
    description."""
    file = _file_in(skill_dir)
    fields, _ = parse(file.text(), file.location)
    return properties_of(fields, file.location)


def read_skill(
    skill_dir: str | os.PathLike[str], *, validation_mode: ValidationMode | str | None = None
) -> LoadedSkill:
    """A skill with its instructions, judged by `validation_mode` (strict); raises `SkillError` and its kinds."""
    return _file_in(skill_dir).load(_mode(validation_mode))


def validate(skill_dir: str | os.PathLike[str], *, validation_mode: ValidationMode | str | None = None) -> list[str]:
    """What is wrong with a skill; nothing for a valid one."""
    return list(validate_with_diagnostics(skill_dir, validation_mode=validation_mode).errors)


def validate_with_diagnostics(
    skill_dir: str | os.PathLike[str], *, validation_mode: ValidationMode | str | None = None
) -> ValidationDiagnostics:
    """What is wrong with a skill, and what is only unusual; a file that cannot be read is an error too."""
    mode = _mode(validation_mode)
    try:
        file = _file_in(skill_dir)
        fields, _ = parse(file.text(), file.location)
    except SkillError as error:
        return ValidationDiagnostics(errors=(error.message,))
    return diagnose(fields, file.folder, mode)


def _file_in(skill_dir: str | os.PathLike[str]) -> SkillFile:
    folder = os.path.abspath(os.path.expanduser(skill_dir))
    names: Sequence[str] = [name for name in NAMES if os.path.lexists(os.path.join(folder, name))]
    if not names:
        raise SkillError(f"{folder} has no SKILL.md; give the folder of a skill")
    return SkillFile(LocalWorkspaceBackend(folder), names[0], os.path.join(folder, names[0]))


def _mode(given: ValidationMode | str | None) -> ValidationMode:
    try:
        return ValidationMode(given or ValidationMode.STRICT)
    except ValueError:
        raise SkillError(f"validation mode {given!r} is not one of {', '.join(ValidationMode)}") from None
