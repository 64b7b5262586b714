"""prompt_bundle.json: sections of the system prompt, their order, and the hash of the stable ones."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from vv_agent.prompt import PromptBundle, PromptSection, SystemPromptBuilder, build_system_prompt_bundle
from vv_agent.prompt.system import os_name

FIXTURE = load("prompt_bundle.json")
EMPTY_SKILLS = load("builtin_tool_behavior.json")["prompt"]["empty_skills"]
CASES = Cases("prompt_bundle.json")


def produce(scenario: dict[str, Any]) -> PromptBundle:
    if scenario["producer"] == "SystemPromptBuilder":
        return SystemPromptBuilder(PromptSection(**section) for section in scenario["input"]["sections"]).build()
    return build_system_prompt_bundle(**scenario["input"])


def normalised(bundle: PromptBundle, rules: list[str]) -> dict[str, Any]:
    """The bundle as the fixture writes it: on any system, with the hash of the texts that stand there then."""

    def rewritten(text: str) -> str:
        return text.replace(os_name(), "<OS>") if "computer_os" in rules else text

    sections = [
        {**section, "text": rewritten(section["text"]) if section["id"] == "environment" else section["text"]}
        for section in bundle.sections
    ]
    stable = "".join(section["text"] for section in sections if section["stable"])
    return {
        "prompt": "\n\n".join(section["text"] for section in sections),
        "sections": sections,
        "stable_hash": hashlib.sha256(stable.encode()).hexdigest(),
    }


@pytest.mark.parametrize("scenario", FIXTURE["scenarios"], ids=lambda scenario: scenario["id"])
def test_a_prompt_has_the_sections_of_the_contract(scenario: dict[str, Any]) -> None:
    with CASES.run(scenario["id"]):
        bundle, expected = produce(scenario), scenario["output"]
        plain = normalised(bundle, [])
        assert (bundle.prompt, bundle.stable_hash) == (plain["prompt"], plain["stable_hash"])
        found = normalised(bundle, scenario["normalizations"])
        assert [section.keys() for section in found["sections"]] == [
            {"text", *section} for section in expected["sections"]
        ]
        # The wording of the sections is ours: the fixture gives the texts it pins.
        pinned = [
            {name: ours[name] for name in wanted}
            for ours, wanted in zip(found["sections"], expected["sections"], strict=True)
        ]
        assert pinned == expected["sections"]
        for name in expected.keys() - {"sections"}:
            assert found[name] == expected[name]


def test_the_environment_names_the_system() -> None:
    (full,) = [scenario for scenario in FIXTURE["scenarios"] if scenario["id"] == "en-US-full"]
    (environment,) = [part["text"] for part in produce(full).sections if part["id"] == "environment"]
    assert environment == f"<Environment>\nYou work on a computer that runs {os_name()}.\n</Environment>"


def test_without_skills_the_prompt_says_nothing_of_them() -> None:
    bundle = build_system_prompt_bundle("Work.", available_skills=EMPTY_SKILLS["available_skills"])
    assert not [fragment for fragment in EMPTY_SKILLS["forbidden_fragments"] if fragment in bundle.prompt]
    one = [{"name": "a", "description": "b"}]
    texts = build_system_prompt_bundle("Work.", available_skills=one).prompt
    texts += build_system_prompt_bundle("Work.", available_skills=one, language="zh-CN").prompt
    assert not [fragment for fragment in EMPTY_SKILLS["forbidden_fragments"] if fragment not in texts]
