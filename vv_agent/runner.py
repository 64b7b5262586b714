"""The Runner: starts, resumes and follows runs. It compiles an agent into a record and lets a backend carry it on."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vv_agent import process, references
from vv_agent._facade import MODEL_PROVIDER, check_kinds, on_class_too
from vv_agent._loop import awaited_on
from vv_agent.agent import Agent, RunContext
from vv_agent.approvals import ApprovalDecision
from vv_agent.budget import RunBudgetLimits
from vv_agent.checkpoint.config import CheckpointConfig, ResumePolicy, validate_key
from vv_agent.checkpoint.record import Head, State
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.config import ExecutionMode, RunConfig, check_workspace, effective_config
from vv_agent.definition import RunDefinition
from vv_agent.dispatch.base import Backend, CycleDispatcher, drive, hint
from vv_agent.dispatch.distributed import DistributedBackend, workers_of
from vv_agent.dispatch.inline import InlineBackend
from vv_agent.errors import ConfigError
from vv_agent.events import RunEvent
from vv_agent.following import (
    Blocked,
    Start,
    WatchedFeed,
    blocked_result,
    carry_on,
    desk_for,
    follow,
    in_background,
    in_thread,
    show_open_approvals,
    tracer_of,
)
from vv_agent.hooks import hooks_of
from vv_agent.launch import (
    admit_run,
    check_journal,
    decide,
    definition_at,
    existing,
    new_run,
    open_approvals,
    raised,
    wake,
)
from vv_agent.llm.reference import ModelProvider
from vv_agent.outcome import read_result
from vv_agent.result import RunResult, RunState
from vv_agent.run_handle import RunHandle
from vv_agent.runtime.body import Body
from vv_agent.runtime.compile import Beginning, Layers, compile_run
from vv_agent.runtime.context import Engine
from vv_agent.runtime.inbox import approval_signal, budget_signal
from vv_agent.runtime.opening import InputBlocked, admitted_input
from vv_agent.runtime.recipe import CycleRecipe
from vv_agent.runtime.tail import rests
from vv_agent.runtime.transcript import clean
from vv_agent.settings import Settings, read_settings

if TYPE_CHECKING:
    from vv_agent.dispatch.threaded import ThreadBackend

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
        check_workspace(workspace)
        check_kinds(
            "run_config_invalid", "Runner", {"model_provider": model_provider}, {"model_provider": MODEL_PROVIDER}
        )
        _check_config(default_run_config, "default_run_config")
        self._provider = model_provider
        self._workspace = workspace
        self._default = default_run_config
        self._settings = settings

    @property
    def default_run_config(self) -> RunConfig | None:
        """What stands below each run's own config."""
        return self._default

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
        start = self.prepare(agent, input, run_config)
        start.begin(in_caller=True)
        return start.handle.result()

    @on_class_too
    async def run(self, agent: Agent, input: str, *, run_config: RunConfig | None = None) -> RunResult:  # noqa: A002
        """The awaitable form of `run_sync`; it blocks no event loop.

        A run of this process calls asynchronous tools on the awaiting loop, so that they may use what belongs to it.
        When the await is cancelled, such a run is cancelled; a distributed run goes on.
        """
        start = await in_thread(lambda: self.prepare(agent, input, run_config))
        start.begin(loop=asyncio.get_running_loop())
        try:
            return await start.handle
        except asyncio.CancelledError:
            if start.backend.local:
                in_background(lambda: start.handle.leave("The awaiting task was cancelled."))
            raise

    @on_class_too
    def start(self, agent: Agent, input: str, *, run_config: RunConfig | None = None) -> RunHandle:  # noqa: A002
        """Begin a run in the background; the handle gives its events and result."""
        start = self.prepare(agent, input, run_config, live=True)
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
        start = self.prepare(agent, input, run_config, live=True)
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
        start = await in_thread(lambda: self.prepare(agent, input, run_config, live=True))
        start.begin(loop=asyncio.get_running_loop())
        try:
            async for event in start.handle.events():
                yield event
            await start.handle
        finally:
            if start.backend.local:
                in_background(lambda: start.handle.leave("The reader of its events left."))

    @on_class_too
    def attach(
        self, key: str, *, store: CheckpointStore | None = None, run_config: RunConfig | None = None
    ) -> RunHandle:
        """Follow a run by its key, whoever advances it. `checkpoint_not_found` if the store has none.

        Of `run_config` only who is asked and told counts (approval provider and broker, trace sinks); all else of a run
        stands in its record.
        """
        home = store or self._store_of_settings()
        head = existing(home, validate_key(key))
        engine, dispatcher = self._means(home)
        handle, feed = self._follower(engine, dispatcher, head, run_config or self._default)
        follow(engine, handle, feed, Body.unpack(head.body, key))
        return handle

    def _follower(
        self, engine: Engine, dispatcher: CycleDispatcher, head: Head, config: RunConfig | None
    ) -> tuple[RunHandle, WatchedFeed]:
        """A handle on a run that is there; the config's approval provider is asked about what it waits for."""
        body = Body.unpack(head.body, head.key)
        feed = WatchedFeed(tracer=tracer_of(config, body))
        handle = RunHandle(engine, dispatcher, head.key, head.run_id, feed)
        feed.desk = desk_for(config, handle, past=True)
        handle.resumer = partial(self.start_resume, run_config=config)
        return handle, feed

    @on_class_too
    def resume(
        self,
        state: RunState | str,
        *,
        input: str | None = None,  # noqa: A002
        store: CheckpointStore | None = None,
        run_config: RunConfig | None = None,
    ) -> RunResult:
        """Go on with a run by its key (or its waiting state) and wait for what comes of it.

        `input` answers a run that waits for its user. A run of a queue whose workers are there is only woken and
        followed; any other one is advanced here, rebuilt from its stored definition. A finished run gives its result
        again. Of `run_config` only who is asked and told counts, as in `attach`; a state brings the one it was started
        with.
        """
        return self._resume(state, input, store, run_config, in_caller=True).result()

    @on_class_too
    def start_resume(
        self,
        state: RunState | str,
        *,
        input: str | None = None,  # noqa: A002
        store: CheckpointStore | None = None,
        run_config: RunConfig | None = None,
    ) -> RunHandle:
        """`resume` in the background; the handle gives the events from here on, and the result."""
        return self._resume(state, input, store, run_config, in_caller=False)

    @on_class_too
    def raise_budget(self, key: str, limits: RunBudgetLimits, *, store: CheckpointStore | None = None) -> None:
        """Give a run other limits, all of them; what it has used counts on. One whose budget was used up goes on in a
        new segment, by its workers or with `resume`.

        Raises `budget_not_limited` for a run that was started without limits, `budget_limits_invalid` for limits that
        raise nothing, and `run_finished`.
        """
        home = store or self._store_of_settings()
        head = existing(home, validate_key(key))
        limits = raised(home, head, limits)
        _, dispatcher = self._means(home)
        posted = home.post(key, budget_signal(f"budget_{head.revision}_{secrets.token_hex(4)}", limits))
        hint(dispatcher, posted.head, home.id)

    def kept(self, config: RunConfig) -> tuple[CheckpointConfig, CheckpointStore] | None:
        """How and where a run of this effective config is kept; None for one in memory. For this package."""
        checkpoint = self._checkpoint(config, _mode(config)[0])
        return None if checkpoint is None else (checkpoint, self._store(checkpoint))

    # Details.

    def _resume(
        self, state: RunState | str, text: str | None, store: CheckpointStore | None, config: RunConfig | None,
        *, in_caller: bool,
    ) -> RunHandle:  # fmt: skip
        _check_config(config, "run_config")
        if not isinstance(state, str | RunState):
            raise ConfigError(
                "run_not_resumable", f"resume takes the key of a run or its RunState, not {type(state).__name__}"
            )
        if isinstance(state, str):
            key, home = state, store or self._store_of_settings()
        elif text is not None and state.approved_interruption_ids():
            raise ConfigError(
                "run_not_waiting", "input cannot be provided when resuming an approved tool call; resume without input"
            )
        elif state.result.home is None:
            raise ConfigError("run_not_resumable", "this result was not made by a Runner of this process; use its key")
        else:
            key, home = state.result.home.key, store or state.result.home.store
        head = _root(existing(home, validate_key(key)))
        engine, dispatcher = self._means(home)
        config = config or (state.result.config if isinstance(state, RunState) else None) or self._default
        handle, feed = self._follower(engine, dispatcher, head, config)
        if isinstance(state, RunState):
            if (token := state.result.cancellation) is not None:
                handle.when_over(token.on_cancel(lambda: handle.leave(token.reason)))
            waiting = open_approvals(home, key) if token is None or not token.cancelled else {}
            for approved in waiting.keys() & set(state.approved_interruption_ids()):  # the others are decided
                asked = waiting[approved]
                decide(
                    home, dispatcher, asked["key"], approval_signal(approved, ApprovalDecision.allow(), asked["digest"])
                )
            head = existing(home, key)
        if head.state is State.ENDED and text is None:
            handle.finish(lambda: read_result(engine, key, ()))
            return handle
        check_journal(home, key)
        wake(home, dispatcher, head, text)
        served = head.queue is not None and workers_of(home, head.queue)
        if served:  # should its workers be gone in truth, this process helps itself
            follow(engine, handle, feed, Body.unpack(head.body, key))
            workers = _backend(ExecutionMode.DISTRIBUTED, dispatcher, self._read_settings())
            workers.drive(engine, CycleRecipe.of(existing(home, key), home.id))
            return handle

        def work() -> RunResult:
            engine.listen(key, feed)
            try:
                current = existing(home, key)
                if not rests(current):
                    if isinstance(state, str):
                        show_open_approvals(engine, key, Body.unpack(current.body, key), feed)
                    with awaited_on(None):
                        recipe = CycleRecipe.of(current, home.id)
                        carry_on(partial(drive, engine, recipe, resume=True), waits=current.state is State.PARKED)
            finally:
                engine.unlisten(key, feed)
            return replace(read_result(engine, key, tuple(feed.events)), config=config)

        if in_caller:
            handle.finish(work)
        else:
            in_background(lambda: handle.finish(work))
        return handle

    def prepare(self, agent: Agent, text: str, run_config: RunConfig | None, *, live: bool = False) -> Start | Blocked:
        """Compile, and create the record or find the one to go on with. For this package: it begins when told."""
        if not isinstance(agent, Agent):
            raise ConfigError("run_config_invalid", f"a run needs an Agent, not {type(agent).__name__}")
        if not isinstance(text, str):
            raise ConfigError("run_config_invalid", f"the input of a run is text, not {type(text).__name__}")
        _check_config(run_config, "run_config")
        config = effective_config(agent, self._default, run_config)
        hooks_of(agent, config)
        settings = self._read_settings()
        mode, backend_given = _mode(config)
        checkpoint = self._checkpoint(config, mode)
        store = self._store(checkpoint)
        engine = process.engine_for(store, settings)
        key = validate_key(checkpoint.key) if checkpoint and checkpoint.key else f"checkpoint_{secrets.token_hex(16)}"
        run_id, trace_id = engine.new_id("run"), config.tracing.get("trace_id") or engine.new_id("trace")
        policy = checkpoint.resume_policy if checkpoint else ResumePolicy.NEW

        def existing(path: tuple[str, ...] = ()) -> RunDefinition | None:
            return None if policy is ResumePolicy.NEW else definition_at(store, key, path)

        dispatcher = getattr(backend_given, "dispatcher", None) or process.dispatcher_for(store, settings)
        text = clean(text)
        try:
            context = RunContext(run_id, agent.name, metadata=config.metadata, context=config.context)
            text = admitted_input(agent.input_guardrails, context, text, existing)
        except InputBlocked as block:
            result = blocked_result(block, text, run_id=run_id, trace_id=trace_id, agent_name=agent.name, config=config)
            return Blocked(engine, dispatcher, key, block, result)
        layers = Layers(
            agent=agent, default=self._default, run=run_config, config=config, provider=self._model_provider(config),
            checkpoint=checkpoint, elsewhere=mode is ExecutionMode.DISTRIBUTED,
        )  # fmt: skip
        program = compile_run(layers, text, Beginning(run_id, trace_id, self._workspace, existing))
        backend = backend_given or _backend(mode, dispatcher, settings)
        queue = _queue(backend, settings)
        hold = dispatcher.hold_ms if queue is not None else 0
        live = live or config.approval_provider is not None or config.approval_broker is not None
        workflow = config.tracing.get("workflow_name")
        body = Body(
            trace_id, run_id, agent.name, checkpointed=checkpoint is not None, live=live, workflow_name=workflow
        )
        if config.session is not None:
            body = replace(body, session_id=config.session.session_id)
        new = new_run(key, body, engine, program, queue, hold=hold)
        admitted = admit_run(engine, program, new, policy)
        start = Start(engine, backend, dispatcher, admitted, config)
        start.handle.resumer = partial(self.start_resume, run_config=config)
        if config.sub_task_manager is not None:
            config.sub_task_manager.bind(store, key)
        return start

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


def _root(head: Head) -> Head:
    """The record, if it is that of a run that is resumed by itself."""
    if head.parent_key is not None:
        what = f"run {head.key!r} works for run {head.root_key!r}"
        raise ConfigError("run_not_resumable", f"{what}; resume that one, it goes on with both")
    return head


def _check_config(config: RunConfig | None, name: str) -> None:
    if config is not None and not isinstance(config, RunConfig):
        raise ConfigError("run_config_invalid", f"{name} must be RunConfig(...), not {config!r}")


def _mode(config: RunConfig) -> tuple[ExecutionMode, Backend | None]:
    """The execution mode and the backend object, if one was given; they must not contradict each other."""
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
    return (backend.queue or settings.queue) if isinstance(backend, DistributedBackend) else None


def _backend(mode: ExecutionMode, dispatcher: CycleDispatcher, settings: Settings) -> Backend:
    if mode is ExecutionMode.INLINE:
        return InlineBackend()
    if mode is ExecutionMode.THREADED:
        from vv_agent.dispatch.threaded import ThreadBackend

        if not _threads:
            _threads.append(ThreadBackend(min(settings.concurrency, 32)))
        return _threads[0]
    return DistributedBackend(dispatcher)
