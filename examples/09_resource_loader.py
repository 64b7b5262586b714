"""Agents, prompts and skills that lie in files: read a directory of them into agents."""

import tomllib
from pathlib import Path

from support import fail, runner, show

from vv_agent import Agent
from vv_agent.skills import discover_skill_dirs, read_properties
from vv_agent.testing import call

RESOURCES = Path(__file__).with_name("resources")


def load(folder: Path) -> dict[str, Agent]:
    """One agent for each table of `agents.toml`."""
    agents = {}
    for name, entry in tomllib.loads((folder / "agents.toml").read_text(encoding="utf-8")).items():
        agents[name] = Agent(
            name=name,
            instructions=(folder / entry["prompt"]).read_text(encoding="utf-8").strip(),
            max_cycles=entry["max_cycles"],
            metadata={"available_skills": [str(folder / entry["skills"])]},
        )
    return agents


def main() -> None:
    for skill in discover_skill_dirs(RESOURCES / "skills"):
        print(f"skill {read_properties(skill).name}: {read_properties(skill).description}")
    clerk = load(RESOURCES)["clerk"]
    result = runner(
        call("activate_skill", {"skill_name": "refunds"}),
        call("task_finish", {"message": "Your money comes within five days."}),
    ).run_sync(clerk, "I want my money back; here is the receipt.")
    if result.raw_result.shared_state.get("active_skills") != ["refunds"]:
        fail("the skill was not activated")
    show(result)


if __name__ == "__main__":
    main()
