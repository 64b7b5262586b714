"""Trees of runs: ends against parks and ends on every store, and fans of work while their workers are killed."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.harness import World, until
from tests.integration.test_chaos import claims, with_parent
from tests.integration.test_races import ROUNDS, Pair, claimed, new, tell
from tests.jobs import lead, plan
from tests.spawner import Started
from vv_agent import RunConfig
from vv_agent.checkpoint.record import Change, End, Filter, NewRun, Park, ParkReason, Progress, Signal, State
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.dispatch.celery import CeleryDispatcher
from vv_agent.dispatch.distributed import DistributedBackend
from vv_agent.dispatch.store import StoreDispatcher
from vv_agent.errors import CheckpointError, SignalsWaiting
from vv_agent.run_handle import RunHandle


def below(n: int) -> NewRun:
    return NewRun(
        key=f"c{n}", run_id=f"run_c{n}", definition="d" * 64, definition_body=b"def", body=b"head", queue="q",
        log=(b"first",), root_key=f"k{n}", parent_key=f"k{n}",
    )  # fmt: skip


def families(store: CheckpointStore) -> list[tuple[Any, Any]]:
    """Claims of runs and of one below each."""
    made = []
    for n in range(ROUNDS):
        store.create([new(f"k{n}")])
        saved = store.save(claimed(store, f"k{n}"), Change(1, Progress(), creates=(below(n),)))
        made.append((saved.claim, claimed(store, f"c{n}", token="c" * 32)))
    return made


def ends(store: CheckpointStore, made: list[tuple[Any, Any]]) -> Callable[[int], object]:
    """The end of the run below, which tells the other one; a cancel that comes first is obeyed."""

    def end(n: int) -> str:
        told = (f"k{n}", Signal(f"child_c{n}", "child"))
        try:
            store.save(made[n][1], Change(1, End(), status="completed", ending=True, posts=(told,)))
        except SignalsWaiting:
            change = Change(1, End(), status="failed", ending=True, posts=(told,), consumed=("over",))
            store.save(made[n][1], change)
            return "cancelled"
        return "completed"

    return end


@pytest.mark.slow
def test_an_end_below_against_a_park_wakes_the_run_once(real_store: CheckpointStore) -> None:
    store, began = real_store, time.monotonic()
    made = families(store)
    Pair().run(ROUNDS, lambda n: store.save(made[n][0], Change(2, Park(ParkReason.CHILDREN))), ends(store, made))
    outcomes: Counter[str] = Counter()
    for n in range(ROUNDS):
        head = store.look(f"k{n}").head  # type: ignore[union-attr]
        assert (head.state, head.signal_n) == (State.READY, 1), f"round {n} is stuck: {head}"
        outcomes["park first" if head.reason is ParkReason.CHILDREN else "end first"] += 1
        assert store.look(f"c{n}").head.state is State.ENDED  # type: ignore[union-attr]
    assert sum(1 for _ in store.take_due(["q"], ROUNDS * 2)) == ROUNDS
    tell("end below against park", store, outcomes, began)


@pytest.mark.slow
def test_an_end_against_an_end_below_leaves_nothing_open(real_store: CheckpointStore) -> None:
    store, began = real_store, time.monotonic()
    made = families(store)

    def over(n: int) -> None:
        told = (f"c{n}", Signal("over", "cancel"))
        store.save(made[n][0], Change(2, End(), status="completed", ending=True, posts=(told,)))

    rounds = Pair().run(ROUNDS, over, ends(store, made))
    outcomes: Counter[str] = Counter()
    for n, (above, ended) in enumerate(rounds):
        assert not isinstance(above, CheckpointError), above
        assert ended in ("completed", "cancelled"), ended
        heads = [store.look(key).head for key in (f"k{n}", f"c{n}")]  # type: ignore[union-attr]
        assert [head.state for head in heads] == [State.ENDED, State.ENDED]
        outcomes[ended] += 1
    tell("end against end below", store, outcomes, began)


def submit(world: World, text: str) -> RunHandle:
    dispatcher = CeleryDispatcher(world.broker) if world.broker else StoreDispatcher(world.store)
    backend = DistributedBackend(dispatcher, fallback=False)
    return world.runner.start(lead(), text, run_config=RunConfig(checkpoint_key="tree", execution_backend=backend))


def fan(count: int) -> str:
    """A run that gives out `count` pieces of work, each of two charges, and joins them."""
    work = plan(
        {"call": [["charge", {"n": 1, "seconds": 0.03}]], "sleep": 0.02}, {"call": [["charge", {"n": 2}]]},
        {"call": [["task_finish", {"message": "found"}]]},
    )  # fmt: skip
    tasks = [{"task_description": work} for _ in range(count)]
    return plan({"call": [["create_sub_task", {"agent_id": "clerk", "tasks": tasks}]]}, {"say": "joined"})


def strike(world: World, start: Callable[[], Started], kills: int, seed: int, *, below: bool = False) -> int:
    """Kill workers that hold a claim (`below`: of a run below; one run alone would park after five such kills), until
    that many were hit or the tree is over."""
    dice, workers, hit = random.Random(seed), [start() for _ in range(3)], 0
    open_ = frozenset({State.READY, State.CLAIMED, State.PARKED})
    deadline = time.monotonic() + 240

    def over() -> bool:
        return world.head("tree") is not None and not world.store.find(Filter(root_key="tree", states=open_))

    while hit < kills and not over():
        assert time.monotonic() < deadline, "the tree does not end"
        held = [pid for head, pid in claims(world) if head.parent_key is not None or not below]
        holders = {near for pid in held for near in with_parent(pid)}
        at_work = [n for n, worker in enumerate(workers) if worker.pid in holders]
        if not at_work:
            time.sleep(0.01)
            continue
        pick = dice.choice(at_work)
        time.sleep(dice.uniform(0.0, 0.05))
        workers[pick].signal(signal.SIGKILL)
        workers[pick].wait()
        hit += 1
        workers[pick] = start()
    until(over, "the tree is over", timeout=max(1.0, deadline - time.monotonic()))
    for worker in workers:
        worker.signal(signal.SIGTERM)
    return hit


def judge(world: World, records: int, charges: int) -> None:
    heads = world.store.find(Filter(root_key="tree"))
    assert Counter((head.state, head.status) for head in heads) == {(State.ENDED, "completed"): records}
    effects = world.effects()
    applied = Counter(e.key for e in effects if e.what == "charge" and e.verdict == "applied")
    assert (len(applied), set(applied.values())) == (charges, {1})
    seen: dict[tuple[str, int], set[str]] = {}
    for effect in effects:
        if effect.what == "sees":
            seen.setdefault((effect.run_id, effect.cycle), set()).add(effect.key)
    assert all(len(digests) == 1 for digests in seen.values()), "a cycle was committed in two ways"


def joined(world: World, start: Callable[[], Started], count: int, kills: int) -> None:
    began = time.monotonic()
    handle = submit(world, fan(count))
    hit = strike(world, start, kills, seed=count, below=True)
    result = handle.result(30)
    assert result.final_output == "joined"
    assert hit >= kills // 2
    judge(world, count + 1, count * 2)
    types = Counter(event.type for event in result.events)
    assert (types["sub_run_started"], types["sub_run_completed"]) == (count, count)
    print(f"\ntree: {count} runs below joined in {time.monotonic() - began:.1f} s under {hit} kills")


def test_fifty_runs_below_are_joined_while_local_workers_are_killed(world: World) -> None:
    joined(world, lambda: world.worker("--threads", "4"), 50, kills=10)


def test_fifty_runs_below_are_joined_while_celery_workers_are_killed(cluster: World) -> None:
    joined(cluster, lambda: cluster.celery("-c", "4"), 50, kills=6)


@pytest.mark.slow
def test_a_run_is_handed_over_while_workers_are_killed(shared_world: World) -> None:
    """The agent that takes over has its plan in the input; the turns of the first one are counted on."""
    steps: list[dict[str, Any]] = [{"call": [["charge", {"n": n, "seconds": 0.05}]], "sleep": 0.05} for n in range(6)]
    written = plan({}, *steps, {"say": "written"})
    handle = submit(shared_world, plan({"call": [["transfer_to_writer", {"input": written}]], "sleep": 0.3}))
    hit = strike(shared_world, lambda: shared_world.worker("--threads", "2"), 4, seed=5)
    result = handle.result(30)
    assert (result.agent_name, result.final_output) == ("writer", "written")
    judge(shared_world, 1, 6)
    moves = [event.type for event in result.events if event.type.startswith("handoff")]
    assert moves == ["handoff_started", "handoff_completed"]
    print(f"\nhanded over under {hit} kills")
