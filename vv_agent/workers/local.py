"""The worker without a broker: takes due runs from the store and advances them on threads."""

from __future__ import annotations

from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.dispatch.store import WakeSocket
from vv_agent.settings import Settings
from vv_agent.workers.station import Station
from vv_agent.workers.sweeper import Sweeper

_POLL = 0.25
"""Seconds between looks at what is due; the hint on the socket is faster, this is the truth."""


class LocalWorker:
    """One worker process. `run` returns after `stop` (a signal handler may call it) once its cycles are saved or
    given back. A worker whose threads are all stuck stops by itself, with exit code 1 so that it is replaced."""

    def __init__(self, store: CheckpointStore, settings: Settings, *, queues: tuple[str, ...], threads: int) -> None:
        self._socket = WakeSocket()
        self._station = Station(
            store, settings, queues=queues, slots=threads, wake=self._socket.path, on_free=self._socket.nudge
        )
        self._sweeper = Sweeper(self._station)
        self.engine = self._station.engine

    def run(self) -> None:
        """Work until `stop`; `SystemExit` when too many calls never came back."""
        station, worn_out = self._station, False
        station.patiently(station.engine.keeper.show)
        while not station.stopping.is_set():
            worn_out = station.worn_out()
            if worn_out:
                station.stop()
            elif not station.patiently(self._sweeper.round):
                self._socket.wait(_POLL)
        station.finish()
        self._socket.close()
        if worn_out:
            raise SystemExit(1)

    def stop(self) -> None:
        """Take no new cycles; model calls are aborted and given back, tools get their grace."""
        self._station.stop()
        self._socket.nudge()
