"""Following runs that other processes advance: durable events from the store, text as it comes from the live channel.

One thread per process follows all its runs. Events are ordered by (cycle, attempt, n). Durable ones come without hole
or repeat; live ones may be missing (`diagnostic` `live_gap` says so), and once a cycle's receipt is durable what is
left of its live text is dropped, as is everything of a lower attempt. Of a cycle that began before it was followed only
the text is shown as it comes: its events are shown from the first one on, once they are durable.

What happened before it was followed is told in the order of the tree: a run below is read when its parent tells of its
start, before what comes later in the parent. The end of an ended run is told after the ends of the runs below it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from functools import partial

from vv_agent.checkpoint.record import Entry, Head, ParkReason, Seen, State
from vv_agent.checkpoint.store import LISTENS, CheckpointStore, Cursor
from vv_agent.errors import LASTING_FAULTS, CannotServe, CheckpointError, StoreError, VVAgentError
from vv_agent.events import RunEvent, make_event
from vv_agent.runtime.body import Body
from vv_agent.runtime.eventlog import LIVE_ONLY, EventReader, Numbered
from vv_agent.runtime.feed import EventSink

log = logging.getLogger("vv_agent.tail")

_PATIENCE = 3
"""Rounds a durable event waits for live text that should stand before it."""
_ENDS = frozenset({"run_completed", "run_failed", "run_cancelled"})
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
    run_id: str | None = None
    """Of the record when it was first read: another one under the same key is another run."""
    revision: int = -1
    """Of the record when it was last read."""
    behind: bool = True
    """There was more to read than one look takes."""
    shown: set[tuple[int, int, int]] = field(default_factory=set)
    newest: tuple[int, int] = (0, 0)
    """The highest (cycle, attempt) a durable event was seen of."""
    live: bool = False
    """Caught up: from here on missing text is a gap, not history."""
    waiting: list[Numbered] = field(default_factory=list)
    """Durable events that wait for live text, and the live items of later cycles, which wait for them."""
    later: list[Numbered] = field(default_factory=list)
    rounds: int = 0
    below: dict[str, Followed | None] = field(default_factory=dict)
    """The runs below by key, None once one is over."""
    begun: set[str] = field(default_factory=set)
    """The keys of the runs below whose start was shown."""
    begins: Callable[[str], None] = lambda key: None
    """Told each of them, once."""
    ended: bool = False
    """All of an ended run was read: its end, and what comes after it, waits for the runs below."""
    held: list[RunEvent] = field(default_factory=list)

    @property
    def alone(self) -> bool:
        """No run below it goes on."""
        return not any(self.below.values())

    def show(self, durable: list[Numbered], live: list[Numbered]) -> None:
        """Merge what is new and pass it on."""
        durable, live = self.waiting + durable, self.later + live
        begun = {(item.cycle, item.attempt) for item in live if item.n == 0}
        fresh_live = [item for item in live if self._in_turn(item, begun)]
        lacks = self.live and durable and self._lacks(durable, fresh_live)
        self.waiting, self.later = [], []
        if lacks and self.rounds < _PATIENCE:
            place = durable[-1].cycle, durable[-1].attempt
            self.waiting, self.rounds = durable, self.rounds + 1
            self.later = [item for item in fresh_live if (item.cycle, item.attempt) > place]
            fresh_live = [item for item in fresh_live if (item.cycle, item.attempt) <= place]
            durable = []
        else:
            self.rounds = 0
            if lacks:
                self.sink.put(_gap(durable[0]))
        for item in sorted([*fresh_live, *durable], key=lambda i: (i.cycle, i.attempt, i.n)):
            self._pass_on(item)
        if durable:
            self.newest = max(self.newest, *((item.cycle, item.attempt) for item in durable))
            self.shown = {place for place in self.shown if place[0] >= self.newest[0] - 1}

    def _in_turn(self, item: Numbered, begun: Set[tuple[int, int]]) -> bool:
        """Whether a live item is shown before it is durable; `begun` are cycles whose first event came with it."""
        place = (item.cycle, item.attempt)
        if place < self.newest:
            return False
        return item.event.type in LIVE_ONLY or place in begun or (*place, 0) in self.shown

    def _lacks(self, durable: list[Numbered], live: list[Numbered]) -> bool:
        """Whether numbers are missing before the last of the durable events of a cycle."""
        last = durable[-1]
        have = self.shown | self.reader.unknown | {(i.cycle, i.attempt, i.n) for i in [*durable, *live]}
        return any((last.cycle, last.attempt, n) not in have for n in range(last.n))

    def _pass_on(self, item: Numbered) -> None:
        place = (item.cycle, item.attempt, item.n)
        if place not in self.shown:
            self.shown.add(place)
            if self.ended and not self.alone and (self.held or item.event.type in _ENDS):
                self.held.append(item.event)
                return
            self.release()
            self.sink.put(item.event)
        if item.below is not None and item.below not in self.begun:  # only a durable item names it
            self.begun.add(item.below)
            self.begins(item.below)

    def release(self) -> None:
        """Pass on the end that was held back."""
        for event in self.held:
            self.sink.put(event)
        self.held = []


def _gap(before: Numbered) -> RunEvent:
    event = before.event
    return make_event(
        "diagnostic", event_id=f"{event.event_id}_gap", run_id=event.run_id, trace_id=event.trace_id,
        created_at=event.created_at, agent_name=event.agent_name, level="info", code="live_gap",
        details={"cycle": before.cycle},
    )  # fmt: skip


class Tailer:
    """Follows runs of one store from one thread, which lives while there is something to follow.

    Live text is asked for all the time, for all runs at once. Records are read when the store says that it changed, and
    every half second in case it did not say so.
    """

    _INTERVAL = 0.03
    """Seconds between looks for live text."""
    _LOOK = 0.5
    """Seconds after which records are read although nothing was said to have changed."""

    def __init__(self, store: CheckpointStore) -> None:
        self.pid = os.getpid()
        self._store = store
        self._followed: dict[int, Followed] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._live_after: Cursor = None

    def follow(self, key: str, body: Body, sink: EventSink, over: Over) -> Followed:
        """Send a run's events and those of the runs below it to `sink`, from the first one on, until it ends or rests.
        The end is told once the runs below have ended too."""
        followed = Followed(key, sink, over, EventReader(body))
        followed.begins = partial(self._follow_below, followed)
        with self._changed:
            if self._live_after is None or not self._followed:
                self._live_after = self._store.live.last()
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="vv-tail", daemon=True)
                thread.start()  # it waits for the lock, and then finds the run
                self._thread = thread
            if not any(run.key == key for run in self._followed.values()):
                self._store.live.listen([key])  # before a worker is told of the run: then its first words are written
            self._followed[id(followed)] = followed
        return followed

    def unfollow(self, followed: Followed) -> None:
        with self._changed:
            self._followed.pop(id(followed), None)

    def close(self) -> None:
        """Follow nothing any more; readers are not told, the process ends."""
        with self._changed:
            self._followed.clear()

    def _run(self) -> None:
        version, read, next_look, listened = 0, -1, 0.0, time.monotonic()
        runs: list[Followed] = []
        while True:
            with self._changed:
                before, runs = runs, list(self._followed.values())
                if not runs:
                    self._store.live.listen(list({run.key for run in before}), reading=False)
                    self._thread = None
                    return
            try:
                if time.monotonic() - listened > LISTENS:
                    self._store.live.listen(list({run.key for run in runs}))
                    listened = time.monotonic()
                everything = version != read or time.monotonic() >= next_look
                live = self._read_live(runs)
                look = _Look(self._store)
                for run in runs:
                    if everything or run.behind or run.waiting or run.key in live:
                        self._look(run, look, live.get(run.key, []))
                if everything:
                    read, next_look = version, time.monotonic() + self._LOOK
                version = self._store.wait(version, self._INTERVAL)
            except StoreError:  # it may come back; readers are not told, they wait
                read = -1
                time.sleep(self._LOOK)
            except Exception:  # whatever it was, the other runs of the process are still followed
                log.exception("runs of %s could not be followed for a moment", self._store.url)
                read = -1
                time.sleep(self._LOOK)

    def _look(self, run: Followed, look: _Look, live: list[bytes]) -> None:
        """Read one run. What makes it unreadable ends the following of this one only."""
        try:
            if self._round(run, look, live):
                self.unfollow(run)
        except StoreError as error:
            if error.code not in LASTING_FAULTS:
                raise
            self._give_up(run, error)
        except CannotServe as error:
            self._give_up(run, error)
        except Exception as error:
            log.exception("run %r cannot be followed", run.key)
            what = f"an event of run {run.key!r} cannot be read here ({type(error).__name__}: {error})"
            self._give_up(run, StoreError("store_corrupt", f"{what}; a newer vv-agent may be able to"))

    def _give_up(self, run: Followed, error: VVAgentError) -> None:
        self.unfollow(run)
        try:
            run.over(error)
        except Exception:
            log.exception("whoever follows run %r could not be told", run.key)

    def _read_live(self, runs: list[Followed]) -> dict[str, list[bytes]]:
        self._live_after, items = self._store.live.read(list({run.key for run in runs}), self._live_after)
        found: dict[str, list[bytes]] = {}
        for key, body in items:
            found.setdefault(key, []).append(body)
        return found

    def _round(self, run: Followed, look: _Look, live: list[bytes]) -> bool:
        """Read what is new of a run; True when it is over."""
        head = look.head(run.key, run.revision)
        if head is None or head.run_id != (run.run_id or head.run_id):
            run.over(CheckpointError("checkpoint_not_found", f"run {run.key!r} was deleted while it was followed"))
            return True
        run.run_id, run.revision = head.run_id, head.revision
        entries = look.entries(run.key, run.after) if head.entry_n > run.after else ()
        durable = [event for entry in entries for event in run.reader.feed(entry)]
        if entries:
            run.after = entries[-1].seq
        caught_up = run.after >= head.entry_n
        run.ended = caught_up and head.state is State.ENDED
        run.show(durable, [event for body in live for event in run.reader.decode(body)])
        run.live, run.behind = run.live or caught_up, not caught_up
        for key in run.begun - run.below.keys():  # the store did not answer when their start was shown
            self._follow_below(run, key)
        if caught_up and not run.waiting and rests(head) and (run.alone or head.state is not State.ENDED):
            for below in filter(None, run.below.values()):
                self.unfollow(below)
            run.release()
            run.over(head)
            return True
        return False

    def _follow_below(self, run: Followed, key: str) -> None:
        """Follow a run below as well; one that began before its parent was followed is read to where it stands."""

        def over(_: Head | VVAgentError) -> None:
            run.below[key] = None
            run.behind = True

        try:
            look = self._store.look(key)
            if look is None:
                run.below[key] = None
                return
            below = self.follow(key, Body.unpack(look.head.body, key), run.sink, over)
            run.below[key] = below
            while not run.live and below.behind and run.below[key] is not None:
                self._look(below, _Look(self._store), [])
        except StoreError as error:  # what was not read is read with the next look; the parent's events are passed on
            if error.code in LASTING_FAULTS:
                raise


class _Look:
    """One look at the store: readers of the same run share what it read."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._heads: dict[str, Head | None] = {}
        self._entries: dict[tuple[str, int], tuple[Entry, ...]] = {}

    def head(self, key: str, revision: int) -> Head | None:
        if key not in self._heads:
            snapshot = self._store.load(key, Seen(entries=1 << 24, revision=revision))
            self._heads[key] = snapshot.head if snapshot else None
        return self._heads[key]

    def entries(self, key: str, after: int) -> tuple[Entry, ...]:
        if (key, after) not in self._entries:
            self._entries[key, after] = self._store.entries(key, after)
        return self._entries[key, after]


def rests(head: Head) -> bool:
    """There is a result: the run ended, or its segment did and it waits for somebody."""
    return head.state is State.ENDED or (head.state is State.PARKED and head.status != "running")


def is_over(head: Head) -> bool:
    """There is a result, and nothing but an answer, a decision or other limits changes it."""
    waits = head.reason in (ParkReason.INPUT, ParkReason.BUDGET, ParkReason.APPROVAL)
    return head.state is State.ENDED or (waits and rests(head))
