"""The direct task: one agent with the built-in tools, one prompt, and its result as JSON."""

from __future__ import annotations

import secrets
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vv_agent.cli.arguments import Task, usage
from vv_agent.cli.follow import Narrator, Quiet, Talker, VerboseLines, follow
from vv_agent.cli.render import as_json

if TYPE_CHECKING:
    from vv_agent.agent import Agent
    from vv_agent.checkpoint.store import CheckpointStore
    from vv_agent.config import RunConfig
    from vv_agent.llm.reference import ResolvedModelConfig
    from vv_agent.llm.settings import ModelSettings
    from vv_agent.result import RunResult
    from vv_agent.settings import Settings


def run_task(task: Task) -> int:
    """Carry a task out and print its result; the exit code."""
    from vv_agent import process
    from vv_agent.config import ExecutionMode
    from vv_agent.llm.provider import VvLlmModelProvider
    from vv_agent.llm.reference import ModelRef
    from vv_agent.llm.settings_file import find_settings
    from vv_agent.runner import Runner
    from vv_agent.settings import read_settings

    options = model_settings(task)
    settings = read_settings()
    path = find_settings(task.settings_file, settings.local_settings, Path.cwd())
    provider = VvLlmModelProvider.from_settings_file(path)
    model = ModelRef.backend(task.backend, task.model)
    resolved = provider.resolve(model)
    key = task.checkpoint_key or new_key()
    store = process.store_at(settings.store)
    config = _config(task, key, options, store)
    if task.detach:
        config = _detached(config, store, settings)
    elif task.distributed:
        config = _with(config, execution_mode=ExecutionMode.DISTRIBUTED)
    runner = Runner(model_provider=provider, workspace=task.workspace, settings=settings)
    handle = runner.start(agent_of(task, resolved), task.user_prompt, run_config=_with(config, model=model))
    if task.detach:
        _print({"status": "running", "checkpoint_key": key})
        _tell(f"the run is queued; watch it: vv-agent runs watch {shlex.quote(key)}")
        return 0
    result = follow(handle, process.engine_for(store, settings), _narrator(task, store, key))
    if result is None:
        return 130
    _print(summary(result, resolved, key if task.checkpoint_key or task.distributed else None))
    _say_what_is_next(store, key)
    return 3 if task.distributed and result.status.value in WAITING else 0


WAITING = ("wait_user", "reconciliation_required")
"""Statuses of a run that waits for a person."""


def new_key() -> str:
    """A key for a run that was given none."""
    return f"task_{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}_{secrets.token_hex(2)}"


def model_settings(task: Task) -> ModelSettings:
    """The options of the model's calls; a wrong one is `usage_invalid`."""
    from pydantic import ValidationError

    from vv_agent.llm.settings import ModelSettings

    try:
        return ModelSettings.from_wire(task.model_settings)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = str(fault["loc"][0])
        option, value = f"--{name.replace('_', '-')}", task.model_settings[name]
        raise usage(f"{option} {value} is not allowed: {fault['msg'].lower()}") from None


def agent_of(task: Task, resolved: ResolvedModelConfig) -> Agent:
    """The agent of a direct task: it is offered the built-in tools of its type, and a text without a tool call is its
    answer."""
    from vv_agent.agent import Agent, NoToolPolicy

    instructions = (
        "You carry out one task, with the tools you have, in the files of the workspace. When it is done, answer with "
        f"what you found or did. Answer in the language {task.language} unless the task asks for another one."
    )
    return Agent(
        name="vv-agent", instructions=instructions, no_tool_policy=NoToolPolicy.FINISH,
        metadata=task_metadata(task, resolved),
    )  # fmt: skip


def task_metadata(task: Task, resolved: ResolvedModelConfig) -> dict[str, Any]:
    """What the run's metadata say of the task and of what its model can do."""
    kind = {"agent_type": task.agent_type} if task.agent_type else {}
    return {"language": task.language, **kind, **resolved.capabilities()}


def summary(result: RunResult, resolved: ResolvedModelConfig, key: str | None) -> dict[str, Any]:
    """The JSON of a result; `key` is shown where the caller asked for a durable run."""
    raw, public = result.raw_result, resolved.to_public()
    shown = {"checkpoint_key": key} if key is not None else {}
    return {
        "status": result.status.value,
        "final_answer": raw.final_answer,
        "wait_reason": raw.wait_reason,
        "error": raw.error,
        "cycles": len(raw.cycles),
        "todo_list": raw.shared_state.get("todo_list", []),
        "resolved": {name: public[name] for name in ("backend", "selected_model", "model_id", "endpoint")},
        **shown,
    }


def _config(task: Task, key: str, options: ModelSettings, store: CheckpointStore) -> RunConfig:
    """The run is always stored, so that whatever happens to this process it can be gone on with."""
    from vv_agent.checkpoint.config import CheckpointConfig, ResumePolicy
    from vv_agent.config import RunConfig
    from vv_agent.definition import CapabilityRef

    metadata = CapabilityRef(id="vv_agent.cli.task_metadata", version="1")
    checkpoint = CheckpointConfig(
        key=key, store=store, resume_policy=ResumePolicy.RESUME_IF_PRESENT,
        capability_refs={"behavior_affecting_run_metadata": metadata},
    )  # fmt: skip
    return RunConfig(checkpoint_config=checkpoint, max_cycles=task.max_cycles, model_settings=options)


def _with(config: RunConfig, **changes: Any) -> RunConfig:
    from dataclasses import replace

    return replace(config, **changes)


def _detached(config: RunConfig, store: CheckpointStore, settings: Settings) -> RunConfig:
    """The run is left to workers, also when none is there yet."""
    from vv_agent import process
    from vv_agent.dispatch.distributed import DistributedBackend

    dispatcher = process.dispatcher_for(store, settings)
    return _with(config, execution_backend=DistributedBackend(dispatcher, fallback=False))


def _narrator(task: Task, store: CheckpointStore, key: str) -> Narrator:
    if task.verbose:
        return VerboseLines(sys.stderr)
    return Talker(sys.stderr, store, key) if task.stream or sys.stderr.isatty() else Quiet()


def _say_what_is_next(store: CheckpointStore, key: str) -> None:
    """On a terminal: how to go on with a run that waits."""
    if sys.stderr.isatty():
        from vv_agent.cli.view import read_view

        for step in read_view(store, key).next:
            _tell(f"{step.why}: {step.command}" if step.command else step.why)


def _print(value: dict[str, Any]) -> None:
    as_json(value)


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")
