"""Lists of skills: what their items may be, what the prompt shows of them, and what an activation gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.skills.folders import skill
from vv_agent.messages import ToolCall
from vv_agent.results import ToolExecutionResult
from vv_agent.skills import SkillEntry, SkillError, normalize_skill_list, render_skills_xml
from vv_agent.tools.base import ToolContext
from vv_agent.tools.builtin import build_default_registry
from vv_agent.workspace import LocalWorkspaceBackend


def test_items_are_paths_objects_and_entries_and_the_first_of_a_name_is_kept(tmp_path: Path) -> None:
    work, named = tmp_path / "work", tmp_path / "named"
    skill(work / "skills", "a")
    skill(work / "skills", "b", header="name: b\ndescription: From other programs.\nversion: 3")
    skill(named, "c", body="From a named folder.")
    skill(named, "a", body="A second one.")
    given = {"name": "d", "description": "D.", "instructions": "Do.", "allowed-tools": ["x", "y"], "metadata": {"k": 1}}
    entries = normalize_skill_list(["skills", str(named), given, {"location": "skills/b"}], workspace=work)
    assert [(entry.name, entry.location) for entry in entries] == [
        ("a", "skills/a/SKILL.md"), ("b", "skills/b/SKILL.md"), ("c", f"{named}/c/SKILL.md"), ("d", None),
    ]  # fmt: skip
    assert [entry.instructions for entry in entries] == [None, None, None, "Do."]
    assert (entries[3].allowed_tools, entries[3].metadata) == ("x y", {"k": "1"})
    assert normalize_skill_list([json.loads(json.dumps(entry.to_wire())) for entry in entries]) == entries
    assert normalize_skill_list(entries) == entries
    (single,) = normalize_skill_list(
        ["skills/a/SKILL.md"], workspace=LocalWorkspaceBackend(work), load_instructions=True
    )
    assert single.instructions == "Count them."
    assert normalize_skill_list(None) == normalize_skill_list([]) == []


def test_a_broken_skill_of_a_folder_is_an_entry_that_says_why_beside_the_good_ones(tmp_path: Path) -> None:
    skill(tmp_path / "skills", "good")
    skill(tmp_path / "skills", "bad", header="name: [")
    bad, good = normalize_skill_list(["skills"], workspace=tmp_path)
    assert (bad.name, good.load_error) == ("bad", None)
    assert bad.load_error is not None
    assert bad.load_error.startswith("skills/bad/SKILL.md: the header is no valid YAML")
    assert "bad" not in render_skills_xml([bad, good])
    assert render_skills_xml([bad]) == ""


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (["skills/nowhere"], "there are no skills at 'skills/nowhere'"),
        (["../outside"], "Path escapes workspace"),
        (["linked/SKILL.md"], "Path escapes workspace"),
        ([{"location": "empty"}], "there is no SKILL.md at 'empty'"),
        ([{"name": "x"}], "names no skill"),
        ([" "], "names no skill"),
        ([7], "names no skill"),
        ("skills", "a list of skills is needed"),
        ({"name": "x"}, "a list of skills is needed"),
    ],
    ids=str,
)
def test_an_item_that_names_no_skill_is_an_error(tmp_path: Path, raw: Any, says: str) -> None:
    work = tmp_path / "work"
    (work / "empty").mkdir(parents=True)
    (work / "linked").symlink_to(skill(tmp_path, "outside"))
    with pytest.raises(SkillError, match=says):
        normalize_skill_list(raw, workspace=work)


def test_the_list_is_shown_as_escaped_xml() -> None:
    entries = [SkillEntry(name="a", description="<b> & \"c\" 'd'", location="skills/a/SKILL.md")]
    assert render_skills_xml(entries).split("\n") == [
        "<available_skills>",
        "<skill>",
        "<name>a</name>",
        "<description>&lt;b&gt; &amp; &quot;c&quot; &#x27;d&#x27;</description>",
        "<location>skills/a/SKILL.md</location>",
        "</skill>",
        "</available_skills>",
    ]
    assert render_skills_xml([]) == ""


def test_over_the_budget_locations_go_first_then_skills() -> None:
    entries = [
        SkillEntry(name=f"skill-{n:03}", description="x" * 40, location=f"skills/skill-{n:03}/SKILL.md")
        for n in range(100)
    ]
    whole = render_skills_xml(entries, budget=100_000)
    assert whole.count("<location>") == 100
    without = render_skills_xml(entries, budget=len(whole) - 1)
    assert (without.count("<location>"), without.count("<skill>")) == (0, 100)
    some = render_skills_xml(entries, budget=len(without) - 1)
    shown = some.count("<skill>")
    assert 0 < shown < 100
    assert f"<!-- {100 - shown} more skills are not listed -->" in some
    for budget in (200, 1000, 5000):
        assert len(render_skills_xml(entries, budget=budget)) <= budget
    assert "<!-- 100 more skills" in render_skills_xml(entries, budget=10)


# Activation.


def activate(context: ToolContext, **arguments: Any) -> ToolExecutionResult:
    call = ToolCall("c", "activate_skill", json.dumps(arguments))
    return build_default_registry().execute(call, context)


def context_with(workspace: Path, *raw: Any, cycle: int = 1) -> ToolContext:
    shared = {"available_skills": list(raw)}
    return ToolContext(cycle_index=cycle, workspace=LocalWorkspaceBackend(workspace), shared_state=shared)


def content(result: ToolExecutionResult) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(result.content)
    return loaded


def test_an_activation_gives_the_instructions_and_is_remembered(tmp_path: Path) -> None:
    skill(tmp_path / "skills", "a", header="name: a\ndescription: A.\ncompatibility: secret\nmetadata: {k: secret}")
    context = context_with(tmp_path, "skills", cycle=3)
    assert content(activate(context, skill_name=" a ", reason=" to count ")) == {
        "status": "activated",
        "skill_name": "a",
        "message": "Skill 'a' has been activated. Follow the instructions below.",
        "instructions": "Count them.",
        "description": "A.",
        "location": "skills/a/SKILL.md",
        "reason": "to count",
    }
    assert "reason" not in content(activate(context, skill_name="a"))
    assert context.shared_state["active_skills"] == ["a"]
    assert context.shared_state["skill_activation_log"] == [
        {"skill_name": "a", "reason": "to count", "cycle_index": 3},
        {"skill_name": "a", "reason": "", "cycle_index": 3},
    ]


def test_the_activation_reads_the_file_as_it_is_now(tmp_path: Path) -> None:
    folder = skill(tmp_path, "a")
    (entry,) = normalize_skill_list(["a"], workspace=tmp_path)
    context = context_with(tmp_path, entry.to_wire())
    skill(tmp_path, "a", body="Count twice.")
    assert content(activate(context, skill_name="a"))["instructions"] == "Count twice."
    skill(tmp_path, "a", header="name: b\ndescription: d")
    failed = activate(context, skill_name="a")
    assert failed.error_code == "skill_invalid"
    assert "holds the skill 'b' now, not 'a'" in content(failed)["error"]
    (folder / "SKILL.md").unlink()
    assert "there are no skills at 'a/SKILL.md'" in content(activate(context, skill_name="a"))["error"]
    assert "active_skills" in context.shared_state
    assert len(context.shared_state["skill_activation_log"]) == 1


@pytest.mark.parametrize(
    ("raw", "name", "code", "says"),
    [
        (["skills"], " ", "skill_name_required", "cannot be blank"),
        ([], "good", "no_skills_configured", "No skills are configured"),
        (["skills"], "other", "skill_not_allowed", "not among the skills of this task: good"),
        (["skills"], "bad", "skill_invalid", "no valid YAML"),
        (["nowhere"], "good", "skill_invalid", "there are no skills at 'nowhere'"),
        ([{"name": "good", "description": "d"}], "good", "skill_invalid", "neither instructions nor a location"),
        (
            [{"name": "good", "description": "d", "location": "/no/such/SKILL.md"}],
            "good",
            "skill_invalid",
            "no skills at",
        ),
        ([{"name": "good", "description": "d", "location": "linked/SKILL.md"}], "good", "skill_invalid", "escapes"),
        ([None], "good", "skill_invalid", "names no skill"),
    ],
    ids=str,
)
def test_what_cannot_be_activated_has_its_code_and_leaves_no_trace(
    tmp_path: Path, raw: list[Any], name: str, code: str, says: str
) -> None:
    work = tmp_path / "work"
    skill(work / "skills", "good")
    skill(work / "skills", "bad", header="name: [")
    (work / "linked").symlink_to(skill(tmp_path, "outside", header="name: good\ndescription: d"))
    context = context_with(work, *raw)
    result = activate(context, skill_name=name)
    assert (result.error_code, content(result)["ok"], result.metadata) == (code, False, {"error_code": code})
    assert says in content(result)["error"]
    assert set(context.shared_state) == {"available_skills"}
