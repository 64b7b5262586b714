"""Skills on disk: the public layout is read, and whatever else lies there has its clear outcome."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.skills.folders import skill
from vv_agent.skills import (
    SkillError,
    SkillParseError,
    SkillProperties,
    SkillValidationError,
    ValidationMode,
    discover_skill_dirs,
    read_properties,
    read_skill,
    validate,
    validate_with_diagnostics,
)
from vv_agent.skills.document import MAX_HEADER_CHARS
from vv_agent.skills.model import MAX_FILE_BYTES

FULL = """\
name: count-words
description: >
  Counts words
  of a text.
license: MIT
compatibility: any
allowed-tools: [read_file, write_file]
metadata:
  author: somebody
  version: 1.0
  reviewed: true
  since: 2026-01-02"""


def test_a_skill_is_read_with_everything_its_header_says(tmp_path: Path) -> None:
    folder = skill(tmp_path, header=FULL, body="# Steps\n\n---\n\nCount.")
    loaded = read_skill(folder)
    assert loaded.properties == read_properties(folder) == SkillProperties(
        name="count-words", description="Counts words of a text.", license="MIT", compatibility="any",
        allowed_tools="read_file write_file",
        metadata={"author": "somebody", "version": "1.0", "reviewed": "True", "since": "2026-01-02"},
    )  # fmt: skip
    assert loaded.instructions == "# Steps\n\n---\n\nCount."
    assert loaded.skill_md_path == folder / "SKILL.md"
    assert loaded.warnings == ()
    assert validate(folder) == []


def test_line_ends_and_a_byte_order_mark_do_not_matter(tmp_path: Path) -> None:
    folder = skill(tmp_path)
    file = folder / "SKILL.md"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    file.rename(folder / "skill.md")
    assert read_skill(folder).instructions == "Count them."


def test_skills_are_found_root_first_then_by_name_and_never_through_a_link_outside(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for name in ("b", "a/deep", "a"):
        skill(root, name)
    (root / "SKILL.md").write_text("---\nname: root\ndescription: d\n---\n")
    (root / "a/skill.md").write_text("the other spelling")
    skill(outside, "secret")
    (root / "linked").symlink_to(outside / "secret")
    (root / "c").mkdir()
    (root / "c/SKILL.md").symlink_to(outside / "secret/SKILL.md")
    assert discover_skill_dirs(root) == [root, root / "a", root / "a/deep", root / "b"]
    with pytest.raises(SkillError, match="there are no skills at"):
        discover_skill_dirs(tmp_path / "nowhere")


def no_header(folder: Path) -> None:
    (folder / "SKILL.md").write_text("Just instructions.")


def not_closed(folder: Path) -> None:
    (folder / "SKILL.md").write_text("---\nname: count-words\ndescription: d\n")


def not_utf8(folder: Path) -> None:
    (folder / "SKILL.md").write_bytes(b"---\nname: count-words\ndescription: \xff\xfe\n---\n")


def empty(folder: Path) -> None:
    (folder / "SKILL.md").write_bytes(b"")


def ten_megabytes(folder: Path) -> None:
    with open(folder / "SKILL.md", "ab") as file:
        file.truncate(10_000_000)


def missing(folder: Path) -> None:
    (folder / "SKILL.md").unlink()


def a_folder(folder: Path) -> None:
    missing(folder)
    (folder / "SKILL.md").mkdir()


def a_pipe(folder: Path) -> None:
    missing(folder)
    os.mkfifo(folder / "SKILL.md")


def a_link_outside(folder: Path) -> None:
    missing(folder)
    secret = folder.parent / "secret.md"
    secret.write_text("---\nname: count-words\ndescription: d\n---\nsecret")
    (folder / "SKILL.md").symlink_to(secret)


def header(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "SKILL.md").write_text(f"---\n{text}\n---\nDo it.\n")

    return write


BILLION = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
HOSTILE: list[tuple[str, Callable[[Path], None], type[SkillError], str]] = [
    ("no header", no_header, SkillParseError, "does not begin with a line of three hyphens"),
    ("not closed", not_closed, SkillParseError, "not closed"),
    ("empty", empty, SkillParseError, "does not begin"),
    ("not utf-8", not_utf8, SkillParseError, "is not UTF-8"),
    ("10 MB", ten_megabytes, SkillError, f"has 10000000 bytes, {MAX_FILE_BYTES} are allowed"),
    ("missing", missing, SkillError, "has no SKILL.md"),
    ("a folder", a_folder, SkillError, "is not there"),
    ("a pipe", a_pipe, SkillError, "is not there"),
    ("a link outside", a_link_outside, SkillError, "Path escapes workspace"),
    ("bad yaml", header("name: [unclosed"), SkillParseError, "no valid YAML"),
    ("a tab", header("name:\n\t- x"), SkillParseError, "no valid YAML"),
    ("no mapping", header("- name\n- description"), SkillParseError, "no mapping"),
    ("blank header", header(""), SkillParseError, "no mapping"),
    ("python object", header("name: !!python/object/apply:os.system [true]"), SkillParseError, "aliases, tags"),
    ("aliases", header(f"{BILLION}name: x\ndescription: y"), SkillParseError, "aliases, tags or deep nesting"),
    ("deep", header("name: " + "[" * 8000), SkillParseError, "aliases, tags or deep nesting"),
    ("a tag PyYAML stumbles over", header("name: !!bool x"), SkillParseError, "aliases, tags"),
    ("half a surrogate pair", header('name: x\ndescription: "\\ud800"'), SkillParseError, "no valid YAML"),
    ("impossible date", header("name: x\ndescription: 2026-13-45"), SkillParseError, "no valid YAML"),
    ("endless header", header("a: " + "x" * MAX_HEADER_CHARS), SkillParseError, "are allowed"),
    ("no name", header("description: d"), SkillValidationError, "name is missing"),
    ("blank name", header("name: ' '\ndescription: d"), SkillValidationError, "name is missing"),
    ("a number as name", header("name: 7\ndescription: d"), SkillValidationError, "name is missing"),
    ("no description", header("name: count-words"), SkillValidationError, "description is missing"),
]


@pytest.mark.parametrize(("make", "kind", "says"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_a_file_that_is_no_skill_is_an_error_that_says_why(
    tmp_path: Path, make: Callable[[Path], None], kind: type[SkillError], says: str
) -> None:
    folder = skill(tmp_path)
    make(folder)
    started = time.process_time()
    for read in (read_properties, read_skill):
        with pytest.raises(kind) as caught:
            read(folder)
        assert type(caught.value) is kind
        assert caught.value.code == "skill_invalid"
        assert says in caught.value.message
    assert says in "; ".join(validate(folder))
    assert time.process_time() - started < 2.0, "a small file must not cost seconds"


@pytest.mark.parametrize(
    ("fields", "problem", "lenient"),
    [
        ("name: Count-Words\ndescription: d", "must be lower case", "minimal"),
        ("name: count_words\ndescription: d", "letters, digits and hyphens only", "minimal"),
        ("name: -count\ndescription: d", "may not begin or end with a hyphen", "minimal"),
        ("name: count--words\ndescription: d", "two in a row", "minimal"),
        ("name: other\ndescription: d", "the folder is named 'count-words', the skill 'other'", "compat"),
        ("name: count-words\ndescription: d\nversion: 2\nmodel: m", "unknown fields: model, version", "compat"),
        (f"name: count-words\ndescription: d\ncompatibility: {'x' * 501}", "compatibility has 501", "minimal"),
        ("name: count-words\ndescription: d\ncompatibility: 3", "compatibility is no text", "minimal"),
        (f"name: {'x' * 65}\ndescription: d", "name has 65 characters", None),
        (f"name: count-words\ndescription: {'x' * 1025}", "description has 1025 characters", None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_rules_are_errors_as_long_as_the_mode_is_strict_enough(
    tmp_path: Path, fields: str, problem: str, lenient: str | None
) -> None:
    folder = skill(tmp_path, header=fields)
    modes = [mode.value for mode in ValidationMode]
    errs = modes if lenient is None else modes[: modes.index(lenient)]
    for mode in modes:
        found = validate_with_diagnostics(folder, validation_mode=mode)
        assert any(problem in text for text in (found.errors if mode in errs else found.warnings)), mode
        assert not any(problem in text for text in (found.warnings if mode in errs else found.errors)), mode
        if mode not in errs and not found.errors:
            assert read_skill(folder, validation_mode=mode).warnings == found.warnings


def test_names_of_other_scripts_are_names(tmp_path: Path) -> None:
    assert validate(skill(tmp_path, "统计-字数")) == []
    composed, decomposed = "\u00e9tude", "e\u0301tude"
    assert validate(skill(tmp_path, decomposed, header=f"name: {composed}\ndescription: d")) == []


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SkillError, match="strict, compat, minimal"):
        validate(skill(tmp_path), validation_mode="loose")
