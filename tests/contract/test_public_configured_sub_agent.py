"""public_configured_sub_agent.json: what the prompt of an agent says of its sub-agents."""

from __future__ import annotations

import json

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.scenarios.agents import by_agent
from vv_agent import Agent, NoToolPolicy, RunConfig, Runner
from vv_agent.agent import SubAgentConfig
from vv_agent.errors import ConfigError
from vv_agent.prompt import ContextFragment, assemble_fragments, sub_agents_block
from vv_agent.testing import ScriptedProvider, call

FIXTURE = load("public_configured_sub_agent.json")
CASES = Cases("public_configured_sub_agent.json")
NORMAL = FIXTURE["normalization"]


def test_the_fragment_of_sub_agents_stands_behind_the_instructions() -> None:
    wanted = FIXTURE["projection"]
    configs = {entry["id"].strip(): entry["config"] for entry in FIXTURE["normalization"]["raw_entries"]}
    with CASES.run("projection"):
        described = {name.strip("\x1c\x1f "): config["description"] for name, config in reversed(configs.items())}
        instructions = wanted["sections"][0]
        bundle = assemble_fragments([
            ContextFragment(**{**wanted["fragment"], "text": sub_agents_block(described)}),
            ContextFragment(**instructions),
        ])  # fmt: skip
        assert bundle.sections[1] == wanted["fragment"]
        for name in ("prompt", "sections", "sources", "stable_hash", "total_chars"):
            assert getattr(bundle, name) == wanted[name]


def configs() -> dict[str, SubAgentConfig]:
    return {entry["id"]: SubAgentConfig.from_wire(entry["config"]) for entry in NORMAL["raw_entries"]}


def test_ids_are_trimmed_and_configs_are_copies() -> None:
    given = configs()
    agent = Agent(name="boss", instructions="Lead.", sub_agents=given)
    with CASES.run("normalization"):
        next(iter(given.values())).metadata["nested"]["scope"] = "changed"
        given.clear()
        assert sorted(agent.sub_agents) == NORMAL["normalized_ids"]
        assert agent.sub_agents["researcher"].to_wire() == NORMAL["retained_researcher_config"]
    config = SubAgentConfig("m")
    with CASES.run("normalization/empty_id_error"), pytest.raises(ConfigError, match=NORMAL["empty_id_error"]):
        Agent(name="boss", instructions="Lead.", sub_agents={"\x1c": config})
    with CASES.run("normalization/collision_error"), pytest.raises(ConfigError, match=NORMAL["collision_error"]):
        Agent(name="boss", instructions="Lead.", sub_agents={"researcher": config, " researcher": config})


def test_work_is_given_through_the_runner() -> None:
    wanted = FIXTURE["public_runner"]
    agent = Agent(
        name="boss", instructions="Lead.", no_tool_policy=NoToolPolicy.FINISH, model=wanted["parent_model"],
        sub_agents={wanted["delegated_agent_id"]: SubAgentConfig(wanted["child_model"], system_prompt="Research.")},
    )  # fmt: skip
    give = call("create_sub_task", {"agent_id": wanted["delegated_agent_id"], "task_description": "x"})
    script = by_agent({
        "Lead.": [give, wanted["parent_final_output"]],
        "Research.": [call("task_finish", {"message": wanted["child_final_output"]})],
    })  # fmt: skip
    result = Runner(model_provider=ScriptedProvider(script)).run_sync(agent, "Go.", run_config=RunConfig())
    with CASES.run("public_runner"):
        assert (result.status, result.final_output) == (wanted["terminal_status"], wanted["parent_final_output"])
        (told,) = [json.loads(message.content) for message in result.messages if message.role == "tool"]
        assert (told["final_answer"], told["agent_name"]) == (wanted["child_final_output"], "researcher")
        models = {event.agent_name: event.model for event in result.events if event.type == "llm_started"}
        assert models == {"boss": wanted["parent_model"], "researcher": wanted["child_model"]}
