"""Twelve scenarios: each of them is something a model must be able to do with us."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

from tests.live.conftest import SECONDS, Place, results_of
from vv_agent import Agent, AgentRuntime, AgentTask, NoToolPolicy, RuntimeRunControls, SubAgentConfig
from vv_agent.config import build_vv_llm_from_local_settings
from vv_agent.prompt import BuildSystemPromptOptions, build_system_prompt_with_options

FINISH = NoToolPolicy.FINISH


def red_square(size: int = 32) -> bytes:
    """A PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\xff\0\0" * size) * size)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def done(message: str) -> list[tuple[str, Any]]:
    return [("task_finish", {"message": message})]


def said_of(messages: list[dict[str, Any]]) -> Any:
    """The JSON of the last result."""
    return json.loads(messages[-1]["content"])


def test_the_low_level_runtime_completes_a_task(place: Place) -> None:
    place.plays([done("Hello.")])
    llm, resolved = build_vv_llm_from_local_settings(place.settings, place.backend, place.model, SECONDS)
    prompt = build_system_prompt_with_options("Greet people.", BuildSystemPromptOptions(language="en-US"))
    task = AgentTask(
        task_id="greet", model=resolved.selected_model, system_prompt=prompt, user_prompt="Greet me, then finish."
    )
    result = AgentRuntime(llm).run(task, controls=RuntimeRunControls(workspace=place.workspace))
    assert (result.status, bool(result.final_answer)) == ("completed", True)


def test_the_runner_completes_a_run(place: Place) -> None:
    place.plays(["The capital of France is Paris."])
    agent = Agent(name="geographer", instructions="Answer in one sentence.", no_tool_policy=FINISH)
    result = place.run(agent, "What is the capital of France?")
    assert (result.status, "Paris" in str(result.final_output)) == ("completed", True)
    assert (result.token_usage.total_tokens or 0) > 0


def test_the_model_asks_its_user_and_goes_on_with_the_answer(place: Place) -> None:
    place.plays([[("ask_user", {"question": "Which colour?", "options": ["red", "blue"]})], done("A blue bicycle.")])
    agent = Agent(name="shop", instructions="Sell bicycles. Ask for the colour with ask_user, then use task_finish.")
    waiting = place.run(agent, "I want a bicycle. Ask me for the colour first.")
    assert (waiting.status, waiting.completion_tool_name) == ("wait_user", "ask_user")
    result = place.runner.resume(waiting.into_state(), input="blue")
    assert (result.status, "blue" in str(result.final_output).lower()) == ("completed", True)


def test_the_model_keeps_a_list_of_todos(place: Place) -> None:
    def todos(*statuses: str) -> list[tuple[str, Any]]:
        rows = [{"title": f"step {n}", "status": status, "priority": "low"} for n, status in enumerate(statuses, 1)]
        return [("todo_write", {"todos": rows})]

    place.plays([todos("in_progress", "pending"), todos("completed", "completed"), done("Both steps are done.")])
    agent = Agent(name="planner", instructions="Plan two steps with todo_write, complete both, then task_finish.")
    result = place.run(agent, "Plan the two steps: boil water, make tea. Mark them as completed one after the other.")
    kept = result.raw_result.shared_state["todo_list"]
    assert (result.status, {todo["status"] for todo in kept}) == ("completed", {"completed"})


def test_the_model_writes_notes_into_its_memory(place: Place) -> None:
    place.plays([[("compress_memory", {"core_information": "The gate code is 4711."})], done("Noted.")])
    agent = Agent(name="clerk", instructions="Keep facts with compress_memory, then task_finish.")
    result = place.run(agent, "Remember with compress_memory that the gate code is 4711.")
    assert result.status == "completed"
    assert "4711" in json.dumps(result.raw_result.shared_state["memory_notes"])


def test_the_model_activates_a_skill(place: Place) -> None:
    folder = place.workspace / "skills/greetings"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: greetings\ndescription: How to greet.\n---\n\nSay moin.\n")
    place.plays([[("activate_skill", {"skill_name": "greetings"})], done("Moin.")])
    agent = Agent(
        name="host", instructions="Activate the skill that fits, follow it, then task_finish.",
        metadata={"available_skills": ["skills"]},
    )  # fmt: skip
    result = place.run(agent, "Greet me.")
    assert (result.status, result.raw_result.shared_state["active_skills"]) == ("completed", ["greetings"])


def test_the_model_works_with_files(place: Place) -> None:
    (place.workspace / "in.txt").write_text("three apples\n")
    place.plays([
        [("read_file", {"path": "in.txt"})], [("write_file", {"path": "out.txt", "content": "three apples\n"})],
        done("Copied."),
    ])  # fmt: skip
    agent = Agent(name="copyist", instructions="Use the file tools, then task_finish.")
    result = place.run(agent, "Copy the text of in.txt into out.txt.")
    assert (result.status, (place.workspace / "out.txt").read_text().strip()) == ("completed", "three apples")


def test_the_model_sees_an_image(place: Place) -> None:
    (place.workspace / "square.png").write_bytes(red_square())
    place.plays([[("read_image", {"path": "square.png"})], "It is red."])
    agent = Agent(name="viewer", instructions="Look with read_image, then name the colour.", no_tool_policy=FINISH)
    result = place.run(agent, "Which colour is square.png?")
    assert (result.status, "red" in str(result.final_output).lower()) == ("completed", True)
    assert results_of(result, "read_image")[0].image_path == "square.png"


SHELL = {"agent_type": "computer"}


def test_the_model_runs_a_command(place: Place) -> None:
    place.plays([[("bash", {"command": "expr 6 '*' 7"})], done("It is 42.")])
    agent = Agent(name="operator", instructions="Use bash, then task_finish with the output.", metadata=SHELL)
    result = place.run(agent, "Run: expr 6 '*' 7")
    assert (result.status, "42" in str(result.final_output)) == ("completed", True)
    assert "42" in results_of(result, "bash")[0].content


def test_the_model_runs_a_command_in_the_background(place: Place) -> None:
    place.plays([
        [("bash", {"command": "echo ready", "run_in_background": True})],
        lambda said: [("check_background_command", {"session_id": said_of(said)["session_id"]})],
        done("It is ready."),
    ])  # fmt: skip
    agent = Agent(
        name="operator", metadata=SHELL,
        instructions="Start the command with run_in_background, look at it with check_background_command, task_finish.",
    )  # fmt: skip
    result = place.run(agent, "Run in the background: echo ready")
    assert result.status == "completed"
    assert results_of(result, "check_background_command")


def clerk(place: Place) -> Agent:
    return Agent(
        name="boss", instructions="Lead: give work to the clerk as you are asked, then answer.", no_tool_policy=FINISH,
        sub_agents={
            "clerk": SubAgentConfig(
                place.model, backend=place.backend, description="Counts.",
                system_prompt="Count: use task_finish with the number.",
            )
        },
    )  # fmt: skip


def test_the_model_waits_for_a_sub_agent_it_started(place: Place) -> None:
    given = {"agent_id": "clerk", "task_description": "How many days has a week?", "wait_for_completion": False}
    place.plays({
        "Lead": [
            [("create_sub_task", given)],
            lambda said: [
                ("sub_task_status", {"task_ids": [said_of(said)["task_id"]], "wait_for_completion": True}),
            ],
            "Seven.",
        ],
        "Count": [done("7")],
    })  # fmt: skip
    result = place.run(
        clerk(place),
        "Have the clerk count the days of a week with wait_for_completion=false, then wait for it with sub_task_status "
        "(wait_for_completion=true), then tell me.",
    )
    assert result.status == "completed"
    assert results_of(result, "sub_task_status")
    assert "completed" in [event.status for event in result.events if event.type == "sub_run_completed"]


def test_the_model_gives_work_to_a_configured_sub_agent(place: Place) -> None:
    given = {"agent_id": "clerk", "task_description": "How many days has a week?"}
    place.plays({"Lead": [[("create_sub_task", given)], "Seven."], "Count": [done("7")]})
    result = place.run(clerk(place), "Have the clerk count the days of a week, and tell me.")
    assert result.status == "completed"
    assert [event.status for event in result.events if event.type == "sub_run_completed"] == ["completed"]
