"""Following runs that other processes advance: durable events from the store, text as it comes from the live channel.

One thread per process follows all its runs. Events are ordered by (cycle, attempt, n). Durable ones come without hole
or repeat; live ones may be missing (`diagnostic` `live_gap` says so), and once a cycle's receipt is durable what is
left of its live text is dropped, as is everything of a lower attempt.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from vv_agent.checkpoint.record import Head, Seen, State
from vv_agent.checkpoint.store import CheckpointStore, Cursor
from vv_agent.errors import LASTING_FAULTS, CannotServe, CheckpointError, StoreError, VVAgentError
from vv_agent.events import RunEvent, make_event
from vv_agent.runtime.body import Body
from vv_agent.runtime.eventlog import EventReader, Numbered
from vv_agent.runtime.feed import EventSink

_PATIENCE = 3
"""Rounds a durable event waits for live text that should stand before it."""
Over = Callable[[Head | VVAgentError], None]


@dataclass
class Followed:
    """One run that is followed. `over` is called once: with the head that ended or rests, or with what stops the
    reading."""

    key: str
    sink: EventSink
    over: Over
    reader: EventReader
    after: int = 0
    shown: set[tuple[int, int, int]] = field(default_factory=set)
    newest: tuple[int, int] = (0, 0)
    """The highest (cycle, attempt) a durable event was seen of."""
    live: bool = False
    """Caught up: from here on missing text is a gap, not history."""
    waiting: list[Numbered] = field(default_factory=list)
    rounds: int = 0

    def show(self, durable: list[Numbered], live: list[Numbered]) -> None:
        """Merge what is new and pass it on."""
        durable = self.waiting + durable
        fresh_live = [item for item in live if (item.cycle, item.attempt) >= self.newest]
        if self.live and durable and self._lacks(durable, fresh_live) and self.rounds < _PATIENCE:
            self.waiting, self.rounds = durable, self.rounds + 1
            durable = []
        else:
            gap = self.live and durable and self._lacks(durable, fresh_live)
            self.waiting, self.rounds = [], 0
            if gap:
                self.sink.put(_gap(durable[0]))
        for item in sorted([*fresh_live, *durable], key=lambda i: (i.cycle, i.attempt, i.n)):
            self._pass_on(item)
        if durable:
            self.newest = max(self.newest, *((item.cycle, item.attempt) for item in durable))
            self.shown = {place for place in self.shown if place[0] >= self.newest[0] - 1}

    def _lacks(self, durable: list[Numbered], live: list[Numbered]) -> bool:
        """Whether numbers are missing before the last of the durable events of a cycle."""
        last = durable[-1]
        have = self.shown | {(i.cycle, i.attempt, i.n) for i in [*durable, *live]}
        return any((last.cycle, last.attempt, n) not in have for n in range(last.n))

    def _pass_on(self, item: Numbered) -> None:
        place = (item.cycle, item.attempt, item.n)
        if place in self.shown:
            return
        self.shown.add(place)
        self.sink.put(item.event)


def _gap(before: Numbered) -> RunEvent:
    event = before.event
    return make_event(
        "diagnostic", event_id=f"{event.event_id}_gap", run_id=event.run_id, trace_id=event.trace_id,
        created_at=event.created_at, agent_name=event.agent_name, level="info", code="live_gap",
        details={"cycle": before.cycle},
    )  # fmt: skip


class Tailer:
    """Follows runs of one store from one thread, which lives while there is something to follow."""

    _INTERVAL = 0.03

    def __init__(self, store: CheckpointStore) -> None:
        self.pid = os.getpid()
        self._store = store
        self._followed: dict[int, Followed] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._live_after: Cursor = None

    def follow(self, key: str, body: Body, sink: EventSink, over: Over) -> Followed:
        """Send a run's events to `sink`, from the first one on, until it ends or rests."""
        followed = Followed(key, sink, over, EventReader(body))
        with self._changed:
            if self._live_after is None or not self._followed:
                self._live_after = self._store.live.last()
            self._followed[id(followed)] = followed
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="vv-tail", daemon=True)
                self._thread.start()
            self._changed.notify()
        return followed

    def unfollow(self, followed: Followed) -> None:
        with self._changed:
            self._followed.pop(id(followed), None)

    def close(self) -> None:
        """Follow nothing any more; readers are not told, the process ends."""
        with self._changed:
            self._followed.clear()

    def _run(self) -> None:
        version = 0
        while True:
            with self._changed:
                runs = list(self._followed.values())
                if not runs:
                    self._thread = None
                    return
            try:
                live = self._read_live(runs)
                for run in runs:
                    self._look(run, live.get(run.key, []))
                version = self._store.wait(version, self._INTERVAL)
            except StoreError:  # it may come back; readers are not told, they wait
                version = self._store.wait(version, 0.5)

    def _look(self, run: Followed, live: list[bytes]) -> None:
        try:
            if self._round(run, live):
                self.unfollow(run)
        except (StoreError, CannotServe) as error:
            if isinstance(error, StoreError) and error.code not in LASTING_FAULTS:
                raise
            self.unfollow(run)
            run.over(error)

    def _read_live(self, runs: list[Followed]) -> dict[str, list[bytes]]:
        self._live_after, items = self._store.live.read(list({run.key for run in runs}), self._live_after)
        found: dict[str, list[bytes]] = {}
        for key, body in items:
            found.setdefault(key, []).append(body)
        return found

    def _round(self, run: Followed, live: list[bytes]) -> bool:
        """Read what is new of a run; True when it is over."""
        snapshot = self._store.load(run.key, Seen(entries=1 << 24, revision=-1 if run.after == 0 else 0))
        if snapshot is None:
            run.over(CheckpointError("checkpoint_not_found", f"run {run.key!r} was deleted while it was followed"))
            return True
        entries = self._store.entries(run.key, run.after) if snapshot.head.entry_n > run.after else ()
        durable = [event for entry in entries for event in run.reader.feed(entry)]
        if entries:
            run.after = entries[-1].seq
        run.show(durable, [event for body in live for event in run.reader.decode(body)])
        caught_up = run.after >= snapshot.head.entry_n
        run.live = run.live or caught_up
        if caught_up and not run.waiting and rests(snapshot.head):
            run.over(snapshot.head)
            return True
        return False


def rests(head: Head) -> bool:
    """The run ended, or is parked until somebody does something."""
    return head.state is State.ENDED or (head.state is State.PARKED and head.due is None)
