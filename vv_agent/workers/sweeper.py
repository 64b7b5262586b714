"""The sweeper: finds due runs in the store, also those whose message was lost, and brings them to a worker."""

from __future__ import annotations

import os
import signal
import threading

from vv_agent.checkpoint.record import Head
from vv_agent.runtime.recipe import CycleRecipe
from vv_agent.workers.station import Station

_TAKE_HOLD_MS = 2_000
"""How long a run that was taken is left to this worker to claim, which is a matter of milliseconds unless it dies."""
_UNHEARD = 2
"""Hand-outs of one cycle after which a message is no longer trusted: whoever finds the run carries it."""


class Sweeper:
    """Takes due runs for a station, never more than it has free slots. With a broker they are dispatched again; where
    that fails, or there is none, the station carries them."""

    def __init__(self, station: Station) -> None:
        self._station = station

    def round(self) -> bool:
        """Look once; True if something was due."""
        station = self._station
        station.expire_dead()
        free = station.free
        if free < 1:
            return False
        hold = (station.dispatcher.hold_ms if station.dispatcher else 0) or _TAKE_HOLD_MS
        heads = station.store.take_due(station.queues, free, hold=hold)
        for head in heads:
            self._bring(head)
        return bool(heads)

    def _bring(self, head: Head) -> None:
        dispatcher, recipe = self._station.dispatcher, CycleRecipe.of(head, self._station.store.id)
        if dispatcher is None or head.dispatches > _UNHEARD or not dispatcher.dispatch(recipe):
            self._station.start(recipe)


class SweeperThread:
    """The sweeper of a process whose runs come from a broker: it shows the process and looks around until `stop`.
    One whose threads are stuck is ended."""

    _PAUSE = 1.0
    """Seconds between looks while the broker brings the runs."""
    _ALONE = 0.25
    """The same while it takes no messages."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._sweeper = Sweeper(station)
        self._thread = threading.Thread(target=self._run, name="vv-sweeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        station = self._station
        station.patiently(station.engine.keeper.show)
        while not station.stopping.is_set():
            if station.worn_out():
                station.stop()
                station.finish()
                os.kill(os.getpid(), signal.SIGTERM)  # Celery ends the worker, or replaces this child of its pool
                return
            station.patiently(self._sweeper.round)
            alone = station.dispatcher is None or station.dispatcher.hold_ms == 0
            station.stopping.wait(self._ALONE if alone else self._PAUSE)
