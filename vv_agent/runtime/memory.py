"""Memory of a run: before each model call its messages are brought within the model's room (spec/27).

What a compaction comes to is an item of the log, saved together with the receipts of the model calls it made: a crash
before that save makes it again from the same messages, one after it goes on behind it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from vv_agent.checkpoint.record import Progress
from vv_agent.errors import ClaimLost, LlmError, RetryLater
from vv_agent.llm.base import ModelRequest, ModelResponse
from vv_agent.memory.config import Capacity, MemoryConfig, capacity
from vv_agent.memory.manager import DROP_STEP, Compaction, MemoryManager
from vv_agent.memory.provider import CompactionExhaustedError, MemoryProviderResult
from vv_agent.memory.session import SessionMemory, SessionMemoryConfig, SessionMemoryState, text_messages
from vv_agent.memory.tokens import estimate_message, estimate_tools
from vv_agent.messages import Message
from vv_agent.runtime import journal, model_call
from vv_agent.runtime.control import HookFailed
from vv_agent.runtime.eventlog import build
from vv_agent.runtime.hooks import HOOK_CODE, host_call
from vv_agent.runtime.output import Stop
from vv_agent.runtime.run import Run
from vv_agent.runtime.transcript import storable
from vv_agent.tools import artifacts
from vv_agent.usage import TokenUsage, normalize_token_usage

if TYPE_CHECKING:
    from vv_agent.llm.base import Model
    from vv_agent.llm.reference import ResolvedModelConfig
    from vv_agent.llm.settings import ModelSettings
    from vv_agent.runtime.program import Program

MAX_REFUSALS = 3
"""Prompts a model may refuse as too long in one cycle."""
_TOO_LONG = (
    "prompt is too long", "prompt_too_long", "context_length_exceeded", "maximum context length", "request too large",
    "too many tokens",
)  # fmt: skip
_ANSWER = 2_000
"""Tokens the run's own model may use for a summary, however short its turns are to be."""
_FACTS = 500
"""Tokens the session memory has in the smallest window."""
_SHORT = 2_000
"""Tokens below which a prompt says nothing about how the provider counts texts."""
_LEAST, _MOST = 0.25, 4.0
"""What a provider's count may be of our estimate: beyond that it counts something else."""
Rewrite = Callable[[Sequence[Message]], Sequence[Message]]
"""Hooks before a compaction: messages -> messages."""


@dataclass(frozen=True)
class Route:
    """A model that is asked beside the turns."""

    model: Model
    resolved: ResolvedModelConfig
    settings: ModelSettings


@dataclass(frozen=True)
class Setup:
    """What a program says about memory."""

    config: MemoryConfig
    room: Capacity
    summary: Route
    summary_room: int
    """Tokens a request for a summary may have."""
    extraction: Route | None
    extraction_room: int
    """The same of a request for facts."""
    facts: int
    """Tokens the facts of the session memory may have."""
    overhead: int
    """Estimated tokens of the tool schemas."""
    quiet: int
    """Tokens up to which nothing is to be done; -1 for a run with a session memory, which is looked at each time.
    No number is too many where nothing would be few enough."""

    @classmethod
    def of(cls, program: Program) -> Setup:
        config, own = MemoryConfig.from_metadata(program.definition.run_metadata), program.resolved
        room = _room(config, program.settings, own)
        summary = _route(program, config.memory_summary_backend, config.memory_summary_model)
        extraction = _route(program, config.session_memory_extraction_backend, config.session_memory_extraction_model)
        told = program.settings.max_tokens
        bare = program.settings.model_copy(
            update={"response_format": None, "max_tokens": None if told is None else max(told, _ANSWER)}
        )
        return cls(
            config=config, room=room, summary=summary or Route(program.model, own, bare), extraction=extraction,
            summary_room=min(room.prompt_capacity, _whole(summary, room)), extraction_room=_whole(extraction, room),
            facts=min(SessionMemoryConfig.max_tokens, max(room.effective_threshold // 4, _FACTS)),
            overhead=estimate_tools(program.advertised), quiet=_quiet(config, room),
        )  # fmt: skip


def _quiet(config: MemoryConfig, room: Capacity) -> int:
    if config.session_memory_enabled and (config.session_memory_extraction_model or config.session_memory_seed):
        return -1
    if not room.effective_threshold:
        return sys.maxsize
    if not config.include_memory_warning:
        return room.microcompact_threshold
    return min(room.microcompact_threshold, room.effective_threshold * config.warning_threshold_percentage // 100 - 1)


def _whole(route: Route | None, room: Capacity) -> int:
    """Tokens a request to a model beside the turns may have; without one the run's own is asked."""
    if route is None:
        return room.prompt_capacity
    return _room(MemoryConfig(compact_threshold=0), route.settings, route.resolved).prompt_capacity


def _room(config: MemoryConfig, settings: ModelSettings, resolved: ResolvedModelConfig) -> Capacity:
    return capacity(
        config, max_tokens=settings.max_tokens, context_length=resolved.context_length,
        max_output=resolved.max_output_tokens,
    ).fitted()  # fmt: skip


def _route(program: Program, backend: str | None, model: str | None) -> Route | None:
    if model is None or program.provider is None:
        return None
    from vv_agent.llm.client import as_model
    from vv_agent.llm.reference import ModelRef

    resolved = program.provider.resolve(ModelRef(model, backend))
    client = as_model(program.provider.client(resolved))
    return Route(client, resolved, program.provider.default_settings(resolved))


def keep_within(run: Run, rewrite: Rewrite | None = None) -> None:
    """The pass of every cycle, before the model is called. Raises what a model call raises, `Exhausted`, `GivenUp`."""
    if run.cycle in run.transcript.compactions:
        return
    if rewrite is None and _tokens(run, run.transcript.estimated) <= run.program.memory.quiet:
        return
    work = _Pass(run, 0)
    messages = run.transcript.messages
    given = messages if rewrite is None else _rewritten(messages, rewrite)
    length = work.count(given)
    trigger = work.trigger(length)
    shown = work.extracted(list(given), length)
    if trigger is None:
        work.settle(shown, Compaction(tuple(work.manager.warned(shown, length))))
    else:
        work.compact(shown, length, trigger, lambda: work.manager.run(shown, length))


def _tokens(run: Run, estimated: int) -> int:
    """Tokens of a prompt by its estimate, corrected by what the provider said about the last one."""
    overhead, measured = run.program.memory.overhead, run.transcript.measured
    reported = normalize_token_usage(measured[0]).input_tokens if measured else None
    if measured is None or not reported:
        return estimated + overhead
    known = measured[1] + overhead
    if known < _SHORT:  # what a provider adds to each prompt would look like a factor
        return estimated + overhead + min(max(reported - known, 0), _SHORT)
    return int((estimated + overhead) * min(max(reported / known, _LEAST), _MOST))


def _rewritten(messages: Sequence[Message], rewrite: Rewrite) -> Sequence[Message]:
    """What hooks made of the messages, as it can be stored; `HookFailed` for what is no message."""
    given = rewrite(messages)
    if given is messages:
        return messages
    if not all(isinstance(message, Message) for message in given):
        raise HookFailed("runtime_hook_failed", "before_memory_compact gave something that is no Message")
    return [Message.from_wire(storable(message.to_wire())) for message in given]


def too_long(error: LlmError) -> bool:
    """Whether a model refused a prompt because of its length."""
    if error.kind == "rate_limited":  # too many tokens a minute
        return False
    return error.kind == "context_length" or any(word in error.message.lower() for word in _TOO_LONG)


def after_refusal(run: Run, error: LlmError) -> None:
    """Make the prompt shorter after the model refused it; `CompactionExhaustedError` when it has done so too often."""
    attempt = run.transcript.compactions.get(run.cycle, 0) + 1
    if attempt > MAX_REFUSALS:
        raise CompactionExhaustedError(MAX_REFUSALS, error.message)
    work, shown = _Pass(run, attempt), list(run.transcript.messages)
    length = _tokens(run, run.transcript.estimated)

    def shorter() -> Compaction:
        if attempt == 1:
            return work.manager.run(shown, length, force=True)
        left, changed = work.manager.emergency_compact(shown, drop_ratio=DROP_STEP * attempt)
        return Compaction(tuple(left), "emergency" if changed else "none")

    work.compact(shown, length, "prompt_too_long", shorter)


@dataclass
class _Pass:
    """One compaction of a run. `stage` is 0, or how often the model refused the prompt of this cycle."""

    run: Run
    stage: int
    asked: list[TokenUsage] = field(default_factory=list)
    """The usage of the model calls it made."""

    def __post_init__(self) -> None:
        run, self.setup = self.run, self.run.program.memory
        self.session = self._session()
        self.manager = MemoryManager(
            config=self.setup.config, capacity=self.setup.room, session_memory=self.session, keep=self._keep,
            ask=lambda messages: self._ask("memory_summary", self.setup.summary, messages),
            ask_room=self.setup.summary_room, workspace=run.program.workspace, count=self.count,
            task=run.transcript.inputs.get(run.body.segment, "").strip(),
        )  # fmt: skip

    # Counting.

    def count(self, messages: Sequence[Message]) -> int:
        return _tokens(self.run, sum(map(estimate_message, messages)))

    def trigger(self, length: int) -> str | None:
        """Why something is to be done."""
        room = self.setup.room
        if not room.effective_threshold:  # no prompt would do: only the model itself can say what is too long
            return None
        if length > room.effective_threshold:
            return "full_threshold"
        return "micro_threshold" if length > room.microcompact_threshold else None

    # The session memory.

    def _session(self) -> SessionMemory | None:
        """The session memory as it stands; None for a run that has none."""
        config, run = self.setup.config, self.run
        if not config.session_memory_enabled or not (self.setup.extraction or config.session_memory_seed):
            return None
        session = SessionMemory(
            SessionMemoryConfig(language=config.language, max_tokens=self.setup.facts), workspace=run.program.workspace,
            scope=run.body.session_id or run.key, check=run.hold.check, room=self.setup.extraction_room,
        )  # fmt: skip
        if (route := self.setup.extraction) is not None:
            session.ask = lambda messages: self._ask("session_memory", route, messages)
        if run.transcript.session:
            session.state = SessionMemoryState.from_wire(run.transcript.session)
        else:
            session.load()
            session.add(config.session_memory_seed, 0)
        return session

    def extracted(self, shown: list[Message], length: int) -> list[Message]:
        """The messages with the session memory in them; first new facts are asked for, if it is time."""
        session, index = self.session, self.run.index
        if session is None:
            return shown
        if session.ask is not None and session.should_extract(length, text_messages(shown)):
            session.extract(shown, current_cycle=index, current_tokens=length)
            self._keep_what_was_paid()
        return session.applied(shown)

    # Model calls and files.

    def _ask(self, slot: str, route: Route, messages: Sequence[Message]) -> str | None:
        """The answer of a model beside the turns; None when there is none to be had: memory does without it."""
        run, slot = self.run, f"{slot}:{self.stage}"
        response = None
        try:
            while response is None:
                known = journal.settle_aside(run, slot)
                if isinstance(known, Stop):
                    raise journal.GivenUp(known)
                if known is not None:
                    self._receive(slot, (known.get("token_usage") or {}).get("provider_usage"), None, None)
                    return str(known.get("content", ""))
                response = self._called(slot, route, messages)
        except RetryLater:  # the run waits for it, as for one of its turns
            raise
        except LlmError as error:
            details = {"operation": slot, "error": error.message}
            run.emit("diagnostic", level="warning", code="memory_model_failed", details=details)
            return None
        self._receive(slot, response.usage.raw, response.usage.source, response.usage.cache_status)
        return response.content

    def _called(self, slot: str, route: Route, messages: Sequence[Message]) -> ModelResponse | None:
        """What the model says; None when that was lost and somebody else has to say what becomes of it."""
        run, strict = self.run, self.run.program.reconciles_models
        if strict:
            journal.start_model(run, slot)
        metadata = {"run_id": run.body.run_id, "trace_id": run.body.trace_id, "cycle_index": run.index, "purpose": slot}
        request = ModelRequest(
            route.resolved.model_id, messages, settings=route.settings, turn=run.transcript.turn_n, metadata=metadata
        )
        try:
            return model_call.call_aside(run, slot, route.model, request)
        except LlmError as error:
            if strict and error.definite:
                journal.unstart_model(run, slot)
            elif strict:
                journal.doubt_model(run, slot)
                return None
            raise

    def _receive(self, slot: str, usage: Any, source: str | None, cache: str | None) -> None:
        raw = storable(usage) if isinstance(usage, Mapping) else None
        self.run.log(["x", self.run.cycle, raw, source, cache])
        if self.run.program.reconciles_models:
            self.run.note(model_call.operation_id(self.run, slot), None)
        self.asked.append(normalize_token_usage(raw, source, cache))

    def _keep(self, call_id: str, text: str) -> str | None:
        """Write a large result into the workspace; None when that fails."""
        run, folder = self.run, self.setup.config.tool_result_artifact_dir
        try:
            return artifacts.keep(run.program.workspace, run.cycle, call_id, text, run.hold.check, folder=folder)
        except ClaimLost:
            raise
        except Exception:  # no workspace, a path outside it, a storage that refuses
            return None

    # What it comes to.

    def compact(self, shown: list[Message], length: int, trigger: str, carry_out: Callable[[], Compaction]) -> None:
        """Tell of a compaction, carry it out, and log what it came to."""
        self._tell(
            "before_compact", "memory_compact_started", shown=shown, message_count=len(shown), trigger=trigger,
            estimated_tokens=length, **self.setup.room.to_event(),
        )  # fmt: skip
        done = carry_out()
        if self.session is not None and list(done.messages) != shown:
            self.session.shorter(self.count(done.messages))
        self._tell(
            "after_compact", "memory_compact_completed", before_count=len(shown), after_count=len(done.messages),
            mode=done.mode, changed=list(done.messages) != shown, summary_tokens=done.summary_tokens,
        )  # fmt: skip
        self.settle(shown, done)

    def settle(self, shown: list[Message], done: Compaction) -> None:
        """Log the messages and the session memory; save them if they were paid for, or must be counted."""
        run = self.run
        if self.stage or list(done.messages) != run.transcript.messages:
            for item in run.transcript.rewritten(run.cycle, self.stage, done.messages):
                run.log(item)
        self._keep_what_was_paid(always=bool(self.stage))

    def _keep_what_was_paid(self, *, always: bool = False) -> None:
        """Save what model calls came to in one with their receipts and what they cost."""
        run, asked = self.run, self.asked
        if self.session is not None and (state := self.session.state.to_wire()) != run.transcript.session:
            run.log(["y", state])
        self.asked = []
        if run.account is not None:
            for usage in asked:
                run.account.after_aside(run, usage)
        if asked or always:
            run.save(Progress())

    def _tell(self, stage: str, event_type: str, shown: Sequence[Message] = (), **fields: Any) -> None:
        """Make an event, show it to the providers, and keep what they say in its metadata."""
        run = self.run
        emitted = run.number(event_type, None, **fields)
        metadata = {"messages": [message.to_wire() for message in shown]} if shown else {}
        results, errors = {}, []
        for provider in run.program.memory_providers:
            name = getattr(provider, "name", "") or type(provider).__name__
            told = emitted._replace(fields={**fields, "metadata": metadata} if metadata else fields)
            event, call = build(run.body, told), getattr(provider, stage)
            try:
                result = host_call(run, name, HOOK_CODE, partial(call, event), MemoryProviderResult)
            except HookFailed as failed:
                error = failed.__cause__ or failed
                kind = type(error).__name__
                errors.append({"provider": name, "stage": stage, "error": str(error), "error_type": kind})
            else:
                if result is not None:
                    results[name] = storable(result.metadata)
        said = {"memory_provider_results": results, "memory_provider_errors": errors}
        kept = storable({name: value for name, value in said.items() if value})
        run.tell(emitted._replace(fields={**fields, "metadata": kept}) if kept else emitted)
