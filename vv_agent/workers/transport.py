"""The Redis transport, made deaf to garbage: one undecodable string on the queue's key would end a Celery worker."""

from __future__ import annotations

import logging
from queue import Empty
from typing import Any

from kombu.exceptions import KombuError
from kombu.transport import TRANSPORT_ALIASES, redis

log = logging.getLogger("vv_agent.worker")


class Channel(redis.Channel):
    """A channel that drops what is no message, with a line in the log."""

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except (ValueError, TypeError, KeyError, AttributeError, KombuError) as error:
            log.error("a message that cannot be read was dropped from the queue: %s", _shortly(error))
            raise Empty from None

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        del timeout
        while True:
            try:
                return super()._get(queue)  # type: ignore[no-untyped-call]
            except ValueError as error:
                log.error("a message that cannot be read was dropped from %s: %s", queue, _shortly(error))


class Transport(redis.Transport):
    """kombu's Redis transport with our channel."""

    Channel = Channel


def install() -> None:
    """Use it for every `redis://` broker of this process."""
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = f"{__name__}:Transport"


def _shortly(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
