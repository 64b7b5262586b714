"""What the examples share: the model they ask, what they show meanwhile, and how they end.

An example plays its script, so that it runs without a key. With `VV_AGENT_LOCAL_SETTINGS=FILE` the same program asks
the model `VV_AGENT_EXAMPLE_BACKEND` (moonshot), `VV_AGENT_EXAMPLE_MODEL` (kimi-k3) of that settings file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from vv_agent import (
    AgentResult,
    Message,
    ModelProvider,
    ModelRef,
    ResolvedModelConfig,
    RunConfig,
    Runner,
    RunResult,
    VvLlmModelProvider,
)
from vv_agent.config import build_vv_llm_from_local_settings
from vv_agent.events import RunEvent
from vv_agent.testing import ScriptedModel, ScriptedProvider

SETTINGS = os.environ.get("VV_AGENT_LOCAL_SETTINGS")
BACKEND = os.environ.get("VV_AGENT_EXAMPLE_BACKEND", "moonshot") if SETTINGS else "scripted"
MODEL = os.environ.get("VV_AGENT_EXAMPLE_MODEL", "kimi-k3") if SETTINGS else "demo-model"
WORKSPACE = Path(os.environ.get("VV_AGENT_EXAMPLE_WORKSPACE", "workspace"))
VERBOSE = os.environ.get("VV_AGENT_EXAMPLE_VERBOSE", "true").lower() in ("1", "true", "yes")


class Script(ScriptedProvider):
    """A script of a model that can also see."""

    def resolve(self, model: ModelRef) -> ResolvedModelConfig:
        return replace(super().resolve(model), native_multimodal=True)


def provider(*script: Any, usage: Mapping[str, Any] | None = None) -> ModelProvider:
    """The script, or the model of the settings file."""
    if SETTINGS is None:
        return Script(script, usage=usage)
    return VvLlmModelProvider.from_settings_file(SETTINGS).with_default_backend(BACKEND).with_default_model(MODEL)


def client(*script: Any) -> tuple[Any, str]:
    """The same for `AgentRuntime`: a client, and the name of its model."""
    if SETTINGS is None:
        return ScriptedModel(script), MODEL
    llm, resolved = build_vv_llm_from_local_settings(SETTINGS, BACKEND, MODEL)
    return llm, resolved.model_id


def runner(*script: Any, usage: Mapping[str, Any] | None = None, config: RunConfig | None = None) -> Runner:
    """A runner on that model, which tells on stderr what happens (unless VV_AGENT_EXAMPLE_VERBOSE=false)."""
    config = replace(config or RunConfig(), stream=tell if VERBOSE else None)
    return Runner(model_provider=provider(*script, usage=usage), workspace=WORKSPACE, default_run_config=config)


def tell(event: RunEvent) -> None:
    """One line for what matters most."""
    what = getattr(event, "tool_name", None) or getattr(event, "status", None) or ""
    if event.type in ("run_started", "tool_call_completed", "sub_run_completed", "handoff_completed", "run_completed"):
        print(f"  {event.agent_name}: {event.type} {what}", file=sys.stderr)


def by_agent(scripts: Mapping[str, Sequence[Any]]) -> list[Any]:
    """A script for several agents: each one, known by how its instructions begin, plays its own."""

    def step(request: Any) -> Any:
        prompt = request.messages[0].content
        script = next(steps for begins, steps in scripts.items() if prompt.startswith(begins))
        return script[sum(message.role == "assistant" for message in request.messages)]

    return [step] * 50


def heard(answer: Callable[[str], str]) -> Callable[[Any], str]:
    """A step that answers with a function of the last message."""

    def step(request: Any) -> str:
        last: Message = request.messages[-1]
        return answer(last.content)

    return step


def show(result: RunResult | AgentResult, wanted: str = "completed") -> None:
    """Print how a run ended; leave with exit code 1 unless it is as wanted."""
    output = result.final_output if isinstance(result, RunResult) else result.final_answer or result.error
    print(f"{result.status.value}: {output}")
    if result.status.value != wanted:
        fail(f"the run should be {wanted}")


def fail(why: str) -> NoReturn:
    """Leave with exit code 1."""
    sys.exit(f"this example failed: {why}")
