"""The Celery application: `celery -A vv_agent.workers worker`, set up so that nothing else need be said."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from celery import Celery, bootsteps
from celery.apps.worker import Worker
from celery.signals import worker_process_init
from celery.worker.consumer import Consumer

from vv_agent.dispatch.celery import TASK, transport_options, wire_settings
from vv_agent.errors import SettingsError, VVAgentError
from vv_agent.settings import Settings
from vv_agent.workers import bootstrap, tasks, transport

_RECONNECT = 5.0
"""The longest pause between two tries to reach the broker again, in seconds."""


class _Application(Celery):  # type: ignore[misc]
    """Celery, with workers that do not talk to each other: the store is all they share."""

    @property
    def Worker(self) -> Any:  # noqa: N802 - Celery's name
        return self.subclass_with_self(f"{__name__}:_Worker")


class _Worker(Worker):  # type: ignore[misc]
    """A worker with a name of its own, also beside others on one host."""

    def __init__(self, app: Any = None, hostname: str | None = None, **options: Any) -> None:
        unnamed = hostname is None or hostname.startswith("celery@")
        named = f"vv-agent-{os.getpid()}@{socket.gethostname()}" if unnamed else hostname
        options.update(without_gossip=True, without_mingle=True, without_heartbeat=True)
        super().__init__(app=app, hostname=named, **options)


class _Consumer(Consumer):  # type: ignore[misc]
    """A consumer that looks for a lost broker every few seconds, not up to half a minute apart."""

    def ensure_connected(self, conn: Any) -> Any:
        ensure = conn.ensure_connection
        conn.ensure_connection = lambda *args, **options: ensure(
            *args, **{**options, "interval_start": 1.0, "interval_step": 1.0, "interval_max": _RECONNECT}
        )
        return super().ensure_connected(conn)


class _StationStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Opens the station after the pool, also while the broker is away, and stops it before the pool waits."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self._forks = "prefork" in worker.pool_cls.__module__
        queues = tuple(worker.app.amqp.queues.consume_from)
        slots = 1 if self._forks else worker.concurrency
        settings: Settings = worker.app.vv_settings
        try:
            bootstrap.check_store(settings)
        except VVAgentError as error:  # nothing to wait for: whoever supervises the worker starts it again
            sys.stderr.write(f"vv-agent: the worker cannot start: {error}\n")
            raise SystemExit(1) from None
        bootstrap.give(bootstrap.Orders(settings, queues, slots, os.pipe() if self._forks else None))

    def start(self, parent: Any) -> None:
        if not self._forks:
            bootstrap.station()

    def stop(self, parent: Any) -> None:
        bootstrap.stop()

    terminate = stop  # a cold shutdown gives runs back too


def make_app(settings: Settings) -> Celery:
    """The application of a worker with these settings."""
    if settings.broker is None:
        raise SettingsError(
            "settings_invalid",
            "VV_AGENT_BROKER is not set, a Celery worker needs it; without a broker, start: vv-agent worker",
        )
    transport.install()
    app = _Application("vv_agent", broker=settings.broker, set_as_current=True)
    app.vv_settings = settings
    app.conf.update(
        **wire_settings(),
        task_default_queue=settings.queue,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_pool=settings.pool,
        worker_concurrency=settings.concurrency,
        worker_prefetch_multiplier=1,  # who holds a message has a slot for it
        worker_enable_remote_control=False,
        worker_redirect_stdouts=False,
        worker_consumer=f"{__name__}:_Consumer",
        worker_cancel_long_running_tasks_on_connection_loss=False,  # the lease decides
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={**transport_options(settings.broker), **_patience(settings)},
    )
    app.steps["worker"].add(_StationStep)
    app.task(name=TASK, typing=False)(tasks.advance)
    worker_process_init.connect(_begin_child)
    return app


def _begin_child(**_: Any) -> None:
    bootstrap.begin_child()


def _patience(settings: Settings) -> dict[str, Any]:
    """How a Redis broker is watched: a dead connection is noticed within 20 s, a lost message comes again after
    `visibility_seconds`."""
    if not (settings.broker or "").startswith("redis"):
        return {}
    keepalive = {
        getattr(socket, name): value
        for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    }
    return {
        "visibility_timeout": settings.visibility_seconds, "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1, "socket_timeout": 30, "socket_connect_timeout": 5, "socket_keepalive": True,
        "socket_keepalive_options": keepalive, "health_check_interval": 25,
    }  # fmt: skip
