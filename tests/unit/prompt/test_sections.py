"""Sections, fragments and their limit; the prompt of a task in both languages."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from vv_agent.prompt import (
    BuildSystemPromptOptions,
    CacheBreakTracker,
    ContextFragment,
    PromptSection,
    SystemPromptBuilder,
    assemble_fragments,
    build_raw_system_prompt_sections,
    build_system_prompt,
    build_system_prompt_bundle,
    build_system_prompt_sections,
    build_system_prompt_with_options,
)
from vv_agent.prompt.texts import WORKSPACE_TOOLS

NOW = "2026-01-02T03:04:05Z"


def test_fragments_stand_by_priority_then_stable_ones_then_by_id() -> None:
    bundle = assemble_fragments([
        ContextFragment("b", "later"),
        ContextFragment("z", " stable ", stable=True),
        ContextFragment("a", "earlier"),
        ContextFragment("c", "first", priority=-1, source="host", cache_hint="1h", metadata={"k": 1}),
        ContextFragment("blank", " \n "),
    ])  # fmt: skip
    assert bundle.prompt == "first\n\nstable\n\nearlier\n\nlater"
    assert [section["id"] for section in bundle.sections] == ["c", "z", "a", "b"]
    assert bundle.sections[0] == {
        "id": "c", "text": "first", "stable": False, "priority": -1, "source": "host", "cache_hint": "1h",
        "metadata": {"k": 1},
    }  # fmt: skip
    assert bundle.stable_hash == hashlib.sha256(b"stable").hexdigest()
    assert (bundle.sources, bundle.total_chars) == ({"c": "host"}, len(bundle.prompt))


def test_a_fragment_beyond_the_limit_is_left_out_whole_and_smaller_ones_follow() -> None:
    fragments = [ContextFragment(str(n), text, priority=n) for n, text in enumerate(["字" * 10, "x" * 30, "y" * 8])]
    for limit, texts, omitted in (
        (20, ["字" * 10, "y" * 8], ("1",)),
        (19, ["字" * 10], ("1", "2")),
        (52, ["字" * 10, "x" * 30, "y" * 8], ()),
        (51, ["字" * 10, "x" * 30], ("2",)),
        (9, ["y" * 8], ("0", "1")),
        (1, [], ("0", "1", "2")),
    ):
        bundle = assemble_fragments(fragments, limit)
        assert (bundle.prompt, bundle.omitted_section_ids) == ("\n\n".join(texts), omitted)
        assert bundle.total_chars <= limit


def test_what_is_kept_beside_a_prompt_has_no_text_twice() -> None:
    bundle = assemble_fragments(
        [ContextFragment("a", "text", stable=True, source="s"), ContextFragment("b", "xxxx")], 5
    )
    assert bundle.to_metadata() == {
        "system_prompt_sections": [{"id": "a", "stable": True, "priority": 100, "source": "s", "chars": 4}],
        "system_prompt_sources": {"a": "s"},
        "system_prompt_stable_hash": hashlib.sha256(b"text").hexdigest(),
        "system_prompt_omitted_sections": ["b"],
    }


def test_a_stable_section_is_computed_once_until_it_is_invalidated() -> None:
    calls: list[str] = []

    def counted(name: str) -> Any:
        return lambda: calls.append(name) or f"{name} {calls.count(name)}"

    builder = SystemPromptBuilder([PromptSection("s", counted("s"), stable=True)])
    builder.add(PromptSection("t", counted("t"), stable=True)).add(PromptSection("v", counted("v")))
    assert builder.build().prompt == "s 1\n\nt 1\n\nv 1"
    assert builder.build().prompt == "s 1\n\nt 1\n\nv 2"
    builder.invalidate("s")
    assert builder.build().prompt == "s 2\n\nt 1\n\nv 3"
    builder.invalidate()
    assert builder.build().prompt == "s 3\n\nt 2\n\nv 4"


def test_a_change_of_the_stable_part_is_noticed() -> None:
    tracker = CacheBreakTracker()

    def observe(**texts: str) -> tuple[str, ...]:
        sections = [PromptSection(name, text, stable=name != "volatile") for name, text in texts.items()]
        return tracker.observe(SystemPromptBuilder(sections).build())

    assert observe(a="1", b="1", volatile="1") == ()
    assert observe(a="1", b="1", volatile="2") == ()
    assert observe(a="2", b="1", c="1") == ("a", "c")
    assert observe(a="2", c="1") == ("b",)


def test_the_parts_of_the_tools_stand_in_their_order_in_both_languages() -> None:
    for language in ("en-US", "zh-CN"):
        (tools,) = [
            section["text"]
            for section in build_system_prompt_sections(
                "x", language=language, available_sub_agents={"b": "B.", "a": "A."},
                available_skills=[{"name": "s", "description": "S."}],
            )
            if section["id"] == "tools"
        ]  # fmt: skip
        parts = tools.removeprefix("<Tools>\n").removesuffix("\n</Tools>").split("\n\n")
        wanted = [
            "`ask_user`",
            "`find_files`",
            "`edit_file`",
            "`todo_write`",
            "`create_sub_task`",
            "<skill>",
            "`task_finish`",
        ]
        assert len(parts) == len(wanted)
        assert all(word in part for word, part in zip(wanted, parts, strict=True))
        places = [parts[1].index(f"`{name}`") for name in WORKSPACE_TOOLS]
        assert places == sorted(places)
        assert parts[4].index("`a`") < parts[4].index("`b`")


def test_what_is_switched_off_is_not_told() -> None:
    bundle = build_system_prompt_bundle(
        "x", allow_interruption=False, use_workspace=False, enable_todo_management=False, current_time_utc=NOW
    )
    tools = bundle.sections[1]["text"]
    assert tools.count("`") == 4
    assert "`task_finish`" in tools
    assert [section["id"] for section in bundle.sections] == ["agent_definition", "tools", "current_time"]


def test_another_language_is_english_and_only_the_time_moves() -> None:
    assert build_system_prompt("x", language="fr-FR", current_time_utc=NOW) == build_system_prompt(
        "x", current_time_utc=NOW
    )
    assert build_system_prompt("x", language="zh-CN", current_time_utc=NOW) != build_system_prompt(
        "x", current_time_utc=NOW
    )
    one, two = (build_system_prompt_bundle("x", current_time_utc=now) for now in (NOW, "2027-01-02T03:04:05Z"))
    assert one.prompt != two.prompt
    assert one.stable_hash == two.stable_hash
    options = BuildSystemPromptOptions(language="zh-CN", current_time_utc=NOW)
    assert build_system_prompt_with_options("x", options) == build_system_prompt(
        "x", language="zh-CN", current_time_utc=NOW
    )
    time = build_system_prompt_bundle("x").sections[-1]["text"].splitlines()[-2]
    assert len(time) == 20
    assert time.endswith("Z")


def test_a_prompt_written_as_a_whole_is_one_stable_section() -> None:
    assert build_raw_system_prompt_sections(" All of it. ") == [
        {"id": "raw_system_prompt", "text": "All of it.", "stable": True}
    ]
    assert build_raw_system_prompt_sections(" ") == []


def test_a_misspelt_option_is_refused() -> None:
    with pytest.raises(TypeError, match="langage"):
        build_system_prompt("x", langage="zh-CN")
