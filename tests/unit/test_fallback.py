"""A starter that helps itself while no worker is there."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.harness import until
from tests.scenarios import module_of_a_shop as shop
from vv_agent import CheckpointConfig, RunConfig, Runner
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Presence
from vv_agent.dispatch.distributed import DistributedBackend
from vv_agent.dispatch.store import StoreDispatcher
from vv_agent.errors import StoreError
from vv_agent.runtime.recipe import CycleRecipe


class Stumbling(MemoryStore):
    """Does not say which workers are there, the first times."""

    refusals = 2

    def presences(self, *args: Any, **more: Any) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise StoreError("store_unavailable", "not now")
        return super().presences(*args, **more)


def test_the_starter_helps_itself_also_after_the_store_did_not_answer(tmp_path: Path) -> None:
    store = Stumbling()
    config = RunConfig(
        checkpoint_config=CheckpointConfig(key="k", store=store),
        execution_backend=DistributedBackend(StoreDispatcher(store)),
    )
    runner = Runner(model_provider=shop.models, workspace=tmp_path)
    handle = runner.start(shop.agent, "What is a pear?", run_config=config)
    assert handle.result(20).final_output == "A pear costs 2.50."
    assert store.refusals == 0


class Refusing(MemoryStore):
    """With a worker that is there and has not the code."""

    def presences(self, *args: Any, **more: Any) -> Any:
        return (Presence("w", ("vv-agent",), 1),)


class Refused(StoreDispatcher):
    """Each hint is answered with a refusal."""

    def dispatch(self, recipe: CycleRecipe) -> bool:
        return bool(
            self._store.defer(recipe.key, recipe.cycle, "run_incompatible: the tool 'weigh' is missing", 60_000)
        )


def test_the_starter_helps_itself_when_the_workers_refuse(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = Refusing()
    config = RunConfig(
        checkpoint_config=CheckpointConfig(key="k", store=store),
        execution_backend=DistributedBackend(Refused(store), patience=0.5),
    )
    runner = Runner(model_provider=shop.models, workspace=tmp_path)
    handle = runner.start(shop.agent, "What is a pear?", run_config=config)
    assert handle.result(20).final_output == "A pear costs 2.50."
    said = capfd.readouterr().err
    assert said.count("cannot take the run: run_incompatible: the tool 'weigh' is missing; working on 'k'") == 1


class Counting(MemoryStore):
    """With a worker that is there and takes nothing; counts what is asked of it."""

    looks = 0
    workers = (Presence("w", ("vv-agent",), 1),)

    def presences(self, *args: Any, **more: Any) -> Any:
        return self.workers

    def look(self, key: str) -> Any:
        self.looks += 1
        return super().look(key)


def test_many_runs_of_workers_are_watched_from_one_thread(tmp_path: Path) -> None:
    """A starter of many runs has one thread for them all, and leaves the store alone while workers are there."""
    store = Counting()
    runner = Runner(model_provider=shop.models, workspace=tmp_path)
    handles = []
    for n in range(30):
        config = RunConfig(
            checkpoint_config=CheckpointConfig(key=f"k{n}", store=store),
            execution_backend=DistributedBackend(StoreDispatcher(store)),
        )
        handles.append(runner.start(shop.agent, "What is a pear?", run_config=config))
    began, before = time.monotonic(), store.looks
    until(lambda: time.monotonic() - began > 1.0, "a second went by")
    assert [thread.name for thread in threading.enumerate()].count("vv-fallback") == 1
    assert store.looks - before <= 2 * 30
    store.workers = ()
    assert {handle.result(30).status for handle in handles} == {"completed"}
    until(lambda: "vv-fallback" not in {thread.name for thread in threading.enumerate()}, "the watch is over")


def test_a_thread_that_cannot_be_started_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, start = MemoryStore(), threading.Thread.start
    refused: list[str] = []

    def scarce(thread: threading.Thread) -> None:
        if thread.name == "vv-fallback-run" and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    config = RunConfig(
        checkpoint_config=CheckpointConfig(key="k", store=store),
        execution_backend=DistributedBackend(StoreDispatcher(store)),
    )
    runner = Runner(model_provider=shop.models, workspace=tmp_path)
    assert runner.start(shop.agent, "What is a pear?", run_config=config).result(20).status == "completed"
    assert refused == ["vv-fallback-run"]
