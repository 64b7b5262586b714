"""What a worker process does with a recipe that comes to it, and what each delivery costs at the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import until
from tests.scenarios.conftest import Scripts, an_agent
from vv_agent import RunConfig, Runner
from vv_agent.checkpoint.config import CheckpointConfig
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Head, State
from vv_agent.dispatch.distributed import DistributedBackend
from vv_agent.errors import CheckpointError
from vv_agent.runtime.recipe import CycleRecipe
from vv_agent.settings import Settings
from vv_agent.testing import call
from vv_agent.tools import function_tool
from vv_agent.workers import bootstrap, tasks
from vv_agent.workers.station import Station
from vv_agent.workers.sweeper import Sweeper

SETTINGS = Settings(queue="station", imports=("tests",))
VERBS = ("create", "load", "claim", "save", "renew", "post", "defer", "expire", "take_due", "entries", "find")


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


class Counting(MemoryStore):
    """Counts its verbs."""

    def __init__(self) -> None:
        super().__init__()
        self.verbs: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        if name in VERBS:
            super().__getattribute__("verbs")[name] += 1
        return super().__getattribute__(name)


class Broker:
    """A dispatcher that keeps what it is given, or is down."""

    def __init__(self, *, up: bool = True) -> None:
        self.up = up
        self.sent: list[CycleRecipe] = []

    @property
    def hold_ms(self) -> int:
        return 8_000 if self.up else 0

    def dispatch(self, recipe: CycleRecipe) -> bool:
        if self.up:
            self.sent.append(recipe)
        return self.up


class Place:
    """A store, a broker and a station; runs are started with a script."""

    def __init__(self, folder: Path) -> None:
        self.store = Counting()
        self.broker = Broker()
        self.station = Station(self.store, SETTINGS, queues=("station",), slots=2, dispatcher=self.broker)
        self._folder = folder

    def start(self, *steps: Any, **options: Any) -> CycleRecipe:
        runner = Runner(model_provider=Scripts.of(steps), workspace=self._folder, settings=SETTINGS)
        config = RunConfig(
            checkpoint_config=CheckpointConfig(key="k", store=self.store),
            execution_backend=DistributedBackend(self.broker, fallback=False),
            **options,
        )
        runner.start(an_agent(add), "Go.", run_config=config)
        return CycleRecipe.of(self.head(), self.store.id)

    def head(self) -> Head:
        snapshot = self.store.look("k")
        assert snapshot is not None
        return snapshot.head


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.station.stop()
    made.station.finish()


def test_a_delivery_does_one_cycle_and_hands_on_the_next(place: Place) -> None:
    recipe = place.start(call("add", {"a": 1, "b": 2}), "three")
    assert [sent.cycle for sent in place.broker.sent] == [1]
    place.station.carry(recipe)
    assert [sent.cycle for sent in place.broker.sent] == [1, 2]
    head = place.head()
    assert (head.state, head.cycle) == (State.READY, 2)
    assert head.due is not None
    assert head.due > place.store.now() + 7_000, "the message has time to arrive"


def test_a_duplicate_delivery_costs_one_verb_and_no_call(place: Place) -> None:
    recipe = place.start(call("add", {"a": 1, "b": 2}), "three")
    place.station.carry(recipe)
    before = Counter(place.store.verbs)
    for _ in range(3):
        place.station.carry(recipe)
    spent = {name: n for name, n in (place.store.verbs - before).items() if name not in ("load", "entries")}
    assert spent == {"claim": 3}, "no save, so neither a model nor a tool was called"
    assert [sent.cycle for sent in place.broker.sent] == [1, 2], "and no message"


def test_without_a_broker_the_slot_goes_on_with_the_run(place: Place) -> None:
    place.broker.up = False
    recipe = place.start(call("add", {"a": 1, "b": 2}), "three")
    place.station.carry(recipe)
    assert place.head().state is State.ENDED


def test_the_sweeper_sends_a_lost_message_again_and_carries_the_run_when_that_does_not_help(place: Place) -> None:
    now = [place.store.now()]
    place.store._clock = lambda: now[0]
    recipe = place.start("done")
    sweeper, sent = Sweeper(place.station), place.broker.sent
    assert not sweeper.round(), "its message is on its way"
    for rounds, wait in ((1, 8_000), (2, 8_000)):
        now[0] += wait * 2
        assert sweeper.round()
        assert sent[1:] == [recipe] * rounds
    now[0] += 120_000
    assert sweeper.round()
    until(lambda: place.head().state is State.ENDED, "the station carries the run")
    assert len(sent) == 3


def test_a_station_that_stops_takes_nothing_and_gives_back_what_comes(place: Place) -> None:
    recipe = place.start("done")
    place.station.stop()
    assert place.station.free == 0
    place.station.carry(recipe)
    head = place.head()
    assert (head.state, head.revision) == (State.READY, 0)
    assert head.due is not None
    assert head.due <= place.store.now(), "others need not wait for it"


@pytest.mark.parametrize("text", ["", "garbage", "{}", '{"key": "k"}', "[]", "null"])
def test_a_broken_message_is_dropped_with_a_line_in_the_log(
    text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def nobody() -> Station:
        raise AssertionError("it must not come this far")

    monkeypatch.setattr(bootstrap, "station", nobody)
    for args in ((text,), (text, 1), (1,), ()):
        tasks.advance(*args)
    assert caplog.text.count("recipe_invalid") == 4
    with pytest.raises(CheckpointError, match="recipe_invalid"):
        CycleRecipe.from_json(text)
