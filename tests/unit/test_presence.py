"""A worker stays visible to those who look for one, whatever its lease."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Presence
from vv_agent.dispatch.distributed import workers_of
from vv_agent.runtime import lease
from vv_agent.runtime.lease import LeaseKeeper
from vv_agent.runtime.owner import process_host


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


def test_a_killed_worker_of_this_host_counts_no_more_at_once() -> None:
    worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[19]
    store = MemoryStore()
    shown = Presence(f"w@{process_host()}/{worker.pid}/{start}", ("q",), 1)
    store.renew([], lease=1, presence=shown)
    assert workers_of(store, "q")
    worker.kill()
    worker.communicate()
    assert not workers_of(store, "q")
    assert [presence.id for presence in store.presences()] == [shown.id]
