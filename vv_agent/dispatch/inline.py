"""The inline backend: the caller's thread advances the run."""

from __future__ import annotations

from vv_agent.dispatch.base import drive
from vv_agent.runtime.context import Engine
from vv_agent.runtime.recipe import CycleRecipe


class InlineBackend:
    """A loop in the caller's thread."""

    local = True

    def drive(self, engine: Engine, recipe: CycleRecipe, *, resume: bool = False) -> None:
        drive(engine, recipe, resume=resume)
