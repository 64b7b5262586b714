"""What a new run begins with: the input that guardrails let pass, the system prompt, the skills it may activate."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vv_agent._loop import run_async
from vv_agent.agent import Agent, RunContext
from vv_agent.config import RunConfig
from vv_agent.context import ContextFragment, ContextProvider, ContextRequest
from vv_agent.definition import RunDefinition
from vv_agent.errors import ConfigError, VVAgentError
from vv_agent.hooks import GuardrailResult
from vv_agent.prompt.sections import SEPARATOR, assemble_fragments
from vv_agent.prompt.system import skills_block, sub_agents_block
from vv_agent.prompt.texts import DEFAULT_LANGUAGE
from vv_agent.runtime.control import BLOCKED_CODE, GUARD_CODE
from vv_agent.runtime.hooks import awaited, context_of, failure, host_call
from vv_agent.runtime.program import Program
from vv_agent.runtime.run import Run
from vv_agent.runtime.transcript import clean
from vv_agent.skills.activation import AVAILABLE
from vv_agent.skills.catalog import normalize_skill_list


@dataclass(frozen=True)
class Opening:
    """The prompt, and what the run's record and events are told when it is created."""

    prompt: str
    prompt_facts: Mapping[str, Any] = field(default_factory=dict)
    """What the system message keeps of its sections."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """Goes over the caller's shared state."""
    notices: Sequence[Mapping[str, Any]] = ()
    """Fields of diagnostics: what was left out, and why."""
    has_skills: bool = False
    steady: str | None = None
    """Of a prompt that each start makes anew: the instructions that must stand in the prompt of a run it goes on with,
    "" when they are made anew too."""

    def accepts(self, prompt: str) -> bool:
        """Whether this start may go on with a run that began with another prompt: it keeps that one."""
        return self.steady is not None and _holds(prompt, self.steady)


def open_run(
    agent: Agent,
    config: RunConfig,
    context: RunContext,
    request: ContextRequest,
    find_existing: Callable[[], RunDefinition | None],
) -> Opening:
    """Ask instructions, providers and folders of skills, unless there is a run that this start goes on with.

    Raises `ConfigError` `context_provider_failed`, `SkillError`, and what an instructions function raises.
    """
    listed = config.shared_state.get(AVAILABLE, config.metadata.get(AVAILABLE)) or None
    steady = None
    if callable(agent.instructions) or config.context_providers or listed:
        steady = "" if callable(agent.instructions) else agent.instructions.strip()
        if (existing := find_existing()) is not None:
            return _going_on(existing, steady)
    instructions = agent.resolve_instructions(context)
    skills = normalize_skill_list(listed, workspace=request.workspace)
    block = skills_block(skills, str(config.metadata.get("language") or DEFAULT_LANGUAGE))
    bundle = assemble_fragments([
        ContextFragment("agent_instructions", instructions, stable=True, priority=0, source="agent.instructions"),
        ContextFragment(
            "configured_sub_agents",
            sub_agents_block({name: one.description for name, one in agent.sub_agents.items()}),
            stable=True, priority=10, source="agent.sub_agents",
        ),
        ContextFragment("available_skills", block, stable=True, priority=20, source="run.available_skills"),
        *_provided(config.context_providers, request),
    ], config.max_context_chars)  # fmt: skip
    omitted = bundle.omitted_section_ids
    notices = [
        _notice(code="skill_invalid", skill=entry.name, error=entry.load_error) for entry in skills if entry.load_error
    ]
    if omitted:
        limit = config.max_context_chars
        notices.append(_notice(code="prompt_section_omitted", sections=list(omitted), max_context_chars=limit))
    return Opening(
        prompt=bundle.prompt,
        prompt_facts=bundle.to_metadata(),
        state={AVAILABLE: [entry.to_wire() for entry in skills]} if listed else {},
        notices=notices,
        has_skills=bool(block),
        steady=steady,
    )


class InputBlocked(VVAgentError):
    """A guardrail did not let the input pass: there is no run. Never leaves the Runner."""


def admitted_input(
    guardrails: Sequence[Any], context: RunContext, text: str, find_existing: Callable[[], RunDefinition | None]
) -> str:
    """The input after the guardrails, in order; the first one that does not allow it decides (`InputBlocked`). The one
    of a run that this start goes on with passed before."""
    if not guardrails or ((found := find_existing()) is not None and found.root_input == text):
        return text
    for guardrail in guardrails:
        try:
            verdict = awaited(guardrail.check(context, text))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # as in a run: it is the guardrail that failed
            raise InputBlocked(*_told(guardrail, error)) from error
        name = type(guardrail).__name__
        if verdict is not None and not isinstance(verdict, GuardrailResult):
            raise InputBlocked(GUARD_CODE, f"{name} gave {type(verdict).__name__}, not a GuardrailResult or None")
        if verdict is not None and verdict.action != "allow":
            raise InputBlocked(BLOCKED_CODE, clean(verdict.message))
        if verdict is not None and verdict.value is not None:
            text = clean(str(verdict.value))
    return text


def input_for(run: Run, program: Program, text: str) -> str | InputBlocked:
    """What the input guardrails of an agent that is to work next make of its input, or why it must not have it."""
    guardrails = program.hooks.input_guardrails

    def admitted() -> str | InputBlocked:
        try:
            return admitted_input(guardrails, context_of(run), text, lambda: None)
        except InputBlocked as block:
            return block

    if not guardrails:
        return text
    found: str | InputBlocked = host_call(run, "the input guardrails", GUARD_CODE, admitted)
    return found


def _told(guardrail: Any, error: BaseException) -> tuple[str, str]:
    failed = failure(type(guardrail).__name__, GUARD_CODE, error)
    return failed.code, failed.message


def _going_on(existing: RunDefinition, steady: str) -> Opening:
    """With the prompt the run began with; one that has not these instructions is another run's, which is refused."""
    stored = existing.compiled_prompt
    names = {tool.tool_schema.function.name for tool in existing.tools}
    return Opening(stored if _holds(stored, steady) else steady, has_skills="activate_skill" in names, steady=steady)


def _provided(providers: Sequence[Any], request: ContextRequest) -> Iterator[ContextFragment]:
    for provider in providers:
        if not isinstance(provider, ContextProvider):
            raise ConfigError("run_config_invalid", f"context provider {provider!r} has no method fragments(request)")
        try:
            given = provider.fragments(request)
            found = list(run_async(given) if inspect.isawaitable(given) else given)
        except Exception as error:  # the host's own code
            raise ConfigError(
                "context_provider_failed", f"context provider failed: {type(error).__name__}: {error}"
            ) from error
        if wrong := [item for item in found if not isinstance(item, ContextFragment)]:
            raise ConfigError(
                "context_provider_failed", f"context provider failed: it gave {wrong[0]!r:.200}, no ContextFragment"
            )
        yield from found


def _notice(*, code: str, **details: Any) -> dict[str, Any]:
    return {"level": "warning", "code": code, "details": details}


def _holds(prompt: str, section: str) -> bool:
    """Whether a text is among the sections a prompt was joined from; no text is."""
    return not section or f"{SEPARATOR}{section}{SEPARATOR}" in f"{SEPARATOR}{prompt}{SEPARATOR}"
