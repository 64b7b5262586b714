"""Merging the durable events of a run with what comes live."""

from __future__ import annotations

from typing import Any

import pytest

from vv_agent.events import make_event
from vv_agent.runtime.eventlog import Numbered
from vv_agent.runtime.tail import Followed


class Reader:
    unknown: frozenset[tuple[int, int, int]] = frozenset()


class Sink(list[tuple[str, int]]):
    def put(self, event: Any) -> None:
        self.append((event.type, int(event.event_id) if event.event_id.isdigit() else -1))


def item(event_type: str, cycle: int, n: int, **fields: Any) -> Numbered:
    event = make_event(
        event_type, event_id=f"{cycle}{n}", run_id="r", trace_id="t", created_at=1.0, agent_name="a", cycle_index=cycle,
        **fields,
    )  # fmt: skip
    return Numbered(cycle, 1, n, event)


def started(cycle: int, n: int = 0) -> Numbered:
    return item("cycle_started", cycle, n)


def delta(cycle: int, n: int) -> Numbered:
    return item("assistant_delta", cycle, n, delta="x", content_chars=1, estimated_tokens=1)


@pytest.fixture
def seen() -> Sink:
    return Sink()


@pytest.fixture
def followed(seen: Sink) -> Followed:
    return Followed("k", seen, lambda _: None, Reader(), live=True)  # type: ignore[arg-type]


def test_of_a_cycle_that_was_joined_late_only_text_comes_before_its_first_event(followed: Followed, seen: Sink) -> None:
    followed.show([], [delta(1, 3), started(1, 4)])
    assert seen == [("assistant_delta", 13)]
    followed.show([started(1, n) for n in (0, 1, 2, 4)], [])
    assert seen[1:] == [("cycle_started", n) for n in (10, 11, 12, 14)]


def test_a_later_cycle_waits_with_the_events_that_wait_for_text(followed: Followed, seen: Sink) -> None:
    followed.show([started(1), started(1, 2)], [])  # number 1 may still come
    assert seen == []
    followed.show([], [started(2)])
    assert seen == []
    followed.show([], [delta(1, 1)])
    assert seen == [("cycle_started", 10), ("assistant_delta", 11), ("cycle_started", 12), ("cycle_started", 20)]


def test_text_that_does_not_come_is_a_gap_and_is_waited_for_three_rounds(followed: Followed, seen: Sink) -> None:
    followed.show([started(1), started(1, 2)], [started(2)])
    for _ in range(2):
        followed.show([], [])
    assert seen == []
    followed.show([], [])
    assert seen == [("diagnostic", -1), ("cycle_started", 10), ("cycle_started", 12), ("cycle_started", 20)]
