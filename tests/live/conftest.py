"""Where the live scenarios run: `VV_AGENT_RUN_LIVE_TESTS=1` and `tests/dev_settings.json` ask the real provider, else a
fake one plays the script of each test."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import fake_openai
from tests.fake_openai import Exchange, FakeOpenAI
from vv_agent import Agent, ModelRef, RunConfig, Runner, RunResult, VvLlmModelProvider

LIVE = os.environ.get("VV_AGENT_RUN_LIVE_TESTS") == "1"
TESTS = Path(__file__).resolve().parents[1]
SECONDS = 180
"""How long a run may take with a real model."""

Script = Mapping[str, Sequence[Any]]
"""How an agent's instructions begin -> its turns: a text, a list of (tool, arguments), or a function of the messages
that gives one of these."""


@dataclass
class Place:
    """A settings file, a model of it, a folder for files."""

    settings: Path
    backend: str
    model: str
    workspace: Path

    @property
    def runner(self) -> Runner:
        provider = VvLlmModelProvider.from_settings_file(self.settings).with_default_backend(self.backend)
        return Runner(model_provider=provider.with_default_model(self.model), workspace=self.workspace)

    def plays(self, script: Script | Sequence[Any]) -> None:
        """What the fake provider answers; a real one answers what it likes."""
        scripts = script if isinstance(script, Mapping) else {"": script}

        def play(exchange: Exchange) -> None:
            messages = exchange.received.body["messages"]
            turns = next(turns for begins, turns in scripts.items() if messages[0]["content"].startswith(begins))
            number = sum(message["role"] == "assistant" for message in messages)
            turn = turns[number]
            answer = turn(messages) if callable(turn) else turn
            if isinstance(answer, str):
                exchange.stream([fake_openai.text(answer)])
            else:
                exchange.stream(
                    [
                        fake_openai.tool(n, f"call_{number}_{n}", name, json.dumps(arguments))
                        for n, (name, arguments) in enumerate(answer)
                    ],
                    "tool_calls",
                )

        fake_openai.SCENARIOS["script"] = play

    def run(self, agent: Agent, text: str, **config: Any) -> RunResult:
        config.setdefault("max_cycles", 12)
        model = ModelRef.backend(self.backend, self.model)
        return self.runner.start(agent, text, run_config=RunConfig(model=model, **config)).result(SECONDS)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    if LIVE:
        settings = TESTS / "dev_settings.json"
        assert settings.is_file(), "copy tests/dev_settings.example.json to tests/dev_settings.json and write your key"
        backend = os.environ.get("VV_AGENT_EXAMPLE_BACKEND", "moonshot")
        yield Place(settings, backend, os.environ.get("VV_AGENT_EXAMPLE_MODEL", "kimi-k3"), workspace)
        return
    given = json.loads((TESTS / "dev_settings.example.json").read_text(encoding="utf-8"))
    model = given["backends"]["local"]["models"]["tiny"]
    model["endpoints"][0]["model_id"] = "script"
    model |= {"context_length": 128_000, "native_multimodal": True}
    with FakeOpenAI() as server:
        next(one for one in given["endpoints"] if one["id"] == "local-server")["api_base"] = server.url
        settings = tmp_path / "dev_settings.json"
        settings.write_text(json.dumps(given), encoding="utf-8")
        yield Place(settings, "local", "tiny", workspace)
    fake_openai.SCENARIOS.pop("script", None)


def results_of(result: RunResult, tool: str) -> list[Any]:
    """The results of the calls of a tool, in order."""
    return [
        answered
        for cycle in result.cycles
        for asked, answered in zip(cycle.tool_calls, cycle.tool_results, strict=True)
        if asked.name == tool
    ]
