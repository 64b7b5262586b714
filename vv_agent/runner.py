"""The Runner: starts, resumes and follows runs. It compiles an agent into a record and lets a backend carry it on."""

from __future__ import annotations

import asyncio
import contextvars
import secrets
import shlex
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vv_agent import process, references
from vv_agent._facade import on_class_too
from vv_agent.agent import Agent
from vv_agent.checkpoint.admission import Admission, admit
from vv_agent.checkpoint.config import CheckpointConfig, ResumePolicy, validate_key
from vv_agent.checkpoint.identity import tool_operation_id
from vv_agent.checkpoint.record import Head, NewRun, ParkReason, Seen, Snapshot, State
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.config import ExecutionMode, RunConfig, effective_config
from vv_agent.definition import RunDefinition
from vv_agent.dispatch.base import Backend, CycleDispatcher, drive, hint
from vv_agent.dispatch.inline import InlineBackend
from vv_agent.errors import CheckpointError, ConfigError, VVAgentError
from vv_agent.events import RunEvent
from vv_agent.llm.reference import ModelProvider
from vv_agent.messages import Message
from vv_agent.result import ResolvedModel, RunResult, RunState
from vv_agent.results import AgentStatus, ResumeObservation
from vv_agent.run_handle import RunHandle
from vv_agent.runtime import eventlog, extensions, journal
from vv_agent.runtime.body import Body
from vv_agent.runtime.compile import Layers, compile_run
from vv_agent.runtime.context import Engine
from vv_agent.runtime.feed import EventFeed
from vv_agent.runtime.inbox import answer_signal, resume_signal
from vv_agent.runtime.output import agent_result
from vv_agent.runtime.patience import patiently
from vv_agent.runtime.program import Program, check_compatible
from vv_agent.runtime.recipe import CycleRecipe
from vv_agent.runtime.tail import rests
from vv_agent.runtime.transcript import Transcript, clean, log_entry, message_item, pack, unpack
from vv_agent.settings import Settings, read_settings

if TYPE_CHECKING:
    from vv_agent.dispatch.threaded import ThreadBackend

T = TypeVar("T")
_threads: list[ThreadBackend] = []


class Runner:
    """Runs agents.

    `model_provider` serves agents and configs that bring none (default: the settings file); `workspace` is the folder
    of the file tools; `default_run_config` stands below each run's own config. One runner may start any number of
    runs at once. Called on the class, a method works on `Runner()`: settings file, default store, no default config.

    Example:
        >>> from vv_agent import Agent, NoToolPolicy, Runner
        >>> from vv_agent.testing import ScriptedProvider
        >>> runner = Runner(model_provider=ScriptedProvider(["Hello."]))
        >>> agent = Agent(name="greeter", instructions="Greet.", no_tool_policy=NoToolPolicy.FINISH)
        >>> runner.run_sync(agent, "Hi").final_output
        'Hello.'
    """

    def __init__(
        self,
        *,
        model_provider: ModelProvider | None = None,
        workspace: str | Path | None = None,
        default_run_config: RunConfig | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._provider = model_provider
        self._workspace = workspace
        self._default = default_run_config
        self._settings = settings

    @classmethod
    def from_settings(cls, path: str | Path, *, backend: str | None = None, **options: Any) -> Runner:
        """A runner on the models of a settings file; `backend` serves models that name none."""
        from vv_agent.llm.provider import VvLlmModelProvider

        provider = VvLlmModelProvider.from_settings_file(path)
        return cls(model_provider=provider.with_default_backend(backend) if backend else provider, **options)

    @on_class_too
    def configured(self, default_run_config: RunConfig | None = None) -> ConfiguredRunner:
        """The same runner with another default config, which replaces this one's."""
        return ConfiguredRunner(
            model_provider=self._provider, workspace=self._workspace, settings=self._settings,
            default_run_config=default_run_config or self._default,
        )  # fmt: skip

    # Running.

    @on_class_too
    def run_sync(self, agent: Agent, input: str, *, run_config: RunConfig | None = None) -> RunResult:  # noqa: A002
        """Run an agent and wait: to its end, or until the run waits for somebody.

        A failed model is a failed result, not an exception. Raised are `ConfigError` and `CheckpointError` (nothing
        ran then) and `StoreError` (the run is as its last save left it; make the same call again).
        """
        start = self._prepare(agent, input, run_config)
        start.begin(in_caller=True)
        return start.handle.result()

    @on_class_too
    async def run(self, agent: Agent, input: str, *, run_config: RunConfig | None = None) -> RunResult:  # noqa: A002
        """The awaitable form of `run_sync`; it blocks no event loop.

        When the await is cancelled, a run of this process is cancelled; a distributed run goes on.
        """
        start = await _in_thread(lambda: self._prepare(agent, input, run_config))
        start.begin()
        try:
            return await start.handle
        except asyncio.CancelledError:
            if start.backend.local:
                start.handle.leave("The awaiting task was cancelled.")
            raise

    @on_class_too
    def start(self, agent: Agent, input: str, *, run_config: RunConfig | None = None) -> RunHandle:  # noqa: A002
        """Begin a run in the background; the handle gives its events and result."""
        start = self._prepare(agent, input, run_config, live=True)
        start.begin()
        return start.handle

    @on_class_too
    def stream_sync(
        self,
        agent: Agent,
        input: str,  # noqa: A002
        *,
        run_config: RunConfig | None = None,
    ) -> Iterator[RunEvent]:
        """The events of a run as they happen; ends with the run. Leaving the iteration early cancels a run of this
        process."""
        start = self._prepare(agent, input, run_config, live=True)
        start.begin()
        try:
            yield from start.handle.events()
            start.handle.result()  # raises what kept the run from ending
        finally:
            if start.backend.local:
                start.handle.leave("The reader of its events left.")

    @on_class_too
    async def stream(
        self,
        agent: Agent,
        input: str,  # noqa: A002
        *,
        run_config: RunConfig | None = None,
    ) -> AsyncIterator[RunEvent]:
        """`stream_sync` for `async for`."""
        start = await _in_thread(lambda: self._prepare(agent, input, run_config, live=True))
        start.begin()
        try:
            async for event in start.handle.events():
                yield event
            await start.handle
        finally:
            if start.backend.local:
                start.handle.leave("The reader of its events left.")

    @on_class_too
    def attach(self, key: str, *, store: CheckpointStore | None = None) -> RunHandle:
        """Follow a run by its key, whoever advances it. `checkpoint_not_found` if the store has none."""
        home = store or self._store_of_settings()
        snapshot = _existing(home, validate_key(key))
        engine, dispatcher = self._means(home)
        feed = EventFeed()
        handle = RunHandle(engine, dispatcher, key, snapshot.head.run_id, feed)
        _follow(engine, handle, feed, Body.unpack(snapshot.head.body, key))
        return handle

    @on_class_too
    def resume(
        self,
        state: RunState | str,
        *,
        input: str | None = None,  # noqa: A002
        store: CheckpointStore | None = None,
    ) -> RunResult:
        """Go on with a run by its key (or its waiting state) and wait for what comes of it.

        `input` answers a run that waits for its user. A run of a queue whose workers are there is only woken and
        followed; any other one is advanced here, rebuilt from its stored definition. A finished run gives its result
        again.
        """
        return self._resume(state, input, store, in_caller=True).result()

    @on_class_too
    def start_resume(
        self,
        state: RunState | str,
        *,
        input: str | None = None,  # noqa: A002
        store: CheckpointStore | None = None,
    ) -> RunHandle:
        """`resume` in the background; the handle gives the events from here on, and the result."""
        return self._resume(state, input, store, in_caller=False)

    # Details.

    def _resume(
        self, state: RunState | str, text: str | None, store: CheckpointStore | None, *, in_caller: bool
    ) -> RunHandle:
        key = state if isinstance(state, str) else state.result.checkpoint_key
        if key is None:
            raise ConfigError(
                "run_not_resumable", "the run was kept in memory only; give it a checkpoint_key next time"
            )
        home = store or self._store_of_settings()
        snapshot = _existing(home, validate_key(key))
        engine, dispatcher = self._means(home)
        feed = EventFeed()
        handle = RunHandle(engine, dispatcher, key, snapshot.head.run_id, feed)
        if snapshot.head.state is State.ENDED and text is None:
            handle.finish(lambda: read_result(engine, key, ()))
            return handle
        if snapshot.journal:
            _check_journal(home, key)
        _wake(home, dispatcher, snapshot, text)
        if _served(home, snapshot.head):  # should its workers be gone in truth, this process helps itself
            _follow(engine, handle, feed, Body.unpack(snapshot.head.body, key))
            workers = _backend(ExecutionMode.DISTRIBUTED, dispatcher, self._read_settings())
            workers.drive(engine, CycleRecipe.of(_existing(home, key).head, home.id))
            return handle

        def work() -> RunResult:
            engine.listen(key, feed)
            try:
                current = _existing(home, key).head
                if not rests(current):
                    drive(engine, CycleRecipe.of(current, home.id), resume=True)
            finally:
                engine.unlisten(key)
            return read_result(engine, key, tuple(feed.events))

        if in_caller:
            handle.finish(work)
        else:
            _in_background(lambda: handle.finish(work))
        return handle

    def _prepare(self, agent: Agent, text: str, run_config: RunConfig | None, *, live: bool = False) -> _Start:
        """Compile, and create the record or find the one to go on with."""
        if not isinstance(text, str):
            raise ConfigError("run_config_invalid", f"the input of a run is text, not {type(text).__name__}")
        config = effective_config(agent, self._default, run_config)
        settings = self._read_settings()
        mode, backend_given = _mode(config)
        checkpoint = self._checkpoint(config, mode)
        store = self._store(checkpoint)
        engine = process.engine_for(store, settings)
        key = validate_key(checkpoint.key) if checkpoint and checkpoint.key else f"checkpoint_{secrets.token_hex(16)}"
        run_id = engine.new_id("run")
        layers = Layers(
            agent=agent, default=self._default, run=run_config, config=config, provider=self._model_provider(config),
            checkpoint=checkpoint, elsewhere=mode is ExecutionMode.DISTRIBUTED,
        )  # fmt: skip
        program = compile_run(layers, clean(text), run_id=run_id, workspace=self._workspace)
        dispatcher = getattr(backend_given, "dispatcher", None) or process.dispatcher_for(store, settings)
        backend = backend_given or _backend(mode, dispatcher, settings)
        queue = _queue(backend, settings)
        hold = dispatcher.hold_ms if queue is not None else 0
        new = _new_run(key, run_id, engine, program, queue, checkpointed=checkpoint is not None, live=live, hold=hold)
        policy = checkpoint.resume_policy if checkpoint else ResumePolicy.NEW
        admitted = _admit(engine, program, new, policy, may_attach=not backend.local)
        return _Start(engine, backend, dispatcher, admitted, config)

    def _means(self, store: CheckpointStore) -> tuple[Engine, CycleDispatcher]:
        """What this process acts on runs of a store with."""
        settings = self._read_settings()
        return process.engine_for(store, settings), process.dispatcher_for(store, settings)

    def _read_settings(self) -> Settings:
        return self._settings or read_settings()

    def _store_of_settings(self) -> CheckpointStore:
        default = self._default.checkpoint_config if self._default else None
        if default is not None and default.store is not None:
            store: CheckpointStore = default.store
            return store
        return process.store_at(self._read_settings().store)

    def _store(self, checkpoint: CheckpointConfig | None) -> CheckpointStore:
        if checkpoint is None:
            return process.memory_store()
        store: CheckpointStore = checkpoint.store or process.store_at(self._read_settings().store)
        return store

    def _checkpoint(self, config: RunConfig, mode: ExecutionMode) -> CheckpointConfig | None:
        if config.checkpoint_config is not None:
            return CheckpointConfig.parse(config.checkpoint_config)
        if config.checkpoint_key is not None:
            store = process.store_at(self._read_settings().store)
            policy = ResumePolicy.RESUME_IF_PRESENT
            return CheckpointConfig(key=validate_key(config.checkpoint_key), resume_policy=policy, store=store)
        if mode is ExecutionMode.DISTRIBUTED:
            return CheckpointConfig(store=process.store_at(self._read_settings().store))
        return None

    def _model_provider(self, config: RunConfig) -> ModelProvider:
        given = config.model_provider or self._provider
        if given is None:
            return process.settings_provider(self._read_settings())
        if isinstance(given, str):
            loaded: ModelProvider = references.load(given, (given.partition(":")[0].partition(".")[0],))
            return loaded
        return given


class ConfiguredRunner(Runner):
    """What `Runner.configured` gives: a runner with a default config of its own."""


@dataclass
class _Admitted:
    """A record that this call may carry on, and its program."""

    key: str
    run_id: str
    body: Body
    program: Program
    recipe: CycleRecipe
    existed: bool
    rests: bool
    """It ended, or waits for somebody: there is a result already."""
    shown: tuple[RunEvent, ...]
    """The events of its creation, when this call created it."""


class _Start:
    """A run that is about to begin."""

    def __init__(
        self, engine: Engine, backend: Backend, dispatcher: CycleDispatcher, admitted: _Admitted, config: RunConfig
    ) -> None:
        self.engine = engine
        self.backend = backend
        self._run = admitted
        self._config = config
        self._feed = _Feed(config.stream)
        self.handle = RunHandle(engine, dispatcher, admitted.key, admitted.run_id, self._feed)

    def begin(self, *, in_caller: bool = False) -> None:
        """Carry the run on: in the caller's thread, in one of our own, or by workers."""
        if in_caller:  # who has no handle reads no text later
            self._feed.forgets = eventlog.LIVE_ONLY
        token = self._config.cancellation_token
        if token is not None:
            self.handle.when_over(token.on_cancel(lambda: self.handle.leave(token.reason)))
        if self._run.rests:
            self.handle.finish(lambda: read_result(self.engine, self._run.key, ()))
        elif not self.backend.local:
            programs, key = self.engine.programs, self._run.key
            programs.bind(key, self._run.program)  # should no worker be there, this process has what the run needs
            _follow(self.engine, self.handle, self._feed, self._run.body, then=lambda: programs.unbind(key))
            self.backend.drive(self.engine, self._run.recipe, resume=self._run.existed)
        elif in_caller:
            unknown = not self._run.body.checkpointed and token is None
            self.engine.leave_alone(self._run.key, unknown)
            self._drive()
        else:
            _in_background(self._drive)

    def _drive(self) -> None:
        key, engine = self._run.key, self.engine
        engine.programs.bind(key, self._run.program)
        engine.listen(key, self._feed)
        for event in self._run.shown:
            self._feed.put(event)

        def work() -> RunResult:
            self.backend.drive(engine, self._run.recipe, resume=self._run.existed)
            return read_result(engine, key, tuple(self._feed.events))

        try:
            self.handle.finish(work)
        finally:
            engine.unlisten(key)
            engine.leave_alone(key, False)
            engine.programs.unbind(key)
            if not self._run.body.checkpointed:
                _forget(engine, key)


def _in_background(work: Callable[[], None]) -> None:
    """Do work in a thread of its own, in the caller's context."""
    context = contextvars.copy_context()
    threading.Thread(target=lambda: context.run(work), name="vv-run", daemon=True).start()


class _Feed(EventFeed):
    """A feed that also calls the config's `stream` function; its errors are its own."""

    def __init__(self, stream: Callable[[RunEvent], object] | None) -> None:
        super().__init__()
        self._stream = stream

    def put(self, event: RunEvent) -> None:
        super().put(event)
        if self._stream is not None:
            try:
                self._stream(event)
            except Exception:
                self._stream = None


def _mode(config: RunConfig) -> tuple[ExecutionMode, Backend | None]:
    """The execution mode and the backend object, if one was given; they must not contradict each other."""
    from vv_agent.dispatch.distributed import DistributedBackend

    backend = config.execution_backend
    if backend is None:
        return config.execution_mode or ExecutionMode.INLINE, None
    if not isinstance(backend, Backend):
        raise ConfigError(
            "run_config_invalid", f"execution_backend {backend!r} is no backend; use e.g. InlineBackend()"
        )
    if isinstance(backend, DistributedBackend):
        mode = ExecutionMode.DISTRIBUTED
    else:
        mode = ExecutionMode.INLINE if isinstance(backend, InlineBackend) else ExecutionMode.THREADED
    if config.execution_mode not in (None, mode):
        raise ConfigError(
            "execution_mode_conflict",
            f"execution_mode is {config.execution_mode}, execution_backend a {type(backend).__name__}; give only one",
        )
    return mode, backend


def _queue(backend: Backend, settings: Settings) -> str | None:
    """The queue of a new run; none when this process advances it."""
    from vv_agent.dispatch.distributed import DistributedBackend

    return (backend.queue or settings.queue) if isinstance(backend, DistributedBackend) else None


def _backend(mode: ExecutionMode, dispatcher: CycleDispatcher, settings: Settings) -> Backend:
    if mode is ExecutionMode.INLINE:
        return InlineBackend()
    if mode is ExecutionMode.THREADED:
        from vv_agent.dispatch.threaded import ThreadBackend

        if not _threads:
            _threads.append(ThreadBackend(min(settings.concurrency, 32)))
        return _threads[0]
    from vv_agent.dispatch.distributed import DistributedBackend

    return DistributedBackend(dispatcher)


def _new_run(
    key: str,
    run_id: str,
    engine: Engine,
    program: Program,
    queue: str | None,
    *,
    checkpointed: bool,
    live: bool,
    hold: int,
) -> NewRun:
    """The record of a new run: the system prompt, what came before, and the input."""
    definition = program.definition
    body = Body(engine.new_id("trace"), run_id, definition.agent.name, checkpointed=checkpointed, live=live)
    items = [message_item(0, Message("system", definition.compiled_prompt))]
    items += [message_item(0, message) for message in definition.messages()]
    items.append(["i", 0, Message("user", definition.root_input).to_wire()])
    blobs = {"state": definition.initial_shared_state, "extensions": extensions.taken(program)}
    events = eventlog.event_entry(_origin(body), _first_events(body, key, engine))
    return NewRun(
        key=key, run_id=run_id, definition=definition.digest, definition_body=definition.encode(), body=body.pack(),
        queue=queue, due_in=hold, log=(log_entry(items),), events=(events,),
        blobs={name: pack(dict(value)) for name, value in blobs.items() if value},
    )  # fmt: skip


def _origin(body: Body) -> eventlog.Origin:
    return eventlog.Origin(body.run_id, body.agent, 0, 1, 0)


def _first_events(body: Body, key: str, engine: Engine) -> list[eventlog.Emitted]:
    now = engine.clock()
    events = [
        eventlog.Emitted("run_started", 0, now, {}, {"input": ("input", 0)}),
        eventlog.Emitted("agent_started", 1, now, {}, {}),
    ]
    if body.checkpointed:
        fields = {"cycle_index": 0, "checkpoint_key": key, "resume_attempt": 1}
        events.append(eventlog.Emitted("checkpoint_created", 2, now, fields, {}))
    return events


def _admit(engine: Engine, program: Program, new: NewRun, policy: ResumePolicy, *, may_attach: bool) -> _Admitted:
    """Create the record, or find the one that is there, by the table of spec/10."""
    store = engine.store
    body = Body.unpack(new.body, new.key)
    if policy is not ResumePolicy.NEW and (found := store.load(new.key, Seen(entries=1 << 24))) is not None:
        return _readmit(engine, program, found, policy, may_attach=may_attach)
    admit(policy, new.key, present=False)
    try:
        (head,) = patiently(lambda: store.create([new]))
    except CheckpointError as error:
        lost_race = error.code == "checkpoint_already_exists" and policy is ResumePolicy.RESUME_IF_PRESENT
        found = store.load(new.key, Seen(entries=1 << 24)) if lost_race else None
        if found is None:
            raise
        return _readmit(engine, program, found, policy, may_attach=may_attach)
    reader = eventlog.EventReader(body)
    reader.transcript.extend(1, new.log[0])
    shown = tuple(numbered.event for numbered in reader.decode(new.events[0]))
    recipe = CycleRecipe.of(head, store.id)
    return _Admitted(new.key, new.run_id, body, program, recipe, existed=False, rests=False, shown=shown)


def _readmit(engine: Engine, program: Program, found: Snapshot, policy: ResumePolicy, *, may_attach: bool) -> _Admitted:
    head = found.head
    waits_for_user = head.state is State.PARKED and head.reason is ParkReason.INPUT
    over = head.state is State.ENDED or waits_for_user
    stored = program if over else _stored_program(engine.store, head, program)
    admission = admit(policy, head.key, present=True, terminal=over, same_definition=stored is not None)
    if admission is Admission.RECOVER and found.journal:
        _check_journal(engine.store, head.key)
    if admission is Admission.RECOVER and rests(head):
        engine.store.post(head.key, resume_signal(f"resume_{secrets.token_hex(8)}"))
    del may_attach  # a living claim is noticed where it matters: an inline loop refuses, a follower follows
    body = Body.unpack(head.body, head.key)
    recipe = CycleRecipe.of(head, engine.store.id)
    return _Admitted(head.key, head.run_id, body, stored or program, recipe, existed=True, rests=over, shown=())


def _check_journal(store: CheckpointStore, key: str) -> None:
    """Before anything is claimed: what the journal holds belongs to the run as it is stored."""
    snapshot = store.load(key)
    if snapshot is None:
        return
    transcript = Transcript()
    for entry in snapshot.log:
        transcript.extend(entry.seq, entry.body)
    entries = {name: unpack(body, f"journal entry {name}") for name, body in snapshot.journal.items()}
    journal.check_integrity(key, transcript, snapshot.head.cycle, entries)


def _stored_program(store: CheckpointStore, head: Head, program: Program) -> Program | None:
    """The program under the record's definition; None when it describes another run.

    An edited tool description is no difference: the model goes on seeing the stored one (DESIGN 5.5).
    """
    if head.definition == program.definition.digest:
        return program
    stored = RunDefinition.decode(store.definition(head.definition))
    mine = {tool.tool_schema.function.name for tool in program.definition.tools}
    if mine != {tool.tool_schema.function.name for tool in stored.tools}:
        return None
    try:
        for tool in stored.tools:
            check_compatible(program.tools[tool.tool_schema.function.name], tool)
    except ConfigError:
        return None
    edited = {**program.definition.to_wire(), "tools": stored.to_wire()["tools"]}
    if RunDefinition.parse(edited).digest != head.definition:
        return None
    return replace(program, definition=stored)


def _existing(store: CheckpointStore, key: str) -> Snapshot:
    snapshot = store.load(key, Seen(entries=1 << 24))
    if snapshot is None:
        raise CheckpointError(
            "checkpoint_not_found", f"there is no run {key!r} in {store.url}; check the key and VV_AGENT_STORE"
        )
    return snapshot


def _wake(store: CheckpointStore, dispatcher: CycleDispatcher, snapshot: Snapshot, text: str | None) -> None:
    """Post what makes a resting run go on."""
    head = snapshot.head
    waits = head.reason is ParkReason.INPUT and head.state in (State.PARKED, State.READY)
    if text is not None:
        if not waits:
            raise ConfigError("run_not_waiting", f"run {head.key!r} is {head.status}, it waits for no input")
        answer = answer_signal(f"answer_{head.revision}", text)
        posted = store.post(head.key, answer)
        if posted.signal.body != answer.body:
            raise ConfigError("already_decided", f"run {head.key!r} was answered already, with another text")
        hint(dispatcher, posted.head, store.id)
    elif rests(head) and head.state is not State.ENDED and not waits:
        hint(dispatcher, store.post(head.key, resume_signal(f"resume_{secrets.token_hex(8)}")).head, store.id)


def _served(store: CheckpointStore, head: Head) -> bool:
    from vv_agent.dispatch.distributed import workers_of

    return head.queue is not None and workers_of(store, head.queue)


def _follow(
    engine: Engine, handle: RunHandle, feed: EventFeed, body: Body, *, then: Callable[[], None] = lambda: None
) -> None:
    """Watch a run that others advance, from its first event; the handle gets its result when the run ends or rests
    (`then` is called before)."""
    key = handle.checkpoint_key

    def over(end: Head | VVAgentError) -> None:
        then()
        if isinstance(end, VVAgentError):
            handle.fail(end)
        else:
            handle.finish(lambda: read_result(engine, key, tuple(feed.events)))

    process.tailer_for(engine.store).follow(key, body, feed, over)


def read_result(engine: Engine, key: str, events: tuple[RunEvent, ...]) -> RunResult:
    """The public result of a record as it stands."""
    cached = engine.cache.take(key)
    snapshot = engine.store.load(key, Seen(cached.entry_n) if cached else None)
    if snapshot is None:
        raise CheckpointError("checkpoint_not_found", f"run {key!r} was deleted")
    head = snapshot.head
    body = Body.unpack(head.body, key)
    if cached and (cached.run_id != head.run_id or head.entry_n < cached.entry_n):
        return read_result(engine, key, events)  # another run took the key; nothing is cached any more
    transcript = cached.transcript if cached else Transcript()
    for entry in snapshot.log:
        transcript.extend(entry.seq, entry.body)
    state = (snapshot.blobs or {}).get("state")
    raw = agent_result(head, body, transcript, unpack(state, f"state of run {key!r}") if state else {})
    if not body.checkpointed:
        raw = raw.model_copy(update={"checkpoint_key": None})
    definition = RunDefinition.decode(engine.store.definition(head.definition))
    model = _resolved_model(definition)
    metadata = {**definition.run_metadata, "trace_id": body.trace_id, "backend": model.backend}
    if raw.status is AgentStatus.RECONCILIATION_REQUIRED and raw.resume_observation is not None:
        metadata["waits_for"] = _doubt(key, transcript, raw.resume_observation)
    return RunResult.of(
        raw, input=transcript.inputs.get(body.segment, ""), run_id=body.run_id, trace_id=body.trace_id,
        agent_name=body.agent, new_items=transcript.new_items(body.segment), events=events,
        metadata={**metadata, "resolved_model": model.model_id}, resolved_model=model,
    )  # fmt: skip


def _doubt(key: str, transcript: Transcript, observation: ResumeObservation) -> str:
    """What a run that parked for a decision waits for, in words."""
    turn = transcript.turns.get(max(transcript.turns, default=0))
    names = {tool_operation_id(turn.cycle, n): call.name for n, call in enumerate(turn.calls, 1)} if turn else {}
    tool = names.get(observation.operation_id)
    what = f"the call of the tool {tool!r}" if tool else f"the {observation.operation_kind} call"
    decide = f"vv-agent runs reconcile {shlex.quote(key)} {observation.operation_id}"
    return (
        f"{what} was started and its outcome is not known; look what became of it, then decide: "
        f"{decide} --retry, --done TEXT, --failed TEXT or --abort TEXT"
    )


def _resolved_model(definition: RunDefinition) -> ResolvedModel:
    model = definition.model
    return ResolvedModel(model.backend, model.model_id, model.model_id, model.model_id)


def _forget(engine: Engine, key: str) -> None:
    """Drop the record of a run that asked for no checkpoint."""
    try:
        engine.store.delete(key)
    except CheckpointError:
        return


async def _in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a thread of its own, never on the loop's default executor."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def target() -> None:
        try:
            value = context.run(work)
        except BaseException as error:
            loop.call_soon_threadsafe(settle, future.set_exception, error)
        else:
            loop.call_soon_threadsafe(settle, future.set_result, value)

    threading.Thread(target=target, name="vv-prepare", daemon=True).start()
    return await future
