"""A starter that helps itself while no worker is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.scenarios import module_of_a_shop as shop
from vv_agent import CheckpointConfig, RunConfig, Runner
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.dispatch.distributed import DistributedBackend
from vv_agent.dispatch.store import StoreDispatcher
from vv_agent.errors import StoreError


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
