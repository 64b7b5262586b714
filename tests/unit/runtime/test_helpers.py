"""Helper threads: kept for the next call, ended when there is none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from vv_agent.runtime.helpers import Call, Helpers


def ignore(call: Call[object]) -> None:
    pass


def served(helpers: Helpers, count: int) -> set[threading.Thread]:
    """The threads that made `count` calls side by side."""
    together = threading.Barrier(count)
    threads: list[threading.Thread] = []

    def work() -> None:
        threads.append(threading.current_thread())
        together.wait(10)

    calls = [helpers.submit(work, ignore) for _ in range(count)]
    for call in calls:
        assert call.finished.wait(10)
        call.result()
    return set(threads)


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_threads_without_work_end_and_new_ones_serve_what_comes_later() -> None:
    helpers = Helpers(idle=0.02)
    first = served(helpers, 8)
    assert len(first) == 8
    wait_until(lambda: not any(thread.is_alive() for thread in first))
    assert first.isdisjoint(served(helpers, 3))


def test_a_thread_is_kept_for_the_next_call() -> None:
    helpers = Helpers()
    first = served(helpers, 1)
    wait_until(lambda: served(helpers, 1) <= first)


def test_no_call_is_lost_when_threads_end_all_the_time() -> None:
    helpers = Helpers(idle=0.0)
    for n in range(2_000):
        call = helpers.submit(lambda n=n: n, ignore)  # type: ignore[misc]
        assert call.finished.wait(10)
        assert call.result() == n
