"""A skill: the model sees its name and description, and gets its instructions when it activates it."""

from support import WORKSPACE, fail, runner, show

from vv_agent import Agent
from vv_agent.testing import call

SKILL = """---
name: haiku
description: How to write a haiku.
---

Three lines of five, seven and five syllables, with a season in it.
"""
agent = Agent(
    name="poet",
    instructions="Write poems. Activate the skill that fits, then task_finish.",
    metadata={"available_skills": ["skills"]},
)


def main() -> None:
    folder = WORKSPACE / "skills" / "haiku"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(SKILL, encoding="utf-8")
    result = runner(
        call("activate_skill", {"skill_name": "haiku", "reason": "a poem is wanted"}),
        call(
            "task_finish", {"message": "First snow on the roof / the cat walks as if the world / were new to its paws"}
        ),
    ).run_sync(agent, "A poem about snow.")
    print(result.raw_result.shared_state.get("skill_activation_log"))
    if result.raw_result.shared_state.get("active_skills") != ["haiku"]:
        fail("the skill was not activated")
    show(result)


if __name__ == "__main__":
    main()
