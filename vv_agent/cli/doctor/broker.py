"""The broker, and how the Celery app of the workers uses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vv_agent.cli.doctor.finding import Finding, ok, problem
from vv_agent.settings import Settings

_PATIENCE = 5
_DEFAULT_VISIBILITY = 3600
"""Seconds, of kombu's Redis transport."""


def check(settings: Settings) -> Iterator[Finding]:
    """The broker of the settings."""
    from vv_agent.workers import app

    broker = settings.broker or ""
    redis_like = broker.startswith("redis")
    if redis_like:
        from vv_agent.cli.doctor import redis

        yield from redis.check(broker, "broker", keeps_runs=False)
    else:
        yield from reach(app)
    yield from configuration(app.conf, settings.lease_seconds, redis_like=redis_like)


def reach(app: Any) -> Iterator[Finding]:
    """Whether a broker of any kind answers."""
    connection = app.connection_for_write()
    place = connection.as_uri()  # without its password
    try:
        connection.ensure_connection(max_retries=1, timeout=_PATIENCE)
    except Exception as error:  # each transport has errors of its own
        yield problem("broker", f"{place} did not answer ({error})", "start it, or correct VV_AGENT_BROKER")
    else:
        yield ok("broker", f"{place} answers")
    finally:
        connection.release()


def configuration(conf: Any, lease_seconds: float, *, redis_like: bool) -> Iterator[Finding]:
    """The options of Celery that decide what becomes of a message whose worker dies."""
    seen = (conf.broker_transport_options or {}).get("visibility_timeout", _DEFAULT_VISIBILITY)
    if redis_like and seen <= lease_seconds:
        yield problem(
            "visibility timeout", f"{seen:g} s is not above the lease of {lease_seconds:g} s: messages of living "
            "workers are delivered again", "raise VV_AGENT_VISIBILITY_SECONDS, or lower "
            "VV_AGENT_LEASE_SECONDS",
        )  # fmt: skip
    elif redis_like:
        yield ok("visibility timeout", f"{seen:g} s, lease {lease_seconds:g} s")
    if not conf.task_acks_late:
        yield problem(
            "acknowledgement", "messages are acknowledged before their cycle is done: a killed worker's is lost, and "
            "its run waits for the sweeper", "set task_acks_late = True",
        )  # fmt: skip
    else:
        yield ok("acknowledgement", "after the cycle")
    if conf.worker_prefetch_multiplier != 1:
        yield problem(
            "prefetch", f"worker_prefetch_multiplier is {conf.worker_prefetch_multiplier}: a busy worker keeps "
            "messages that a free one could serve", "set worker_prefetch_multiplier = 1",
        )  # fmt: skip
    else:
        yield ok("prefetch", "one message for each slot")
