"""The only task of the Celery worker: one message, one cycle."""

from __future__ import annotations

import logging

from vv_agent.errors import VVAgentError
from vv_agent.runtime.recipe import CycleRecipe
from vv_agent.workers import bootstrap

log = logging.getLogger("vv_agent.worker")


def advance(*args: object, **kwargs: object) -> None:
    """Read a recipe, do its cycle if the store says that it is open, and hand on the next one.

    Whatever comes is caught and logged: anybody who can write to the broker may send anything, and a message is a
    hint; the run it meant is found again by the sweeper.
    """
    try:
        recipe = _recipe(args, kwargs)
        bootstrap.station().carry(recipe)
    except VVAgentError as error:
        log.warning("a message was dropped: %s", error)
    except Exception:
        log.exception("a message could not be worked on")


def _recipe(args: tuple[object, ...], kwargs: dict[str, object]) -> CycleRecipe:
    text = args[0] if len(args) == 1 and not kwargs else None
    return CycleRecipe.from_json(text if isinstance(text, str) else "")
