"""What a Celery worker opens once per process: the station at which its tasks work.

A forked child has a station of its own (nothing of the parent's survives a fork), made when the child begins or at its
first task. In the prefork pool the parent has none; its children learn that it stops, or died, from a pipe that only
the parent holds open.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from vv_agent import process
from vv_agent.checkpoint.store import open_store
from vv_agent.settings import Settings, read_settings
from vv_agent.workers.station import Station
from vv_agent.workers.sweeper import SweeperThread


@dataclass(frozen=True)
class Orders:
    """What the processes of one Celery worker are to do; set before any of them begins."""

    settings: Settings
    queues: tuple[str, ...]
    slots: int
    pipe: tuple[int, int] | None = None
    """Both ends of the parent's pipe in the prefork pool."""


class _Posts:
    """Orders and station of this process."""

    orders: Orders | None = None
    station: Station | None = None
    pid = 0
    lock = threading.Lock()
    on_sigterm: Callable[..., None] | None = None
    """What a child of the pool does at SIGTERM, until it is set: the pool sets its own after the child has begun."""


def give(orders: Orders) -> None:
    """Set the orders of this process and of all it will fork; a station opened for earlier orders is not theirs."""
    _Posts.orders, _Posts.station = orders, None


def station() -> Station:
    """The station of this process, opened once."""
    with _Posts.lock:
        if _Posts.station is None or _Posts.pid != os.getpid():
            orders = _Posts.orders or _orders_of(read_settings())
            _Posts.station, _Posts.pid = _open(orders), os.getpid()
        if _Posts.on_sigterm is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _Posts.on_sigterm)
            _Posts.on_sigterm = None
        return _Posts.station


def _orders_of(settings: Settings) -> Orders:
    return Orders(settings, (settings.queue,), settings.concurrency)


def check_store(settings: Settings) -> None:
    """Raise what keeps a worker with these settings from its store. Nothing is left open: a pool may fork next."""
    open_store(settings.store).close()


def _open(orders: Orders) -> Station:
    settings = orders.settings
    if (here := os.getcwd()) not in sys.path:  # code named by import path is looked for where the worker was started
        sys.path.insert(0, here)
    store = process.store_at(settings.store)
    dispatcher = process.dispatcher_for(store, settings) if settings.broker else None
    opened = Station(store, settings, queues=orders.queues, slots=orders.slots, dispatcher=dispatcher)
    SweeperThread(opened).start()
    return opened


def begin_child() -> None:
    """In a forked child: open its station, and stop it when the parent says so or is gone, or when the child itself is
    told to end: SIGTERM to a process group reaches it before its parent says anything."""
    _Posts.lock = threading.Lock()  # the parent's may have been held at the fork
    opened = station()
    told = threading.Thread(target=_leave, args=(opened,), name="vv-leave", daemon=True)
    _Posts.on_sigterm = lambda *_: None if told.ident else told.start()
    if _Posts.orders is None or _Posts.orders.pipe is None:
        return
    reading, writing = _Posts.orders.pipe
    os.close(writing)

    def watch() -> None:
        os.read(reading, 1)
        opened.stop()
        opened.patiently(opened.engine.keeper.renew)

    threading.Thread(target=watch, name="vv-parent", daemon=True).start()


_LAST_WORDS = 1.0
"""Seconds for the pool to hear of the last task; a parent that stops too ends the child before they are over."""


def _leave(opened: Station) -> None:
    opened.stop()
    opened.finish()
    time.sleep(_LAST_WORDS)
    os._exit(0)


def stop() -> None:
    """Stop the station of this process, or those of its children."""
    orders = _Posts.orders
    if orders is not None and orders.pipe is not None:
        os.close(orders.pipe[1])
    elif _Posts.station is not None and _Posts.pid == os.getpid():
        _Posts.station.stop()
        _Posts.station.patiently(_Posts.station.engine.keeper.renew)
