"""The processes that advance runs. `app` is the Celery application: `celery -A vv_agent.workers worker`."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def _application() -> Any:
    from vv_agent.settings import read_settings
    from vv_agent.workers.celery import make_app

    return make_app(read_settings())


def __getattr__(name: str) -> Any:
    """`app`, made from the environment when first asked for: importing reads nothing."""
    if name == "app":
        return _application()
    raise AttributeError(f"module 'vv_agent.workers' has no attribute {name!r}")
