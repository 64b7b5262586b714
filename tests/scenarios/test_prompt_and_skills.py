"""The system prompt of a run, and its skills, as a model gets them: through the front door, on every backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios import module_of_an_editor as desk
from tests.scenarios.conftest import Bench, an_agent
from tests.unit.skills.folders import skill
from vv_agent import (
    Agent,
    CapabilityRef,
    CheckpointConfig,
    CheckpointError,
    ConfigError,
    ContextFragment,
    ContextRequest,
    RunConfig,
    Runner,
    function_tool,
)
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.store import open_store
from vv_agent.dispatch.distributed import DistributedBackend
from vv_agent.dispatch.store import StoreDispatcher
from vv_agent.llm.base import ModelRequest
from vv_agent.result import RunResult
from vv_agent.settings import Settings
from vv_agent.testing import ScriptedProvider, call, calls

SEEN: dict[str, list[bytes]] = {}


@function_tool(idempotency="supported")
def step(n: int) -> int:
    """One step."""
    return n


def looking(then: Any) -> Any:
    """A step of a script that notes the system prompt it was sent, as bytes."""

    def look(request: ModelRequest) -> Any:
        system = [message for message in request.messages if message.role == "system"]
        assert request.messages[0] is system[0]
        assert len(system) == 1
        SEEN.setdefault(str(request.metadata["run_id"]), []).append(system[0].content.encode())
        return then(request) if callable(then) else then

    return look


def sections_of(result: RunResult) -> list[str]:
    return [section["id"] for section in result.messages[0].metadata["system_prompt_sections"]]


def tool_results(result: RunResult) -> list[dict[str, Any]]:
    return [json.loads(message.content) for message in result.messages if message.role == "tool"]


@pytest.mark.feature("context providers")
def test_the_sections_come_in_order_and_are_the_same_bytes_in_each_cycle(bench: Bench, tmp_path: Path) -> None:
    skill(tmp_path / "skills", "count-words")
    script = [looking(call("step", {"n": 1})), looking(call("step", {"n": 2})), looking("Done.")]
    agent = an_agent(step, metadata={"available_skills": ["skills"]})
    config = bench.config(context_providers=[desk.style, desk.audience])
    result = bench.runner(script).run_sync(agent, "Go.", run_config=config)
    assert result.final_output == "Done."
    one, two, three = SEEN[result.run_id]
    assert one == two == three
    texts = one.decode().split("\n\n")
    assert [texts[0], texts[1], texts[3]] == [
        "Test.", "Write for children.", f"Asked {desk.Style.asked} times, by tester, for 'Go.'."
    ]  # fmt: skip
    assert texts[2].endswith("</available_skills>")
    assert sections_of(result) == ["agent_instructions", "audience", "available_skills", "style"]
    metadata = result.messages[0].metadata
    assert metadata["system_prompt_sources"]["style"] == "editor.style"
    assert len(metadata["system_prompt_stable_hash"]) == 64
    assert sum(section["chars"] for section in metadata["system_prompt_sections"]) == len(one.decode()) - 3 * len(
        "\n\n"
    )


@pytest.mark.feature("skills")
def test_a_skill_is_activated_and_remembered(bench: Bench, tmp_path: Path) -> None:
    skill(tmp_path / "skills", "count-words", body="Count them twice.")
    script = [call("activate_skill", {"skill_name": "count-words", "reason": "asked"}), "Counted."]
    result = bench.run(an_agent(metadata={"available_skills": ["skills"]}), script)
    assert result.final_output == "Counted."
    (given,) = tool_results(result)
    assert (given["status"], given["instructions"]) == ("activated", "Count them twice.")
    state = result.raw_result.shared_state
    assert state["active_skills"] == ["count-words"]
    assert state["skill_activation_log"] == [{"skill_name": "count-words", "reason": "asked", "cycle_index": 1}]


# What the prompt is made from.


def run(
    agent: Agent, steps: Sequence[Any] = (desk.what_it_saw,), folder: Path | None = None, **config: Any
) -> RunResult:
    runner = Runner(model_provider=ScriptedProvider(steps), workspace=folder)
    return runner.run_sync(agent, "Go.", run_config=RunConfig(**config))


def test_an_agent_alone_is_sent_its_instructions_and_no_tool_for_skills(tmp_path: Path) -> None:
    shown: list[str] = []

    def names(request: ModelRequest) -> str:
        shown.extend(tool["function"]["name"] for tool in request.tools)
        return request.messages[0].content

    assert run(replace(desk.editor, instructions=" Edit texts. \n"), [names], tmp_path).final_output == "Edit texts."
    assert "activate_skill" not in shown
    empty = run(desk.editor, [names], tmp_path, metadata={"available_skills": []})
    assert empty.final_output == "Edit texts."
    (tmp_path / "skills").mkdir()
    assert run(desk.editor, [names], tmp_path, metadata={"available_skills": ["skills"]}).final_output == "Edit texts."
    assert "activate_skill" not in shown
    skill(tmp_path / "skills", "count-words")
    run(desk.editor, [names], tmp_path, shared_state={"available_skills": ["skills"]})
    assert "activate_skill" in shown


def test_providers_of_the_runner_come_before_those_of_the_run(tmp_path: Path) -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def fragments(self, request: ContextRequest) -> list[ContextFragment]:
            seen.append((self.name, request))
            return []

    seen: list[tuple[str, ContextRequest]] = []
    default = RunConfig(context_providers=[Named("runner")], max_context_chars=500, metadata={"a": 1, "b": 1})
    runner = Runner(model_provider=ScriptedProvider(["x"]), workspace=tmp_path, default_run_config=default)
    config = RunConfig(context_providers=[Named("run")], metadata={"b": 2}, context="host")
    result = runner.run_sync(desk.editor, "Go.", run_config=config)
    assert [name for name, _ in seen] == ["runner", "run"]
    request = seen[0][1]
    assert (request.agent_name, request.input, request.context, request.max_prompt_chars) == (
        "editor",
        "Go.",
        "host",
        500,
    )
    assert (request.metadata, request.trace_id, request.model) == (
        {"a": 1, "b": 2},
        result.trace_id,
        "scripted/demo-model",
    )


def test_what_does_not_fit_is_left_out_and_said(tmp_path: Path) -> None:
    result = run(desk.editor, folder=tmp_path, context_providers=[desk.audience, desk.style], max_context_chars=40)
    assert result.final_output == "Edit texts.\n\nWrite for children."
    (told,) = [event for event in result.events if event.type == "diagnostic"]
    assert (told.code, told.level) == ("prompt_section_omitted", "warning")  # type: ignore[union-attr]
    assert told.details == {"sections": ["style"], "max_context_chars": 40}  # type: ignore[union-attr]
    assert result.messages[0].metadata["system_prompt_omitted_sections"] == ["style"]
    nothing = run(desk.editor, [lambda request: request.messages[0].role], tmp_path, max_context_chars=5)
    assert nothing.final_output == "user"


@pytest.mark.parametrize("wrong", [0, -1, True, "10"], ids=str)
def test_a_limit_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="max_context_chars"):
        RunConfig(max_context_chars=wrong)


class Broken:
    def fragments(self, request: ContextRequest) -> Any:
        raise LookupError("no such desk")


class Wrong:
    def fragments(self, request: ContextRequest) -> Any:
        return ["text"]


@pytest.mark.parametrize(
    ("provider", "code", "says"),
    [
        (Broken(), "context_provider_failed", "context provider failed: LookupError: no such desk"),
        (Wrong(), "context_provider_failed", "context provider failed: it gave 'text'"),
        ("style", "run_config_invalid", "has no method fragments"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_provider_that_fails_keeps_the_run_from_starting(provider: Any, code: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        run(desk.editor, folder=tmp_path, context_providers=[provider])
    assert (caught.value.code, says in caught.value.message) == (code, True)


# Runs that are kept.


def kept(store: Any, agent: Agent, steps: Sequence[Any], folder: Path, key: str = "k", **config: Any) -> RunResult:
    checkpoint = CheckpointConfig(
        key=key, store=store, resume_policy="resume_if_present",  # type: ignore[arg-type]
        capability_refs=config.pop("capability_refs", {}),
    )  # fmt: skip
    return run(agent, steps, folder, checkpoint_config=checkpoint, **config)


def interrupt(request: ModelRequest) -> Any:
    raise KeyboardInterrupt


def test_a_run_that_goes_on_keeps_the_prompt_it_began_with_and_asks_nobody_again(tmp_path: Path) -> None:
    skill(tmp_path / "skills", "count-words")
    store = MemoryStore()
    config = {"context_providers": [desk.style], "shared_state": {"available_skills": ["skills"]}}
    first = replace(desk.editor, instructions=desk.instructions, tools=[step])
    steps = [call("step", {"n": 1}), interrupt]
    with pytest.raises(KeyboardInterrupt):
        kept(store, first, steps, tmp_path, **config)
    asked = desk.Style.asked
    (tmp_path / "skills/count-words/SKILL.md").unlink()
    result = kept(store, first, [steps[0], desk.what_it_saw], tmp_path, **config)
    assert desk.Style.asked == asked
    assert f"asked {asked - 1} times so far" in str(result.final_output)
    assert f"Asked {asked} times, by editor" in str(result.final_output)
    assert "<name>count-words</name>" in str(result.final_output)


def test_a_run_does_not_go_on_under_other_instructions_or_other_providers(tmp_path: Path) -> None:
    store = MemoryStore()
    with pytest.raises(KeyboardInterrupt):
        kept(store, desk.editor, [interrupt], tmp_path, context_providers=[desk.style])
    for agent, providers in (
        (replace(desk.editor, instructions="Edit books."), [desk.style]),
        (replace(desk.editor, instructions="Edit"), [desk.style]),
        (desk.editor, [desk.style, desk.audience]),
        (desk.editor, []),
    ):
        with pytest.raises(CheckpointError) as caught:
            kept(store, agent, ["x"], tmp_path, context_providers=providers)
        assert caught.value.code == "checkpoint_definition_mismatch"
    assert kept(store, desk.editor, ["done"], tmp_path, context_providers=[desk.style]).final_output == "done"


class Late(MemoryStore):
    """Does not show a run that is there, the first times: its starter looks before the other one creates it."""

    hidden = 0

    def look(self, key: str) -> Any:
        if self.hidden:
            self.hidden -= 1
            return None
        return super().look(key)


def test_of_two_starters_at_once_the_later_one_takes_the_prompt_of_the_other(tmp_path: Path) -> None:
    store = Late()
    with pytest.raises(KeyboardInterrupt):
        kept(store, desk.editor, [interrupt], tmp_path, context_providers=[desk.style])
    asked = desk.Style.asked
    store.hidden = 2
    result = kept(store, desk.editor, [desk.what_it_saw], tmp_path, context_providers=[desk.style])
    assert (store.hidden, desk.Style.asked) == (0, asked + 1)
    assert f"Asked {asked} times, by editor" in str(result.final_output)


def test_a_kept_run_needs_names_for_what_makes_its_prompt(tmp_path: Path) -> None:
    for agent, config in (
        (replace(desk.editor, instructions=lambda context, agent: "Hi."), {}),
        (desk.editor, {"context_providers": [desk.Style()]}),
    ):
        with pytest.raises(CheckpointError) as caught:
            kept(MemoryStore(), agent, ["x"], tmp_path, **config)
        assert caught.value.code == "checkpoint_definition_unstable"
    refs = {"context_provider:0": CapabilityRef(id="style", version="1")}
    result = kept(MemoryStore(), desk.editor, ["x"], tmp_path, context_providers=[desk.Style()], capability_refs=refs)
    assert result.final_output == "x"


# Skills.


def test_a_broken_skill_is_told_and_the_run_goes_on_without_it(tmp_path: Path) -> None:
    skill(tmp_path / "skills", "bad", header="name: [")
    skill(tmp_path / "skills", "good")

    def vanished(request: ModelRequest) -> Any:
        (tmp_path / "skills/bad/SKILL.md").unlink()
        return calls(("activate_skill", {"skill_name": "bad"}), ("activate_skill", {"skill_name": "good"}))(request)

    result = run(desk.counter, [vanished, desk.what_it_saw], tmp_path)
    (told,) = [event for event in result.events if event.type == "diagnostic"]
    assert (told.code, told.details["skill"]) == ("skill_invalid", "bad")  # type: ignore[union-attr]
    assert "no valid YAML" in told.details["error"]  # type: ignore[union-attr]
    refused, activated = tool_results(result)
    assert (refused["error_code"], activated["status"]) == ("skill_invalid", "activated")
    assert "<name>good</name>" in str(result.final_output)
    assert "bad" not in str(result.final_output)


def test_a_list_that_names_nothing_keeps_the_run_from_starting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        run(desk.counter, ["x"], tmp_path)
    assert (caught.value.code, "no skills at 'skills'" in caught.value.message) == ("skill_invalid", True)


def test_the_list_speaks_the_language_of_the_run(tmp_path: Path) -> None:
    skill(tmp_path / "skills", "count-words")
    result = run(desk.counter, folder=tmp_path, metadata={"language": "zh-CN"})
    assert "可用技能元数据" in str(result.final_output)


class Unloadable:
    """A provider that only its starter has."""

    __vv_ref__ = "nowhere.to.be.found:hours"

    def fragments(self, request: ContextRequest) -> list[ContextFragment]:
        return [ContextFragment("hours", "Open until six.")]


@pytest.mark.parametrize("place", ["workspace", "named folder", "gone"])
def test_a_worker_of_another_process_activates_a_skill(place: str, tmp_path: Path) -> None:
    """It builds the run from its stored definition, with the prompt the starter made; the skill it reads itself."""
    work, named = tmp_path / "work", tmp_path / "named"
    folder = skill(work / "skills" if place == "workspace" else named, "count-words", body="Count twice.")
    listed = ["skills" if place == "workspace" else str(named)]
    url = f"sqlite:///{tmp_path}/runs.db"
    store = open_store(url)
    backend = DistributedBackend(StoreDispatcher(store), fallback=False)
    config = RunConfig(
        checkpoint_config=CheckpointConfig(key="k", store=store), execution_backend=backend,
        context_providers=[Unloadable()],
    )  # fmt: skip
    agent = replace(desk.counter, metadata={"available_skills": listed})
    runner = Runner(model_provider=desk.models, workspace=work, settings=Settings(store=url, queue="skills"))
    handle = runner.start(agent, "Count.", run_config=config)
    if place == "gone":
        (folder / "SKILL.md").unlink()
    environment = {
        **os.environ, "VV_AGENT_STORE": url, "VV_AGENT_QUEUE": "skills",
        "VV_AGENT_IMPORTS": desk.__name__,
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    worker = subprocess.Popen([sys.executable, "-m", "vv_agent.cli", "worker"], env=environment, cwd=tmp_path)
    try:
        result = handle.result(60)
    finally:
        worker.terminate()
        worker.wait(30)
        store.close()
    (given,) = tool_results(result)
    if place == "gone":
        assert given["error_code"] == "skill_invalid"
        assert f"there are no skills at '{folder}/SKILL.md'" in given["error"]
    else:
        assert given["instructions"] == "Count twice."
        assert result.raw_result.shared_state["active_skills"] == ["count-words"]
    assert "<name>count-words</name>" in str(result.final_output)
    assert str(result.final_output).endswith("Open until six.")
