"""A run that this process has not the code for is an error that says what is missing, with every local backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.scenarios import module_of_a_shop as shop
from vv_agent import CheckpointConfig, RunConfig, Runner, process
from vv_agent.checkpoint.record import Seen
from vv_agent.checkpoint.store import open_store
from vv_agent.dispatch.distributed import DistributedBackend
from vv_agent.dispatch.inline import InlineBackend
from vv_agent.dispatch.store import StoreDispatcher
from vv_agent.dispatch.threaded import ThreadBackend
from vv_agent.errors import CannotServe
from vv_agent.runtime.recipe import CycleRecipe
from vv_agent.settings import Settings


def test_a_run_whose_code_may_not_be_loaded_is_an_error_everywhere(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    home, elsewhere = open_store(url), open_store(url)  # each as another process opens it
    nobody = Settings(imports=("nothing.of.ours",))
    config = RunConfig(
        checkpoint_config=CheckpointConfig(key="pear", store=home),
        execution_backend=DistributedBackend(StoreDispatcher(home), fallback=False),
    )
    runner = Runner(model_provider=shop.models, workspace=tmp_path / "files", settings=Settings())
    handle = runner.start(shop.agent, "What is a pear?", run_config=config)
    said = []
    backends: list[Any] = [InlineBackend(), ThreadBackend(1)]
    for backend in backends:
        engine = process.engine_for(elsewhere, nobody)
        snapshot = elsewhere.load("pear", Seen())
        assert snapshot is not None
        with pytest.raises(CannotServe) as caught:
            backend.drive(engine, CycleRecipe.of(snapshot.head, elsewhere.id), resume=True)
        said.append(str(caught.value))
    with pytest.raises(CannotServe) as caught:
        Runner(settings=nobody).resume("pear", store=elsewhere)
    assert [*said, str(caught.value)] == [said[0]] * 3
    assert said[0].startswith("run_incompatible: run ")
    assert " cannot go on here: " in said[0]
    assert "VV_AGENT_IMPORTS" in said[0]
    assert handle.cancel()
    handle.result(10)
    home.close()
    elsewhere.close()
