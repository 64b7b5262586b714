"""What a store promises beyond the answers of its verbs: what survives power loss."""

from __future__ import annotations

from collections.abc import Callable

from tests.contract.test_store import claimed, new
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Signal
from vv_agent.checkpoint.store import T, Transaction


class NotedStore(MemoryStore):
    """Notes which transactions were to survive power loss."""

    def __init__(self) -> None:
        super().__init__()
        self.durable: list[bool] = []

    def _atomically(self, work: Callable[[Transaction], T], *, write: bool = True, durable: bool = False) -> T:
        if write:
            self.durable.append(durable)
        return super()._atomically(work, write=write, durable=durable)


def test_a_new_run_and_a_posted_signal_survive_power_loss() -> None:
    store = NotedStore()
    store.create([new()])
    store.post("k", Signal("s1", "cancel", b""))
    store.post("k", Signal("s2", "steer", b"left"))
    claimed(store)
    assert store.durable == [True, True, True, False], "a claim is made again"
