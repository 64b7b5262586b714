"""State that the host keeps with a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.runs import Died, Host
from vv_agent.checkpoint.memory import MemoryStore


class Counter:
    namespace, version, required = "com.example.counter", "1", True

    def __init__(self, value: int) -> None:
        self.value = value

    def snapshot(self) -> Any:
        return {"value": self.value}

    def restore(self, state: Any) -> None:
        self.value = state["value"]


def test_the_state_is_in_the_record_from_its_creation_on(tmp_path: Path) -> None:
    host = Host(MemoryStore(), tmp_path)
    died = host.run(die_at=("store.claim", "before", 1), checkpoint_extensions=[Counter(7)])
    assert isinstance(died.error, Died)
    here = Counter(0)
    assert host.run(["done"], checkpoint_extensions=[here]).ok.status == "completed"
    assert here.value == 7


def test_a_state_that_is_too_large_stops_the_run_before_it_is_created(tmp_path: Path) -> None:
    host = Host(MemoryStore(), tmp_path, checkpoint={"max_extension_state_bytes": 10})
    assert host.run(checkpoint_extensions=[Counter(7)]).code == "checkpoint_extension_state_too_large"
    assert host.store.load(host.key or "") is None
