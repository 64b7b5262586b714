"""The application of the Celery measures: ours, with a task beside it that does nothing but send itself again."""

from __future__ import annotations

from vv_agent.dispatch.celery import CeleryDispatcher
from vv_agent.settings import read_settings
from vv_agent.workers import app

_sender = CeleryDispatcher(read_settings().broker or "")


@app.task(name="bench.hop")  # type: ignore[untyped-decorator]
def hop(left: int, channel: str) -> None:
    """Send itself again `left` times, then say so."""
    if left > 0:
        _sender._client().send_task("bench.hop", args=(left - 1, channel), queue=read_settings().queue)
        return
    import redis

    with redis.Redis.from_url(read_settings().broker or "") as client:
        client.rpush(channel, "done")
