"""The jobs that test processes run: an agent whose model follows the plan in its input, and tools with effects.

The input is JSON: `{"plan": [step, ...]}`. A step is `{"say": text}` or `{"call": [[tool, arguments], ...]}`, with
`sleep` (seconds the model thinks) if wanted. The model tells the recorder when it begins and ends, and a digest of
all it saw, so that two commits of one cycle would show as two digests.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests import effects
from vv_agent import (
    AfterCycleDecision,
    AfterCycleHook,
    AfterCycleSnapshot,
    Agent,
    AgentResult,
    ExecutionMode,
    GuardrailResult,
    NoToolPolicy,
    OutputGuardrail,
    OutputRepairRequest,
    OutputValidation,
    OutputValidationContext,
    OutputValidationResult,
    RunConfig,
    RunContext,
    Runner,
    SubAgentConfig,
    ToolContext,
    build_default_registry,
    function_tool,
    process,
)
from vv_agent.dispatch.distributed import DistributedBackend
from vv_agent.llm.base import ModelRequest, ModelResponse, Part
from vv_agent.llm.client import StreamingClient, parts_of
from vv_agent.llm.reference import ModelRef
from vv_agent.messages import Message, ToolCall
from vv_agent.result import RunResult
from vv_agent.settings import read_settings
from vv_agent.testing import ScriptedProvider


@function_tool(idempotency="supported")
def charge(n: int, context: ToolContext, seconds: float = 0.0) -> str:
    """Charge an account; a repeated key charges once."""
    where = {"run_id": context.run_id, "cycle": context.cycle_index, "attempt": context.attempt}
    effects.tell("tool_begins", **where)
    verdict = effects.tell("charge", key=context.idempotency_key, **where)
    if seconds:
        context.cancellation.wait(seconds)
    effects.tell("tool_ends", **where)
    assert verdict in ("applied", "repeated")
    return f"charged {n}"


@function_tool(idempotency="supported", needs_approval=True)
def pay(n: int, context: ToolContext) -> str:
    """Pay, after somebody said yes; a repeated key pays once."""
    effects.tell("pay", key=context.idempotency_key, run_id=context.run_id, cycle=context.cycle_index)
    return f"paid {n}"


@function_tool
def launch(n: int, context: ToolContext, seconds: float = 0.0) -> str:
    """Launch something that cannot be taken back."""
    where = {"run_id": context.run_id, "cycle": context.cycle_index, "attempt": context.attempt}
    effects.tell("tool_begins", **where)
    effects.tell("launch", **where)
    end = time.monotonic() + seconds
    while time.monotonic() < end:  # deaf to cancels
        time.sleep(0.02)
    effects.tell("tool_ends", **where)
    return f"launched {n}"


class PlanModel(StreamingClient):
    """Follows the plan that stands in the first message of the user."""

    def stream(self, request: ModelRequest) -> Iterator[Part]:
        plan = _plan(request.messages)
        where = {"run_id": str(request.metadata["run_id"]), "cycle": int(request.metadata["cycle_index"])}
        effects.tell("model_begins", **where)
        effects.tell("sees", key=_digest(request), **where)
        step = plan[request.turn]
        if step.get("sleep"):
            request.cancellation.wait(step["sleep"])
        if step.get("deaf"):
            time.sleep(step["deaf"])
        effects.tell("model_ends", **where)
        calls = tuple(
            ToolCall(f"call_{request.turn}_{position}", name, json.dumps(arguments))
            for position, (name, arguments) in enumerate(step.get("call", ()))
        )
        yield from parts_of(ModelResponse(step.get("say", ""), calls))


def _plan(messages: Sequence[Message]) -> list[dict[str, Any]]:
    plan: list[dict[str, Any]] = json.loads(next(m.content for m in messages if m.role == "user"))["plan"]
    return plan


def _digest(request: ModelRequest) -> str:
    turns = sum(message.role == "assistant" for message in request.messages)
    whole = json.dumps([message.to_wire() for message in request.messages], sort_keys=True)
    return f"{turns}:{hashlib.sha256(whole.encode()).hexdigest()[:16]}:{request.metadata['run_id']}"


class PlanProvider(ScriptedProvider):
    """A provider whose only model is `PlanModel`."""

    def __init__(self) -> None:
        super().__init__([])

    def client(self, resolved: Any) -> PlanModel:  # type: ignore[override]
        return PlanModel()

    def default_model_ref(self) -> ModelRef:
        return ModelRef.backend(self.BACKEND, self.MODEL)


PROVIDER = PlanProvider()


def agent(policy: NoToolPolicy = NoToolPolicy.FINISH) -> Agent:
    """The agent of all jobs."""
    registry = build_default_registry()
    builtin = [registry.get(name) for name in ("task_finish", "write_file", "bash", "check_background_command")]
    return Agent(name="worker", instructions="Work.", tools=[charge, pay, launch, *builtin], no_tool_policy=policy)


def lead() -> Agent:
    """An agent that may give work to `clerk` and hand over to `writer`."""
    finish = build_default_registry().get("task_finish")
    writer = Agent(name="writer", instructions="Write.", tools=[charge], no_tool_policy=NoToolPolicy.FINISH)
    clerk = SubAgentConfig(ScriptedProvider.MODEL, system_prompt="Work.")
    return Agent(
        name="lead", instructions="Lead.", tools=[charge, finish], no_tool_policy=NoToolPolicy.FINISH,
        sub_agents={"clerk": clerk}, handoffs=[writer],
    )  # fmt: skip


class Watcher(AfterCycleHook):
    """Tells of each cycle, and lets nothing be charged after the first one."""

    async def after_cycle(self, snapshot: AfterCycleSnapshot) -> AfterCycleDecision | None:
        effects.tell("after_cycle", cycle=snapshot.cycle_index)
        return AfterCycleDecision.go_on(disallow_tools=["charge"]) if snapshot.cycle_index == 1 else None


class Signs(OutputGuardrail):
    """Tells of an output, and signs it."""

    def check(self, context: RunContext, result: AgentResult) -> GuardrailResult:
        effects.tell("guardrail", run_id=context.run_id)
        return GuardrailResult.allow(f"{result.final_answer}, sincerely")


def long_enough(output: str, context: OutputValidationContext) -> OutputValidationResult:
    return OutputValidationResult.ok() if len(output) > 20 else OutputValidationResult.fail("too_short")


def lengthened(request: OutputRepairRequest) -> str:
    effects.tell("repair")
    return f"{request.invalid_output}, and so on"


WATCHER, SIGNS = Watcher(), Signs()


def checked_agent() -> Agent:
    """The agent of jobs whose output is checked."""
    validation = OutputValidation(validator=long_enough, repair=lengthened)
    return replace(agent(), output_guardrails=[SIGNS], output_validation=validation)


def plan(*steps: dict[str, Any]) -> str:
    return json.dumps({"plan": list(steps)})


GUARDED = plan({"call": [["pay", {"n": 1}]]}, {"say": "done"})
JOBS: dict[str, str] = {
    "keyed": plan({"call": [["charge", {"n": 1}]]}, {"say": "done"}),
    "unsafe": plan({"call": [["launch", {"n": 1}]]}, {"say": "done"}),
    "decidable": plan({"call": [["write_file", {"path": "out.txt", "content": "apple"}]]}, {"say": "done"}),
}


def summary(result: RunResult) -> dict[str, Any]:
    """What a test wants to know of a result."""
    observation = result.resume_observation
    return {
        "status": result.status.value, "reason": result.completion_reason, "output": result.final_output,
        "cycles": len(result.raw_result.cycles), "code": result.error_code,
        "observation": observation.to_wire() if observation else None,
    }  # fmt: skip


def inline() -> None:
    """`inline JOB KEY WORKSPACE`: run a job in this process, or go on with it, and print its result."""
    job, key, workspace = sys.argv[1:]
    runner = Runner(model_provider=PROVIDER, workspace=workspace)
    result = runner.run_sync(agent(), JOBS[job], run_config=RunConfig(checkpoint_key=key))
    print(json.dumps(summary(result)))


def submit() -> None:
    """`submit JOB KEY WORKSPACE`: start a distributed run and leave it to workers."""
    job, key, workspace = sys.argv[1:]
    runner = Runner(model_provider=PROVIDER, workspace=workspace)
    config = RunConfig(checkpoint_key=key, execution_mode=ExecutionMode.DISTRIBUTED)
    runner.start(agent(), JOBS[job], run_config=config)


def submit_all() -> None:
    """`submit_all FILE POLICY WORKSPACE`: start the runs of a JSON file and leave them to workers."""
    file, policy, workspace = sys.argv[1:]
    settings = read_settings()
    dispatcher = process.dispatcher_for(process.store_at(settings.store), settings)
    backend = DistributedBackend(dispatcher, fallback=False)
    runner = Runner(model_provider=PROVIDER, workspace=workspace)
    for key, text in json.loads(Path(file).read_text()).items():
        config = RunConfig(checkpoint_key=key, execution_backend=backend)
        runner.start(agent(NoToolPolicy(policy)), text, run_config=config)


def cancel() -> None:
    """`cancel KEY`: cancel a run from here; prints whether it was accepted and where the run stands."""
    handle = Runner().attach(sys.argv[1])
    accepted = handle.cancel("enough")
    print(json.dumps({"accepted": accepted}))
