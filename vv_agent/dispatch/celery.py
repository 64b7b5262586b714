"""The dispatcher with a broker: a task that carries the recipe and nothing else, sent by name.

Only the client's half is here, so that starting a run loads no worker: the task itself is in `workers.tasks`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

from vv_agent.runtime.recipe import CycleRecipe

log = logging.getLogger("vv_agent.dispatch")

TASK = "vv_agent.advance"
"""The name of the only task; its one argument is a recipe's JSON."""
KEY_PREFIX = "vvq:"
"""What every key of ours at a Redis broker begins with."""
_TIMEOUT = 0.6
"""Seconds a connect or an answer of the broker may take; a silent one is asked three times."""
_PAUSE = 3.0
"""Seconds without a further try after one that failed: a broker that is down must not slow every commit."""
_HOLD_MS = 8_000


class CeleryDispatcher:
    """Sends a recipe to its queue at a Celery broker.

    Gives up within two seconds, and after a failure says False at once for three more. While it does, `hold_ms` is 0:
    a commit then makes its run due at once, and workers advance it from the store.
    """

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        self._app: Any = None
        self._pid = 0
        self._resting_until = 0.0

    @property
    def hold_ms(self) -> int:
        return 0 if self._resting else _HOLD_MS

    @property
    def _resting(self) -> bool:
        return time.monotonic() < self._resting_until

    def dispatch(self, recipe: CycleRecipe) -> bool:
        if self._resting:
            return False
        try:
            self._client().send_task(TASK, args=(recipe.to_json(),), queue=recipe.queue, argsrepr="")
        except Exception as error:  # whatever the transport's library raises: the hint was not sent
            self._resting_until = time.monotonic() + _PAUSE
            log.warning("the broker took no message (%s); runs are advanced from the store", error or type(error))
            return False
        return True

    def close(self) -> None:
        """Close the connections to the broker; the next message opens them again."""
        with self._lock:
            app, self._app = self._app, None
        if app is not None:
            app.close()

    def _client(self) -> Any:
        """The app of this process; a fork makes its own, for connections cannot be shared."""
        with self._lock:
            if self._app is None or self._pid != os.getpid():
                self._app, self._pid = _client(self._broker), os.getpid()
            return self._app


def _client(broker: str) -> Any:
    from celery import Celery

    app = Celery("vv_agent.client", broker=broker, set_as_current=False)
    app.conf.update(
        **wire_settings(), broker_connection_timeout=_TIMEOUT,
        task_publish_retry_policy={"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0},
        broker_transport_options={**transport_options(broker), **_patience(broker)},
    )  # fmt: skip
    return app


def wire_settings() -> dict[str, Any]:
    """What client and worker agree on: JSON only, and no results."""
    return {
        "task_serializer": "json", "accept_content": ["json"], "event_serializer": "json",
        "result_accept_content": ["json"], "result_backend": None, "task_ignore_result": True,
        "task_create_missing_queues": True,
    }  # fmt: skip


def transport_options(broker: str) -> dict[str, Any]:
    """The options of the broker's transport that client and worker must share."""
    return {"global_keyprefix": KEY_PREFIX} if _is_redis(broker) else {}


def _patience(broker: str) -> dict[str, Any]:
    if _is_redis(broker):
        return {"socket_connect_timeout": _TIMEOUT, "socket_timeout": _TIMEOUT, "max_retries": 0}
    return {"max_retries": 0, "connect_retries_timeout": 1, "read_timeout": _TIMEOUT, "write_timeout": _TIMEOUT}


def _is_redis(broker: str) -> bool:
    return broker.startswith(("redis:", "rediss:", "redis+socket:", "sentinel:"))
