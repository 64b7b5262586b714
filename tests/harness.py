"""What tests with real processes share: the recorder, workers, and waiting for a condition instead of for a while."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests import effects
from tests.effects import Effect
from tests.jobs import PROVIDER, agent
from tests.spawner import Spawner, Started
from vv_agent import Agent, NoToolPolicy, RunConfig, Runner
from vv_agent.checkpoint.record import Head
from vv_agent.checkpoint.store import CheckpointStore, open_store
from vv_agent.dispatch.celery import CeleryDispatcher
from vv_agent.dispatch.distributed import DistributedBackend
from vv_agent.dispatch.store import StoreDispatcher
from vv_agent.run_handle import RunHandle
from vv_agent.settings import Settings

T = TypeVar("T")
QUEUE = "kill"


def until(condition: Callable[[], T], what: str, timeout: float = 30.0, every: float = 0.01) -> T:
    """Wait until `condition` gives something true; fails with `what` after `timeout` seconds."""
    end = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {timeout:g} s: {what}"
        time.sleep(every)
    return value


class World:
    """A store, the recorder, and the processes of one test. Everything is gone afterwards."""

    def __init__(self, spawner: Spawner, folder: Path, url: str, broker: str | None = None) -> None:
        self.folder = folder
        self.broker = broker
        self.url = url
        self.store: CheckpointStore = open_store(url)
        self.workspace = folder / "work"
        self.workspace.mkdir()
        self._spawner = spawner
        self._private = Path(tempfile.mkdtemp(prefix="vv-"))  # a socket's path has about 100 characters
        self._file = folder / "effects"
        socket = str(self._private / "effects.sock")
        self._recorder = subprocess.Popen(
            [sys.executable, "-m", "tests.effects", socket, str(self._file)], stdout=subprocess.PIPE, text=True
        )
        assert self._recorder.stdout is not None
        assert self._recorder.stdout.readline() == "ready\n"
        self._started: list[Started] = []
        self.env = {
            **os.environ, effects.SOCKET: socket, "VV_AGENT_STORE": url, "VV_AGENT_IMPORTS": "tests.jobs",
            "VV_AGENT_QUEUE": QUEUE, "VV_AGENT_LEASE_SECONDS": "2",
        }  # fmt: skip
        if broker:
            self.env["VV_AGENT_BROKER"] = broker
        os.environ[effects.SOCKET] = socket

    # Processes.

    def start(self, main: str, *argv: str, **env: str) -> Started:
        started = self._spawner.start(
            main, *argv, env={**self.env, **env}, log=self.folder / f"log{len(self._started)}", cwd=Path.cwd()
        )
        self._started.append(started)
        return started

    def inline(self, job: str, key: str, **env: str) -> Started:
        """A process that runs a job by itself."""
        return self.start("tests.jobs:inline", job, key, str(self.workspace), **env)

    def worker(self, *options: str, ready: bool = False, **env: str) -> Started:
        """`vv-agent worker`."""
        worker = self.start("vv_agent.cli:main", "worker", "--verbose", *options, **env)
        if ready:
            until(lambda: any(p.id.startswith(f"{worker.pid}-") for p in self.store.presences()), "the worker is there")
        return worker

    def celery(self, *options: str, pool: str = "threads", ready: bool = False, **env: str) -> Started:
        """`celery -A vv_agent.workers worker`."""
        before = {p.id for p in self.store.presences()}
        argv = ("-A", "vv_agent.workers", "worker", "-l", "INFO", *options)
        worker = self.start("celery.__main__:main", *argv, VV_AGENT_POOL=pool, C_FORCE_ROOT="1", **env)
        if ready:
            until(lambda: {p.id for p in self.store.presences() if p.queues} - before, "the worker is there")
            until(lambda: " ready." in worker.said(), "the worker reached its broker")
        return worker

    # Runs.

    def submit(
        self,
        key: str,
        text: str,
        policy: NoToolPolicy = NoToolPolicy.FINISH,
        *,
        who: Agent | None = None,
        **config: Any,
    ) -> RunHandle:
        """Start a distributed run that only workers advance; of `who`, else of the agent of all jobs."""
        dispatcher = CeleryDispatcher(self.broker) if self.broker else StoreDispatcher(self.store)
        backend = DistributedBackend(dispatcher, fallback=False)
        return self.runner.start(
            who or agent(policy), text, run_config=RunConfig(checkpoint_key=key, execution_backend=backend, **config)
        )

    def create(self, texts: dict[str, str], policy: NoToolPolicy) -> None:
        """Start distributed runs from a process that is gone then, so that nobody here follows them."""
        file = self.folder / "runs.json"
        file.write_text(json.dumps(texts))
        client = self.start("tests.jobs:submit_all", str(file), policy.value, str(self.workspace))
        assert client.wait(60) == 0, client.said()

    @property
    def runner(self) -> Runner:
        """A runner of this process on the world's store."""
        settings = Settings(store=self.url, broker=self.broker, queue=QUEUE, imports=("tests.jobs",))
        return Runner(model_provider=PROVIDER, workspace=self.workspace, settings=settings)

    def head(self, key: str) -> Head | None:
        snapshot = self.store.look(key)
        return snapshot.head if snapshot else None

    # What happened.

    def effects(self, what: str | None = None) -> list[Effect]:
        found = effects.read(self._file)
        return found if what is None else [effect for effect in found if effect.what == what]

    def clear(self) -> None:
        """Forget the effects of a test before this one."""
        self._file.write_text("")

    @property
    def broker_client(self) -> Any:
        """A client of the Redis that is the broker."""
        import redis

        assert self.broker is not None
        return redis.Redis.from_url(self.broker)

    def close(self) -> None:
        for started in self._started:
            if started.alive:
                started.signal(signal.SIGCONT)
                started.signal(signal.SIGKILL)
                started.wait()
        self._recorder.kill()
        self._recorder.wait()
        assert self._recorder.stdout is not None
        self._recorder.stdout.close()
        self.store.close()
        shutil.rmtree(self._private)
        os.environ.pop(effects.SOCKET, None)


@contextmanager
def crash_at(point: str, folder: Path) -> Iterator[dict[str, str]]:
    """The environment of a process that dies at a point; its crash file is checked afterwards."""
    file = folder / f"crash_{point.replace(':', '_')}_{time.monotonic_ns()}"
    yield {"VV_AGENT_CRASH": point, "VV_AGENT_CRASH_FILE": str(file)}
    boundary, side = point.split(":")[:2]
    assert file.exists(), f"no process reached {point}"
    assert file.read_text().split()[1:] == [f"{boundary}:{side}"]


def answer_of(started: Started) -> dict[str, Any]:
    """The JSON a test process printed as its last line."""
    return json.loads(started.said().splitlines()[-1])  # type: ignore[no-any-return]
