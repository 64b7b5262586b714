"""Every store with every backend, behind one verb: run an agent and give its result."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.redis_server import RedisServer, database
from vv_agent import Agent, NoToolPolicy, RunConfig, Runner, process
from vv_agent.checkpoint.config import CheckpointConfig, ResumePolicy
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.redis import RedisStore
from vv_agent.checkpoint.store import CheckpointStore, open_store
from vv_agent.dispatch.celery import CeleryDispatcher
from vv_agent.dispatch.distributed import DistributedBackend
from vv_agent.dispatch.inline import InlineBackend
from vv_agent.dispatch.store import StoreDispatcher
from vv_agent.dispatch.threaded import ThreadBackend
from vv_agent.result import RunResult
from vv_agent.run_handle import RunHandle
from vv_agent.settings import Settings
from vv_agent.testing import ScriptedProvider
from vv_agent.workers import bootstrap
from vv_agent.workers.local import LocalWorker

STORES = ("memory", "sqlite", "postgres", "redis")
BACKENDS = ("inline", "threaded", "workers")
PLACES = [*itertools.product(STORES, BACKENDS), ("sqlite", "celery"), ("redis", "celery")]
_QUEUE = "scenarios"


class Bench:
    """One store and one backend. Code of the tests is named by import path, so that the worker may load it."""

    def __init__(
        self, store: CheckpointStore, backend: str, tmp_path: Path, celery: CeleryWorker | None = None
    ) -> None:
        self.store = store
        self.kind = backend
        self.settings = Settings(queue=_QUEUE, imports=("tests",), lease_seconds=3.0)
        self._numbers = itertools.count()
        self._worker: LocalWorker | None = None
        self._thread: threading.Thread | None = None
        self._workspace = tmp_path
        match backend:
            case "inline":
                self.backend: Any = InlineBackend()
            case "threaded":
                self.backend = ThreadBackend(4)
            case "celery":
                assert celery is not None
                self.settings = celery.settings
                self.dispatcher = CeleryDispatcher(str(self.settings.broker))
                self.backend = DistributedBackend(self.dispatcher, fallback=False)
            case _:
                self.backend = DistributedBackend(StoreDispatcher(store), fallback=False)
                self._worker = LocalWorker(store, self.settings, queues=(_QUEUE,), threads=8)
                self._thread = threading.Thread(target=self._worker.run, name="test-worker", daemon=True)
                self._thread.start()

    def runner(self, steps: Sequence[Any] = (), *, provider: Any = None, delay: float = 0.0) -> Runner:
        return Runner(
            model_provider=provider or Scripts.of(steps, delay), workspace=self._workspace, settings=self.settings
        )

    def config(
        self, key: str | None = None, policy: ResumePolicy = ResumePolicy.RESUME_IF_PRESENT, **more: Any
    ) -> RunConfig:
        checkpoint = CheckpointConfig(
            key=key or f"k{next(self._numbers)}", store=self.store, resume_policy=policy, **more.pop("checkpoint", {})
        )
        return RunConfig(checkpoint_config=checkpoint, execution_backend=self.backend, **more)

    def run(
        self, agent: Agent, steps: Sequence[Any], text: str = "Go.", *, key: str | None = None, **more: Any
    ) -> RunResult:
        return self.runner(steps).run_sync(agent, text, run_config=self.config(key, **more))

    def start(self, agent: Agent, steps: Sequence[Any], *, key: str, delay: float = 0.0, **more: Any) -> RunHandle:
        return self.runner(steps, delay=delay).start(agent, "Go.", run_config=self.config(key, **more))

    def close(self) -> None:
        if self._worker is not None and self._thread is not None:
            self._worker.stop()
            self._thread.join(15)
            assert not self._thread.is_alive(), "the worker does not stop"


class Scripts:
    """Scripted providers by number, so that a worker of this process finds them by import path."""

    made: dict[int, ScriptedProvider] = {}  # noqa: RUF012 - a registry

    @classmethod
    def of(cls, steps: Sequence[Any], delay: float = 0.0) -> ScriptedProvider:
        number = len(cls.made)
        provider = cls.made[number] = ScriptedProvider(steps, delay=delay)
        name = f"provider_{number}"
        globals()[name] = provider
        provider.__vv_ref__ = f"tests.scenarios.conftest:{name}"  # type: ignore[attr-defined]
        return provider


def an_agent(*tools: Any, policy: NoToolPolicy = NoToolPolicy.FINISH, **more: Any) -> Agent:
    return Agent(name="tester", instructions="Test.", tools=list(tools), no_tool_policy=policy, **more)


class CeleryWorker:
    """A Celery worker of this process, on the application that `celery -A vv_agent.workers worker` starts."""

    def __init__(self, store: str, broker: str) -> None:
        from celery.contrib.testing.worker import start_worker

        from vv_agent.workers.celery import make_app

        self._before = {*process._stores, *process._brokers}
        self.settings = Settings(
            store=store, broker=broker, queue=_QUEUE, imports=("tests",), lease_seconds=3.0, concurrency=8
        )
        self._app = make_app(self.settings)
        self._log_level = logging.root.level  # Celery sets it for the whole process
        self._worker = start_worker(
            self._app, pool="threads", concurrency=8, perform_ping_check=False, loglevel="ERROR"
        )
        self._worker.__enter__()

    def close(self) -> None:
        self._worker.__exit__(None, None, None)
        assert bootstrap.station().stopping.is_set(), "the station outlives a worker that is terminated"
        bootstrap.station().finish()
        self._app.close()
        for cached in (process._stores, process._brokers):  # what a worker's process keeps to its end
            for place in [place for place in cached if place not in self._before]:
                cached.pop(place).close()
        logging.root.setLevel(self._log_level)


@pytest.fixture
def celery_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[CheckpointStore, CeleryWorker]]:
    """A store for the test, and a Celery worker that has opened it by its URL, as other processes do."""
    server: RedisServer = request.getfixturevalue("redis_server")
    on_redis = request.node.callspec.params["bench"][0] == "redis"
    url = server.url(database()) if on_redis else f"sqlite:///{tmp_path}/runs.db"
    worker = CeleryWorker(url, server.url(database()))
    store = open_store(url)
    yield store, worker
    worker.close()
    store.close()


@pytest.fixture(params=PLACES, ids="-".join)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Each store with each backend."""
    if request.param[1] == "celery":
        store, worker = request.getfixturevalue("celery_place")
        made = Bench(store, "celery", tmp_path, worker)
        yield made
        made.dispatcher.close()
        return
    store_name, backend = request.param
    if store_name == "postgres" and servers.postgres_url() is None:
        pytest.skip(servers.MISSING["postgres"])
    if store_name == "redis" and servers.redis_url() is None:
        pytest.skip(servers.MISSING["redis"])
    with _place(store_name) as url:
        store: CheckpointStore
        match store_name:
            case "memory":
                store = MemoryStore()
            case "sqlite":
                store = open_store(f"sqlite:///{tmp_path}/runs.db")
            case "redis":
                store = RedisStore(str(url), prefix=f"vv-test-{uuid.uuid4().hex[:12]}")
            case _:
                store = open_store(str(url))
        made = Bench(store, backend, tmp_path)
        try:
            yield made
        finally:
            made.close()
            if isinstance(store, RedisStore):
                for key in store.client.scan_iter(f"{store.prefix}:*"):
                    store.client.delete(key)
            store.close()


@contextlib.contextmanager
def _place(store_name: str) -> Iterator[str | None]:
    """Where a server's store is; nothing is left there."""
    if store_name == "postgres":
        with servers.postgres_schema() as url:
            yield url
    elif store_name == "redis":
        yield servers.redis_url()
    else:
        yield None
