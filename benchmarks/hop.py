"""The application of the Celery measures: ours, with tasks beside it that do nothing but send themselves again; two of
them write on their way what a cycle writes, by three bare scripts that check nothing."""

from __future__ import annotations

from functools import cache
from queue import SimpleQueue
from typing import Any

from benchmarks.floor import BARE_SCRIPT
from vv_agent.dispatch.celery import CeleryDispatcher
from vv_agent.runtime.helpers import Helpers
from vv_agent.settings import read_settings
from vv_agent.workers import app

_HEAD, _BODY = "h" * 500, "b" * 600
_sender = CeleryDispatcher(read_settings().broker or "")


@app.task(name="bench.hop")  # type: ignore[untyped-decorator]
def hop(left: int, channel: str) -> None:
    """Send itself again `left` times, then say so."""
    _again("bench.hop", left, channel)


@app.task(name="bench.bare")  # type: ignore[untyped-decorator]
def bare(left: int, channel: str) -> None:
    """The same, with three scripts on the way."""
    _write(left, "", _BODY, _BODY)
    _again("bench.bare", left, channel)


@app.task(name="bench.handed")  # type: ignore[untyped-decorator]
def handed(left: int, channel: str) -> None:
    """And with two calls in a helper thread, as a model and a tool are called so that they can be cut off."""
    _write(left, "")
    for _ in range(2):
        done: SimpleQueue[object] = SimpleQueue()
        _helpers().submit(lambda: None, done.put)
        done.get(timeout=10.0)
        _write(left, _BODY)
    _again("bench.handed", left, channel)


def _write(left: int, *bodies: str) -> None:
    for body in bodies:
        _script()(keys=["{1}:h", "{1}:e", "{1}:d"], args=[left, _HEAD, body, body])


def _again(name: str, left: int, channel: str) -> None:
    if left > 0:
        _sender._client().send_task(name, args=(left - 1, channel), queue=read_settings().queue)
        return
    import redis

    with redis.Redis.from_url(read_settings().broker or "") as client:
        client.rpush(channel, "done")


@cache
def _helpers() -> Helpers:
    return Helpers()


@cache
def _script() -> Any:
    import redis

    return redis.Redis.from_url(read_settings().store, db=3).register_script(BARE_SCRIPT)
