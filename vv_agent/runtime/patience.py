"""Trying a verb of the store again while the store does not answer. Each may be repeated: it finds its own trace."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from vv_agent.errors import LASTING_FAULTS, StoreError

T = TypeVar("T")
PATIENCE = 5.0
"""Seconds for a verb that nothing depends on yet."""


def patiently(verb: Callable[[], T], *, until: Callable[[], bool] | None = None) -> T:
    """Carry out a verb, again after a passing `StoreError`, until `until` says to give up (default: `PATIENCE`)."""
    end = time.monotonic() + PATIENCE
    over = until or (lambda: time.monotonic() > end)
    pause = 0.02
    while True:
        try:
            return verb()
        except StoreError as error:
            if error.code in LASTING_FAULTS or over():
                raise
        time.sleep(pause)
        pause = min(pause * 2, 0.5)
