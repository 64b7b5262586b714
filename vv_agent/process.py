"""What a process opens once: stores by URL, and an engine for each store it works on."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Presence
from vv_agent.checkpoint.store import CheckpointStore, open_store
from vv_agent.dispatch.base import CycleDispatcher
from vv_agent.dispatch.store import StoreDispatcher
from vv_agent.llm.reference import ModelProvider
from vv_agent.runtime.context import Engine
from vv_agent.runtime.program import Programs
from vv_agent.runtime.tail import Tailer
from vv_agent.settings import Settings

_lock = threading.Lock()
_stores: dict[tuple[int, str], CheckpointStore] = {}
_ENGINE, _TAILER = "_vv_engine", "_vv_tailer"
"""Attributes of a store: what this process made for it lives as long as the store, and is freed with it."""
_engines: WeakSet[Engine] = WeakSet()
_tailers: WeakSet[Tailer] = WeakSet()
_memory: list[tuple[int, MemoryStore]] = []
_brokers: dict[str, CycleDispatcher] = {}


def store_at(url: str) -> CheckpointStore:
    """The store a URL names, opened once per process (and once more after a fork)."""
    name = os.path.abspath(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else url
    with _lock:
        place = (os.getpid(), name)
        if place not in _stores:
            _stores[place] = open_store(url)
        return _stores[place]


def memory_store() -> MemoryStore:
    """The store of this process's runs without a checkpoint."""
    with _lock:
        if not _memory or _memory[-1][0] != os.getpid():
            _memory.append((os.getpid(), MemoryStore()))
        return _memory[-1][1]


def settings_provider(settings: Settings) -> ModelProvider:
    """The provider of the settings file that the environment or the working directory names."""
    from vv_agent.llm.provider import VvLlmModelProvider
    from vv_agent.llm.settings_file import find_settings

    return VvLlmModelProvider.from_settings_file(find_settings(None, settings.local_settings, Path.cwd()))


def engine_for(store: CheckpointStore, settings: Settings) -> Engine:
    """The engine with which this process advances runs of a store on request, whatever their queue."""
    with _lock:
        engine: Engine | None = vars(store).get(_ENGINE)
        if engine is None or engine.pid != os.getpid():
            engine = vars(store)[_ENGINE] = make_engine(store, settings)
            _engines.add(engine)
            atexit.unregister(leave)
            atexit.register(leave)
        return engine


_READERS = frozenset({"vv-run", "vv-tail", "vv-fallback", "vv-fallback-run"})
_LEAVE_SECONDS = 1.0


def leave() -> None:
    """At the end of the process: runs under way here are given back, and the threads that work on a store end by
    themselves. Killed by the interpreter inside a driver, one of them may abort the process."""
    for engine in list(_engines):
        engine.stop()
    for tailer in list(_tailers):
        tailer.close()
    end = time.monotonic() + _LEAVE_SECONDS
    with suppress(KeyboardInterrupt):  # whoever does not want to wait for them need not
        for thread in threading.enumerate():
            if thread.name in _READERS:
                thread.join(max(0.0, end - time.monotonic()))


def dispatcher_for(store: CheckpointStore, settings: Settings) -> CycleDispatcher:
    """How workers are told of a run: through the broker of the settings, else through the store."""
    if settings.broker is None:
        return StoreDispatcher(store)
    with _lock:
        if settings.broker not in _brokers:
            from vv_agent.dispatch.celery import CeleryDispatcher

            _brokers[settings.broker] = CeleryDispatcher(settings.broker)
        return _brokers[settings.broker]


def tailer_for(store: CheckpointStore) -> Tailer:
    """The thread that follows other processes' runs of a store."""
    with _lock:
        tailer: Tailer | None = vars(store).get(_TAILER)
        if tailer is None or tailer.pid != os.getpid():
            tailer = vars(store)[_TAILER] = Tailer(store)
            _tailers.add(tailer)
        return tailer


def make_engine(
    store: CheckpointStore,
    settings: Settings,
    *,
    queues: frozenset[str] | None = None,
    presence: Callable[[], Presence | None] = lambda: None,
) -> Engine:
    """A new engine from the settings; with `VV_AGENT_CRASH` set, one that kills this process at the named point."""
    probe = None
    if settings.crash is not None:
        from vv_agent.testing import CrashingStore, CrashPlan

        probe = CrashPlan.parse(settings.crash, settings.crash_file)
        store = CrashingStore(store, probe)  # type: ignore[assignment]  # it has every verb
    urls = (settings.sessions, settings.store, settings.broker)
    programs = Programs(store, settings.imports, lambda: settings_provider(settings), session_urls=urls)
    return Engine(store, programs, lease_ms=settings.lease_ms, queues=queues, presence=presence, probe=probe)
