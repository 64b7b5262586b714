"""A worker stays visible to those who look for one, whatever its lease."""

from __future__ import annotations

import time

from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Presence
from vv_agent.runtime import lease
from vv_agent.runtime.lease import LeaseKeeper


def test_a_worker_with_a_long_lease_shows_itself_well_before_it_counts_as_gone() -> None:
    store = MemoryStore()
    shown: list[float] = []

    def presence() -> Presence:
        shown.append(time.monotonic())
        return Presence("w", ("q",), 1)

    keeper = LeaseKeeper(store, 3_600_000, presence)
    try:
        keeper.show()
        end = time.monotonic() + 3 * lease.SHOWN_EVERY
        while len(shown) < 2 and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        keeper.close()
    assert len(shown) >= 2
    assert shown[1] - shown[0] < 5.0
