"""run_config_controls.json: the defaults of a run, the bounds of its numbers, and its options."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from vv_agent import (
    Agent,
    CheckpointConfig,
    CheckpointExtension,
    NoToolPolicy,
    RunBudgetLimits,
    RunConfig,
    Runner,
    build_default_registry,
    function_tool,
)
from vv_agent.checkpoint.extensions import extension_entry_size
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.cli.app_server import default_agent
from vv_agent.config import effective_config
from vv_agent.errors import VVAgentError
from vv_agent.events import RunEvent
from vv_agent.llm.base import ModelRequest, ModelResponse
from vv_agent.messages import Message
from vv_agent.testing import ScriptedProvider, call

FIXTURE = load("run_config_controls.json")


def fields_of(text: str) -> list[str]:
    """The names an option's text gives."""
    return re.findall(r"[a-z]+(?:_[a-z]+)+|model|workspace|session|context|hooks|stream", text)


def missing(fields: list[str]) -> list[str]:
    known = {item.name for item in dataclasses.fields(RunConfig)}
    return [name for name in fields if name not in known]


CONTROLS = {control["capability"]: control for control in FIXTURE["per_run_controls"]}
CASES = Cases("run_config_controls.json")


@pytest.mark.parametrize("name", FIXTURE["framework_defaults"])
def test_the_default_of_an_option(name: str) -> None:
    with CASES.run(f"default/{name}"):
        config = effective_config(Agent(name="a", instructions="Work."), None, None)
        value, wanted = getattr(config, name), FIXTURE["framework_defaults"][name]
        assert (list(value) if isinstance(wanted, list) else value) == wanted


def test_the_app_server_has_defaults_of_its_own() -> None:
    with CASES.run("app_server_defaults"):
        wanted, agent = FIXTURE["app_server_defaults"], default_agent()
        assert (agent.max_cycles, agent.name, agent.instructions) == (
            wanted["max_cycles"], wanted["agent_name"], wanted["instructions"],
        )  # fmt: skip


def bounded(name: str, value: int, folder: Path) -> None:
    """Use a number where the contract bounds it."""
    match name:
        case "max_cycles" | "max_handoffs":
            RunConfig(**{name: value})
        case "run_budget_wire_integer":
            RunBudgetLimits(max_total_tokens=value)
        case "checkpoint_key_utf8_bytes":
            key, agent = "k" * value, Agent(name="a", instructions="Work.", no_tool_policy=NoToolPolicy.FINISH)
            config = RunConfig(checkpoint_config=CheckpointConfig(key=key, store=MemoryStore()))
            Runner(model_provider=ScriptedProvider(["ok"]), workspace=folder).run_sync(agent, "Go.", run_config=config)
        case _:
            extension_of(value, folder)


def extension_of(size: int, folder: Path) -> None:
    """Run with an extension whose entry has this many bytes."""

    class Kept(CheckpointExtension):
        namespace, version, required = "acme.cart", "1", False

        def snapshot(self) -> Any:
            return "x" * max(0, size - empty)

        def restore(self, state: Any) -> None: ...

    empty = extension_entry_size({"version": "1", "required": False, "state": ""})
    agent = Agent(name="a", instructions="Work.", no_tool_policy=NoToolPolicy.FINISH)
    checkpoint = CheckpointConfig(key="k", store=MemoryStore(), max_extension_state_bytes=65_536)
    config = RunConfig(checkpoint_config=checkpoint, checkpoint_extensions=[Kept()])
    Runner(model_provider=ScriptedProvider(["ok"]), workspace=folder).run_sync(agent, "Go.", run_config=config)


@pytest.mark.parametrize("name", FIXTURE["integer_bounds"])
@pytest.mark.parametrize("side", ["minimum", "maximum", "beyond"])
def test_the_bounds_of_a_number(name: str, side: str, tmp_path: Path) -> None:
    bounds = FIXTURE["integer_bounds"][name]
    value = bounds["maximum"] + 1 if side == "beyond" else bounds[side]
    with CASES.run(f"bound/{name}/{side}"):
        if side == "beyond":
            with pytest.raises(VVAgentError):
                bounded(name, value, tmp_path)
        else:
            bounded(name, value, tmp_path)


@pytest.mark.parametrize("name", CONTROLS)
def test_an_option_has_its_fields(name: str) -> None:
    with CASES.run(f"control/{name}"):
        control = CONTROLS[name]
        assert control["status"] == "equivalent"
        assert missing(fields_of(control["python"].replace("tracing processors", ""))) == []


def test_the_options_of_one_run_work_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The registry of a factory, a dump of each call, both kinds of messages, the observer, and lines in the log."""

    @function_tool(idempotency="supported")
    def probe(n: int) -> str:
        """Probe."""
        return f"probed {n}"

    def registry() -> Any:
        made.append(1)
        registry = build_default_registry()
        registry.register(probe)
        return registry

    def interruption() -> list[Message]:
        return [Message("user", "interrupted")] if asked and not asked.append(1) and len(asked) == 3 else []

    def first(request: ModelRequest) -> ModelResponse:
        asked.append(1)
        return call("probe", {"n": 1})(request)  # type: ignore[operator, no-any-return]

    made: list[int] = []
    asked: list[int] = []
    events: list[RunEvent] = []
    config = RunConfig(
        tool_registry_factory=registry, debug_dump_dir=tmp_path / "dump", log_preview_chars=40, stream=events.append,
        before_cycle_messages=lambda n, _messages, _state: [Message("user", f"before {n}")],
        interruption_messages=interruption,
    )  # fmt: skip
    agent = Agent(name="prober", instructions="Probe.", no_tool_policy=NoToolPolicy.FINISH)
    models = ScriptedProvider([first, "Done."])
    with caplog.at_level(logging.INFO, "vv_agent.run"):
        result = Runner(model_provider=models, workspace=tmp_path).run_sync(agent, "Go.", run_config=config)
    assert result.final_output == "Done."
    assert made == [1]
    users = [message.content for message in result.messages if message.role == "user"]
    assert users == ["Go.", "before 1", "before 2", "interrupted"]
    dumps = [json.loads(path.read_text()) for path in sorted((tmp_path / "dump").iterdir())]
    assert [dump["response"]["content"] for dump in dumps] == ["", "Done."]
    assert [m["content"] for m in dumps[1]["request"]["messages"]][-1] == "interrupted"
    assert events[-1].type == "run_completed"
    lines = [record.getMessage() for record in caplog.records]
    assert lines[-1].startswith("run_completed {")
    assert max(map(len, lines)) == 40


def test_a_client_that_cannot_dump_is_refused_before_the_first_call(tmp_path: Path) -> None:
    class Completes:
        def complete(self, **_: Any) -> Any:
            raise AssertionError("called")

    class Provider(ScriptedProvider):
        def client(self, resolved: Any) -> Any:
            return Completes()

    config = RunConfig(debug_dump_dir=tmp_path / "dump")
    agent = Agent(name="a", instructions="Work.")
    with pytest.raises(VVAgentError, match="configured LLM client does not support debug_dump_dir"):
        Runner(model_provider=Provider([]), workspace=tmp_path).run_sync(agent, "Go.", run_config=config)
    named = ScriptedProvider([])
    named.__vv_ref__ = f"{__name__}:named"  # type: ignore[attr-defined]
    with pytest.raises(VVAgentError, match="workers write no debug_dump_dir"):
        Runner(model_provider=named, workspace=tmp_path).run_sync(
            agent, "Go.", run_config=dataclasses.replace(config, execution_mode="distributed")
        )
