"""Measures of the cluster form: Redis as the store, Celery workers, an HTTP endpoint. They start their own Redis."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks import cycles
from benchmarks.figures import Figure
from benchmarks.floor import BARE_SCRIPT
from benchmarks.job import AGENT
from benchmarks.processes import _p95
from tests.redis_server import RedisServer, any_redis
from vv_agent import CheckpointConfig, ExecutionMode, RunConfig, Runner
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Filter, Head, State
from vv_agent.checkpoint.redis import RedisStore
from vv_agent.dispatch.celery import CeleryDispatcher
from vv_agent.process import store_at
from vv_agent.settings import Settings


def available() -> bool:
    """Whether there is a Redis to start."""
    return any_redis() is not None


@contextmanager
def _redis() -> Iterator[RedisServer]:
    binary = any_redis()
    assert binary is not None
    with tempfile.TemporaryDirectory(prefix="vv-bench-") as folder:
        server = RedisServer(Path(folder), binary)
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def _worker(server: RedisServer, slots: int, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """One Celery worker process on a Redis that is broker and store."""
    environment = {
        **os.environ, "VV_AGENT_STORE": server.url(0), "VV_AGENT_BROKER": server.url(1), "C_FORCE_ROOT": "1",
        "VV_AGENT_IMPORTS": "benchmarks", "VV_AGENT_CONCURRENCY": str(slots), **env,
    }  # fmt: skip
    os.environ["VV_AGENT_BROKER"] = server.url(1)
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.hop", "worker", "-l", "ERROR"]
    worker = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 30
        while not any(p.queues for p in store_at(server.url(0)).presences()):
            assert time.monotonic() < end, "no worker showed itself"
            time.sleep(0.05)
        time.sleep(1.0)
        yield worker
    finally:
        del os.environ["VV_AGENT_BROKER"]
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)


def _settings(server: RedisServer, **more: Any) -> Settings:
    return Settings(store=server.url(0), broker=server.url(1), **more)


def _config(server: RedisServer, **more: Any) -> RunConfig:
    return RunConfig(
        execution_mode=ExecutionMode.DISTRIBUTED, checkpoint_config=CheckpointConfig(store=store_at(server.url(0))),
        **more,
    )  # fmt: skip


def hop(hops: int, chains: int, rounds: int) -> list[Figure]:
    """A cycle through Celery against an empty task that sends itself again, in turns in the same worker process; and
    against one that on its way writes by three bare scripts what a cycle writes: what is left is the cycle itself."""
    alone: tuple[list[float], list[float]] = ([], [])
    many: dict[str, list[float]] = {"empty": [], "bare": [], "handed": [], "ours": []}
    cpu: dict[str, list[float]] = {name: [] for name in many}
    ways: dict[str, Callable[[], float]] = {}
    with _redis() as server, _worker(server, 8) as worker:
        ways["empty"] = lambda: _chains(server, worker, chains, 10)
        ways["bare"] = lambda: _chains(server, worker, chains, 10, "bench.bare")
        ways["handed"] = lambda: _chains(server, worker, chains, 10, "bench.handed")
        ways["ours"] = lambda: _runs(server, worker, chains, "ten", 10)
        _chains(server, worker, 1, 10, "bench.bare"), _runs(server, worker, 1, "ten", 10)
        for _ in range(rounds):
            alone[0].append(_chains(server, worker, 1, hops) / hops)
            alone[1].append(_runs(server, worker, 1, "long", 300) / 300)
            for name, work in ways.items():
                before = _cpu(worker)
                many[name].append(work() * 1000 / (chains * 10))
                cpu[name].append((_cpu(worker) - before) * 1000 / (chains * 10))
    wall, spent = ({name: median(values) for name, values in side.items()} for side in (many, cpu))
    note = f"{median(alone[1]) * 1000:.2f} ms a cycle, {median(alone[0]) * 1000:.2f} ms an empty hop"
    parts = (
        "{ours:.2f} ms a cycle; {empty:.2f} ms an empty hop, {bare:.2f} one with three bare scripts, {handed:.2f} with "
        "two calls in a helper thread besides"
    )
    used = f"the worker's: {parts.format(**spent)}"
    return [
        Figure("Celery cycle, alone", median(alone[1]) / median(alone[0]), "x", None, note),
        Figure(f"Celery cycle, {chains} at once", wall["ours"] / wall["empty"], "x", 1.5, parts.format(**wall)),
        Figure("Celery cycle, CPU", spent["ours"] / spent["empty"], "x", None, used),
    ]


def _cpu(worker: subprocess.Popen[bytes]) -> float:
    """CPU seconds of a process so far."""
    spent = psutil.Process(worker.pid).cpu_times()
    return spent.user + spent.system


@contextmanager
def _asleep(worker: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop the worker while its work is put before it, so that what it takes is measured and not who asks for it."""
    worker.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        worker.send_signal(signal.SIGCONT)


def _chains(
    server: RedisServer, worker: subprocess.Popen[bytes], chains: int, hops: int, task: str = "bench.hop"
) -> float:
    """Seconds that so many chains of hops take once the worker begins."""
    client, channel = server.client(1), f"bench-{uuid.uuid4().hex[:8]}"
    sender = CeleryDispatcher(server.url(1))._client()
    with _asleep(worker):
        for _ in range(chains):
            sender.send_task(task, args=(hops - 1, channel), queue="vv-agent")
        began = time.perf_counter()
    for _ in range(chains):
        assert client.blpop([channel], 60) is not None
    return time.perf_counter() - began


def _runs(server: RedisServer, worker: subprocess.Popen[bytes], runs: int, model: str, cycles_: int) -> float:
    """Seconds that so many runs take, from when the worker begins to the last one's end by the store's clock."""
    with _asleep(worker):
        prefix = _start(server, runs, model, cycles_)
        began = store_at(server.url(0)).now()
    return (max(head.updated_at for head in _ended(server, prefix, runs)) - began) / 1000


def _start(server: RedisServer, runs: int, model: str, cycles_: int, **env: str) -> str:
    """Start runs from a process that is gone then, so that nobody follows them; what their keys begin with."""
    prefix = uuid.uuid4().hex[:8]
    environment = {**os.environ, "VV_AGENT_STORE": server.url(0), "VV_AGENT_BROKER": server.url(1), **env}
    command = [sys.executable, "-m", "benchmarks.starter", prefix, str(runs), model, str(cycles_)]
    subprocess.run(command, env=environment, check=True, timeout=60)
    return prefix


def _ended(server: RedisServer, prefix: str, runs: int) -> list[Head]:
    """Wait for the end of all runs."""
    store, end = store_at(server.url(0)), time.monotonic() + 120
    while True:
        heads = [head for head in store.find(Filter(limit=100_000)) if head.key.startswith(prefix)]
        if len(heads) == runs and all(head.state is State.ENDED for head in heads):
            assert {head.status for head in heads} == {"completed"}
            return heads
        assert time.monotonic() < end, "the runs do not end"
        time.sleep(0.25)


def http(calls: int, slots: int, watched: float) -> list[Figure]:
    """Model calls of one second over HTTP in one worker process, and its memory afterwards."""
    command = [sys.executable, "-m", "benchmarks.slow_server"]
    endpoint = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert endpoint.stdout is not None
    port = int(endpoint.stdout.readline())
    try:
        with _redis() as server, tempfile.TemporaryDirectory(prefix="vv-bench-") as folder:
            file = Path(folder) / "local_settings.json"
            file.write_text(json.dumps(_models(port)))
            env = {"VV_AGENT_LOCAL_SETTINGS": str(file)}
            with _worker(server, slots, **env) as worker:
                _ended(server, _start(server, 1, "settings", 2, **env), 1)
                hop_ = _chains(server, worker, max(1, calls // 10), 10) / (max(1, calls // 10) * 10)
                with _asleep(worker):
                    prefix = _start(server, calls, "settings", 2, **env)
                    began = store_at(server.url(0)).now()
                took = (max(head.updated_at for head in _ended(server, prefix, calls)) - began) / 1000
                time.sleep(max(0.0, watched - took))
                memory = psutil.Process(worker.pid).memory_info().rss / 1e6
    finally:
        endpoint.kill()
        endpoint.wait()
        endpoint.stdout.close()
    ideal = calls / slots + calls * hop_
    note = f"{took:.2f} s for {calls} at {slots} at a time (ideal {ideal:.1f} s: {calls / slots:.1f} and the hops)"
    return [
        Figure("HTTP calls of 1 s, one worker", took / ideal, "x ideal", 1.25 if slots > 100 else None, note),
        Figure("memory of that worker", memory, "MB", 150.0, f"RSS after {watched:.0f} s"),
    ]


def _models(port: int) -> dict[str, Any]:
    endpoint = {"id": "slow", "api_base": f"http://127.0.0.1:{port}/v1", "api_key": "none"}
    model = {
        "id": "slow", "endpoints": [{"endpoint_id": "slow", "model_id": "slow"}], "context_length": 128_000,
        "max_output_tokens": 8192, "function_call_available": True,
    }  # fmt: skip
    return {"VERSION": "2", "backends": {"local": {"models": {"slow": model}}}, "endpoints": [endpoint]}


class _Bare:
    """One run in Redis by three bare scripts a cycle that write as much as ours and check nothing."""

    def __init__(self, server: RedisServer, store: RedisStore) -> None:
        self._client = server.client(2)
        self._script = self._client.register_script(BARE_SCRIPT)
        bodies = b"".join(entry.body for entry in store.entries("bench", 2, 4))  # of one cycle: two logs, two events
        self._halves = (b"", bodies[: len(bodies) // 2], bodies[len(bodies) // 2 :])
        self._head = store.client.hget(store.name("h", "bench"), "head")
        self._n = 0

    def write(self) -> None:
        body = self._halves[self._n % 3]
        self._script(keys=["{1}:h", "{1}:e", "{1}:d"], args=[self._n, self._head, body, "x"])
        self._n += 1


class _BareBeside(MemoryStore):
    """A store in memory that runs the bare scripts where the Redis store runs its own."""

    def __init__(self, bare: _Bare) -> None:
        super().__init__()
        self._bare = bare

    def claim(self, *args: Any, **options: Any) -> Any:
        self._bare.write()
        return super().claim(*args, **options)

    def save(self, *args: Any, **options: Any) -> Any:
        self._bare.write()
        return super().save(*args, **options)


def store_cost(count: int, rounds: int) -> list[Figure]:
    """A cycle on Redis less a cycle in memory, against three bare scripts that write as much in the same places (a loop
    of nothing else keeps the processor's caches to itself; both are shown, as for SQLite)."""
    costs, in_place, loops = [], [], []
    with _redis() as server:
        for number in range(rounds):
            store = RedisStore(server.url(0), prefix=f"bench{number}")
            stored, _ = cycles.run_job(count, store, "released")
            in_memory, _ = cycles.run_job(count, MemoryStore(), "released")
            beside, _ = cycles.run_job(count, _BareBeside(_Bare(server, store)), "released")
            bare = _Bare(server, store)
            began = time.perf_counter()
            for _ in range(3 * count):
                bare.write()
            loops.append((time.perf_counter() - began) * 1000 / count)
            costs.append((stored.wall - in_memory.wall) / count)
            in_place.append((beside.wall - in_memory.wall) / count)
            store.close()
    cost, floor, loop = median(costs), median(in_place), median(loops)
    note = (
        f"wall clock; {cost:.3f} ms a cycle against {floor:.3f} for three bare scripts in their place "
        f"({cost / loop:.1f} x the {loop:.3f} of a loop of nothing else)"
    )
    return [Figure("store cost, Redis, released", cost / floor, "x", 2.0, note)]


def latency(rounds: int) -> list[Figure]:
    """From the save of a cycle in a Celery worker to its reader here."""
    lags: list[float] = []
    with _redis() as server, _worker(server, 4), tempfile.TemporaryDirectory(prefix="vv-bench-") as folder:
        runner = Runner(settings=_settings(server), workspace=folder)
        for number in range(rounds + 1):
            config = _config(server, model_provider="benchmarks.job:ten_slow")
            handle = runner.start(AGENT, "go", run_config=config)
            for event in handle.events():
                seen = time.time()
                if number > 0 and event.type in ("tool_call_completed", "run_completed"):
                    lags.append((seen - event.created_at) * 1000)
            handle.result(30)
    note = f"p95 {_p95(lags):.1f} ms, {len(lags)} events; counted from just before the save"
    return [Figure("save to reader, Redis", median(lags), "ms", 10.0, note)]
