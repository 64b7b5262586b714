"""The runs of a tree on their way through the pool."""

from __future__ import annotations

from typing import Any

import pytest

from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.dispatch import threaded
from vv_agent.runtime.advance import Advanced
from vv_agent.runtime.context import Engine
from vv_agent.runtime.program import Programs
from vv_agent.runtime.recipe import CycleRecipe


def test_a_run_that_is_asked_for_during_its_last_step_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    engine = Engine(store, Programs(store))
    tree = threaded._Tree(threaded.ThreadBackend(1))
    recipe = CycleRecipe(key="k", cycle=1, definition="d" * 64, store=store.id)
    steps: list[str] = []

    def advance(*args: Any, **options: Any) -> Advanced:
        steps.append("step")
        if len(steps) == 1:
            tree.begin(engine, recipe)
        return Advanced("ended")

    monkeypatch.setattr(threaded, "advance", advance)
    assert tree.begin(engine, recipe).done.wait(10)
    assert len(steps) == 2
