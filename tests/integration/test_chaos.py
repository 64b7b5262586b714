"""Many runs while their workers are killed at random: every run ends, nothing is doubled, nothing is lost.

Whether a cycle was committed once is judged outside of our store: the model of each later cycle tells the recorder a
digest of all it was shown, so that a doubled, lost or different commit shows as a second digest or a missing cycle.
"""

from __future__ import annotations

import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil
import pytest

from tests.effects import Effect
from tests.harness import World, until
from tests.jobs import plan
from tests.spawner import Started
from vv_agent import NoToolPolicy
from vv_agent.checkpoint.record import Filter, Head, State
from vv_agent.runtime.owner import process_host

CYCLES = 10
WORKERS = 4


def job(seed: int) -> str:
    """Ten cycles: plain texts and repeatable calls, some of which take 20 to 60 ms; the last one finishes."""
    dice = random.Random(seed)
    steps: list[dict[str, object]] = []
    for n in range(CYCLES - 1):
        slow = dice.uniform(0.02, 0.06)
        if dice.random() < 0.5:
            steps.append({"call": [["charge", {"n": n, "seconds": slow if dice.random() < 0.7 else 0.0}]]})
        else:
            steps.append({"say": f"thought {n}", "sleep": slow if dice.random() < 0.7 else 0.0})
    return plan(*steps, {"call": [["task_finish", {"message": "done"}]]})


@dataclass
class Kills:
    """What the random kills hit: the claims the process held, and what its runs were doing."""

    total: int = 0
    holding: int = 0
    where: Counter[str] = field(default_factory=Counter)


def doing(effects: list[Effect], pids: set[int], head: Head) -> str:
    """What a killed process was doing with a run when it died, as the recorder saw it."""
    mine = [e for e in effects if e.pid in pids and e.what.endswith(("_begins", "_ends")) and e.run_id == head.run_id]
    if not mine or mine[-1].what.endswith("_ends"):
        return "between"
    return mine[-1].what.removesuffix("_begins")


def family(worker: Started) -> set[int]:
    """A worker's process and its children (the prefork pool)."""
    try:
        return {worker.pid, *(child.pid for child in psutil.Process(worker.pid).children())}
    except psutil.NoSuchProcess:
        return {worker.pid}


def claims(world: World) -> list[tuple[Head, int]]:
    """The claimed runs, each with the process that holds it."""
    found = world.store.find(Filter(states=frozenset({State.CLAIMED}), host=process_host(), limit=1000))
    return [(head, int((head.owner or "//").split("/")[-2])) for head in found]


def with_parent(pid: int) -> set[int]:
    """A process and its parent (of a child of the prefork pool: the worker)."""
    try:
        return {pid, psutil.Process(pid).ppid()}
    except psutil.NoSuchProcess:
        return {pid}


def strike(world: World, victim: Started, kills: Kills) -> None:
    """Kill a worker and look at once what it held."""
    pids = family(victim)
    victim.signal(signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL
    held = [head for head, pid in claims(world) if pid in pids]
    kills.total += 1
    if held:
        kills.holding += 1
        effects = world.effects()
        kills.where.update(doing(effects, pids, head) for head in held)


def chaos(world: World, runs: int, wanted: int, seed: int, start: Callable[[], Started] | None = None) -> Kills:
    """Kill workers until enough of them held something and all runs are over; `start` starts one."""
    dice = random.Random(seed)
    new = start or (lambda: world.worker("--threads", "2"))
    world.create({f"run_{n}": job(seed * 1000 + n) for n in range(runs)}, NoToolPolicy.CONTINUE)
    began = time.monotonic()
    workers = [new() for _ in range(WORKERS)]
    kills = Kills()
    pending = frozenset({State.READY, State.CLAIMED, State.PARKED})

    def left() -> int:
        return len(world.store.find(Filter(states=pending, limit=runs)))

    while pending_runs := left():
        assert time.monotonic() - began < 240, f"{pending_runs} runs do not end"
        if pending_runs <= max(WORKERS, runs // 8):  # or the same few would be hit until they park
            time.sleep(0.05)
            continue
        everywhere = min(kills.where[w] for w in ("model", "tool", "between")) >= wanted / 6
        if kills.holding >= wanted and (everywhere or kills.holding >= 1.5 * wanted):  # no run would end under more
            time.sleep(0.05)
            continue
        holders = {near for _, pid in claims(world) for near in with_parent(pid)}
        at_work = [n for n, worker in enumerate(workers) if worker.pid in holders]
        if not at_work:
            time.sleep(0.01)
            continue
        pick = dice.choice(at_work)
        time.sleep(dice.uniform(0.0, 0.15))
        strike(world, workers[pick], kills)
        workers[pick] = new()
    took = time.monotonic() - began
    judge(world, runs)
    for worker in workers:
        worker.signal(signal.SIGTERM)
    print(
        f"\nchaos: {runs} runs x {CYCLES} cycles in {took:.1f} s under {kills.total} kills, {kills.holding} of them "
        f"while a claim was held; hit {dict(kills.where)}"
    )
    return kills


def judge(world: World, runs: int) -> None:
    heads = world.store.find(Filter(limit=runs * 2))
    assert Counter((h.state, h.status) for h in heads) == {(State.ENDED, "completed"): runs}
    effects = world.effects()
    seen: dict[tuple[str, int], set[str]] = {}
    for effect in effects:
        if effect.what == "sees":
            seen.setdefault((effect.run_id, effect.cycle), set()).add(effect.key)
    assert all(len(digests) == 1 for digests in seen.values()), "a cycle was committed in two ways"
    assert set(seen) == {(h.run_id, c) for h in heads for c in range(1, CYCLES + 1)}, "a cycle is missing"
    turns = {place: int(next(iter(digests)).split(":")[0]) for place, digests in seen.items()}
    assert all(count == cycle - 1 for (_, cycle), count in turns.items()), "a cycle saw too many or too few before it"
    charges = [e for e in effects if e.what == "charge"]
    keys = {e.key for e in charges}
    assert sum(e.verdict == "applied" for e in charges) == len(keys)
    cycles_of = Counter((e.run_id, e.cycle) for e in charges if e.verdict == "applied")
    assert set(cycles_of.values()) == {1}, "an effect was applied twice under two keys"
    again = sum(e.verdict == "repeated" for e in charges)
    models = Counter((e.run_id, e.cycle) for e in effects if e.what == "model_begins")
    print(
        f"\n{len(charges)} charges, {again} of them repeated; {sum(models.values()) - len(models)} model calls repeated"
    )
    if world.url.startswith("sqlite"):
        with sqlite3.connect(world.url.removeprefix("sqlite:///")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()


def test_twenty_runs_survive_random_kills(world: World) -> None:
    kills = chaos(world, runs=20, wanted=6, seed=1)
    assert kills.holding >= 3


@pytest.mark.slow
def test_two_hundred_runs_survive_random_kills(shared_world: World) -> None:
    kills = chaos(shared_world, runs=200, wanted=70, seed=2)
    assert kills.holding >= 60
    assert all(kills.where[place] >= 10 for place in ("model", "tool", "between")), kills.where
    until(lambda: not shared_world.store.find(Filter(states=frozenset({State.CLAIMED}))), "no claim is left")


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_twenty_runs_survive_the_kills_of_celery_workers(cluster: World, pool: str) -> None:
    kills = chaos(cluster, 20, 4, 3, lambda: cluster.celery("-c", "2", pool=pool))
    assert kills.holding >= 2


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_two_hundred_runs_survive_the_kills_of_celery_workers(cluster: World, pool: str) -> None:
    kills = chaos(cluster, 200, 70, 4, lambda: cluster.celery("-c", "2", pool=pool))
    assert kills.holding >= 60
    until(lambda: not cluster.store.find(Filter(states=frozenset({State.CLAIMED}))), "no claim is left")
