"""A worker whose calls never come back says so, serves no queue any more, and exits to be replaced."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator

import pytest

from tests.harness import until
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.dispatch.distributed import workers_of
from vv_agent.runtime.helpers import Helpers
from vv_agent.settings import Settings
from vv_agent.workers.local import LocalWorker
from vv_agent.workers.station import Station
from vv_agent.workers.sweeper import SweeperThread

SETTINGS = Settings(queue="q")


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """Set at the end, so that no thread is left behind."""
    event = threading.Event()
    yield event
    event.set()


def wear_out(helpers: Helpers, stuck: threading.Event) -> None:
    for _ in range(Helpers.MAX_ABANDONED + 1):
        helpers.abandon(helpers.submit(stuck.wait, lambda call: None))
    assert helpers.exhausted


def test_a_worn_out_worker_is_not_taken_for_one_that_serves(stuck: threading.Event) -> None:
    store = MemoryStore()
    station = Station(store, SETTINGS, queues=("q",), slots=1)
    station.engine.keeper.renew()
    assert workers_of(store, "q")
    wear_out(station.engine.helpers, stuck)
    station.engine.keeper.renew()
    assert not workers_of(store, "q")
    assert station.free == 0


def test_a_worn_out_worker_exits_and_says_what_to_do(stuck: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    worker = LocalWorker(store, SETTINGS, queues=("q",), threads=1)
    wear_out(worker.engine.helpers, stuck)
    with caplog.at_level(logging.ERROR, "vv_agent.worker"), pytest.raises(SystemExit) as left:
        worker.run()
    assert left.value.code == 1
    assert "give these calls timeouts" in caplog.text
    assert not workers_of(store, "q")


def test_a_worn_out_worker_of_a_broker_ends_its_process(stuck: threading.Event) -> None:
    store = MemoryStore()
    station = Station(store, SETTINGS, queues=("q",), slots=1)
    wear_out(station.engine.helpers, stuck)
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    try:
        SweeperThread(station).start()
        until(lambda: told, "the process is told to end")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert station.stopping.is_set()
    assert not workers_of(store, "q")
