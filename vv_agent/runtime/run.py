"""A claimed run in this process: its record decoded, and what the open cycle made of it that is not saved yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vv_agent.budget import RunBudgetLimits
from vv_agent.checkpoint.record import Change, Claimed, Commit, End, Head, Park, Progress, Release, Seen, Signal, Then
from vv_agent.checkpoint.transitions import repeated
from vv_agent.errors import SignalsWaiting, VVAgentError
from vv_agent.runtime.account import Account
from vv_agent.runtime.approval import Approvals
from vv_agent.runtime.body import Body
from vv_agent.runtime.children import Children
from vv_agent.runtime.context import Cached, Engine
from vv_agent.runtime.eventlog import LIVE_ONLY, Emitted, Origin, Refs, build, event_entries
from vv_agent.runtime.inbox import Inbox, Words
from vv_agent.runtime.lease import Hold, steady_clock
from vv_agent.runtime.patience import patiently
from vv_agent.runtime.program import AGENT, Program
from vv_agent.runtime.recipe import CycleRecipe
from vv_agent.runtime.recording import Recorder
from vv_agent.runtime.transcript import Transcript, Turn, log_entry, pack, unpack
from vv_agent.workspace.filtered import DiscoveryFilteredWorkspaceBackend

if TYPE_CHECKING:
    from vv_agent.runtime.output import Stop

_MAX_LIVE = 65_536
"""Bytes of a live item at most: the texts of large calls stand in the log, once."""


class Run:
    """The working copy of one record under one claim.

    Events are shown as they are made and stored with the next save; log items are added to the transcript at once and
    written with the next save. After `ClaimLost` or a `StoreError` the copy is thrown away: the store has the truth.
    """

    _in_flight: Change | None = None
    """The save that was begun and has no answer yet."""

    asked = False
    """A model was called in the open cycle, under this claim."""

    def __init__(self, engine: Engine, program: Program, hold: Hold, claimed: Claimed, cached: Cached | None) -> None:
        snapshot = claimed.snapshot
        self.engine = engine
        self.first = program
        """The program of the agent that began."""
        self.hold = hold
        self.head = snapshot.head
        self.recovered = claimed.recovered
        self.body = Body.unpack(self.head.body, self.head.key)
        self.program = program
        known = cached.entry_n if cached else 0
        whole = self.head.log_from <= known  # else the log begins at a reset
        self.transcript = cached.transcript if cached and whole else Transcript(whole=whole)
        for entry in snapshot.log:
            self.transcript.extend(entry.seq, entry.body)
        blobs = snapshot.blobs if snapshot.blobs is not None else (cached.blobs if cached else {})
        self._blobs = dict(blobs)
        self.denied: dict[str, Any] = self._blob("denied")
        """What the tool policies of the agents that came before, or that gave the run its work, deny."""
        self.use_agent()
        self.shared_state: dict[str, Any] = self._blob("state")
        """Replaced as a whole, never changed in place: calls on their way were given copies of it."""
        self.extensions: dict[str, Any] = self._blob("extensions")
        limits, kept = program.limits, self._blob("budget")
        self.account = Account(limits or RunBudgetLimits(), kept, program.host_cost_meter) if limits or kept else None
        self.approvals = Approvals(self._blob("approvals"))
        self.children = Children.of(self._blob("children"))
        self.begun: list[CycleRecipe] = []
        """Runs below that were begun and can be advanced."""
        self.words = Words(**self._blob("words"))
        self.claimed_at = snapshot.now
        """The store's clock at the claim, in ms."""
        self.journal = {name: unpack(body, f"journal entry {name}") for name, body in snapshot.journal.items()}
        self._journal_changes: dict[str, bytes | None] = {}
        self._log: list[Sequence[Any]] = []
        self._events: list[Emitted] = []
        attempt, n = self.body.numbered or (0, 0)
        self._n = n if attempt == self.head.attempt else 0
        self._saves = 0
        self._saved_body = self.body
        self.restored = False
        """Whether extensions have their state under this claim."""
        self.recorder = Recorder(program.event_store, closed=program.event_store_fail_closed)
        self.refused: Stop | None = None
        """The end of a run whose new agent is not given its input."""
        self.checked: tuple[int, Stop, Stop] | None = None
        """A cycle and its end, before and after guardrails and validation."""
        self.hook_failure: VVAgentError | None = None
        """What a hook failed with while results were kept."""
        self.inbox = Inbox()
        self.inbox.take(snapshot.signals)

    @property
    def key(self) -> str:
        return self.head.key

    @property
    def cycle(self) -> int:
        """Number of the open cycle."""
        return self.hold.claim.cycle

    @property
    def index(self) -> int:
        """Its number within the segment, from 1."""
        return self.body.index(self.cycle)

    @property
    def turn(self) -> Turn | None:
        """The open cycle's model turn, once there is a receipt."""
        return self.transcript.turns.get(self.cycle)

    @property
    def task_id(self) -> str:
        """How those it gives work know it."""
        return str(self.body.parent["task_id"]) if self.body.parent is not None else self.key

    @property
    def attempt(self) -> int:
        return self.head.attempt

    @property
    def unsaved(self) -> bool:
        """Whether something waits for a save that must be there before a tool starts."""
        return bool(self._log) or self.approvals.unsaved

    # What a cycle adds.

    def emit(self, event_type: str, refs: Refs | None = None, origin: Origin | None = None, **fields: Any) -> None:
        """Make an event: shown at once, stored with the next save (live text is only shown)."""
        self.tell(self.number(event_type, refs, origin, **fields))

    def tell(self, emitted: Emitted) -> None:
        """Show a numbered event, and store it with the next save."""
        if emitted.type not in LIVE_ONLY:
            self._events.append(emitted)
        self._show(emitted)

    def number(self, event_type: str, refs: Refs | None = None, origin: Origin | None = None, **fields: Any) -> Emitted:
        """Number an event that is shown only once it is saved (`save(last_events=...)`)."""
        emitted = Emitted(origin or self.origin, event_type, self._n, self.engine.clock(), fields, refs or {})
        self._n += 1
        return emitted

    def log(self, item: Sequence[Any]) -> None:
        """Add an item to the transcript; it is written with the next save."""
        self.transcript.add(item)
        self._log.append(item)
        if item[0] == "t":
            self.approvals.close(item[2])

    def note(self, operation_id: str, entry: dict[str, Any] | None) -> None:
        """Set or drop an operation of the open cycle in the journal, with the next save."""
        if entry is None:
            self.journal.pop(operation_id, None)
        else:
            self.journal[operation_id] = entry
        self._journal_changes[operation_id] = None if entry is None else pack(entry)

    def use_agent(self) -> None:
        """Take the program of the agent that works now, less what those before it may not do."""
        self.program = self.agent(self.body.node).narrowed(self.denied)
        exclude = self._blob("work").get("exclude")
        if exclude and self.program.workspace is not None:
            hidden = DiscoveryFilteredWorkspaceBackend(self.program.workspace, exclude)
            self.program = replace(self.program, workspace=hidden)

    def agent(self, node: int) -> Program:
        """The program of the agent with this number; 0 is the one that began."""
        return self.first.linked(f"{AGENT}{node}") if node else self.first

    def observe(self, observation: dict[str, Any] | None) -> None:
        """Keep what is known of an operation whose outcome is unknown; None once it is settled."""
        if observation != self.body.observation:
            self.body = replace(self.body, observation=observation)

    # Saving.

    def save(
        self,
        then: Then,
        *,
        status: str | None = None,
        starts: bool = False,
        ending: bool = False,
        closing: bool = False,
        durable: bool = False,
        last_log: Sequence[Sequence[Any]] = (),
        last_events: Sequence[Emitted] = (),
        posts: Sequence[tuple[str, Signal]] = (),
    ) -> None:
        """Write everything pending in one save. `last_*` are left out again when the save is refused.

        Raises `ClaimLost`, `SignalsWaiting` (the inbox then has the signals), `StoreError`.
        """
        if starts:
            self.hold.check()
        if not isinstance(then, Progress | Release):  # what the cycle left open is settled, or waits for its decision
            waits = self.body.observation if isinstance(then, Park) else None
            self.inbox.drop_decisions(but=waits["operation_id"] if waits else None)
        log = [*self._log, *last_log]
        events = [*self._events, *last_events]
        numbered = (self.attempt, self._n) if _leaves_open(then) else None
        if numbered != self.body.numbered:
            self.body = replace(self.body, numbered=numbered)
        body = None if self.body is self._saved_body else self.body.pack()
        changed = self._changed_blobs()
        entry = log_entry(log) if log else b""
        change = Change(
            number=self._saves + 1,
            then=then,
            body=body,
            status=status,
            log=(entry,) if entry else (),
            resets=any(item[0] == "r" for item in log),
            events=event_entries(events),
            blobs=changed,
            journal=self._journal_changes,
            consumed=tuple(self.inbox.consumed),
            starts=starts,
            ending=ending,
            closing=closing,
            durable=durable or bool(self.children.new),
            creates=tuple(self.children.new),
            posts=(*self.children.posts, *posts),
        )
        if self.head.queue is not None:
            self.engine.live.hurry()
        self._in_flight = change
        try:
            saved = patiently(lambda: self.engine.store.save(self.hold.claim, change), until=self._give_up(starts))
        except SignalsWaiting as waiting:
            self._in_flight = None
            self.inbox.take(waiting.signals)
            if last_events:  # their numbers are free again
                self._n = last_events[0].n
            raise
        for item in last_log:
            self.transcript.add(item)
        for emitted in last_events:
            self._show(emitted)
        self._saved(change, saved.head)
        if saved.claim is not None:
            self.hold.claim = saved.claim
        self.inbox.take(saved.signals)
        self.recorder.feed(self)

    def let_go(self) -> None:
        """Give the open cycle back as the last save left it, if the store lets us: the process was interrupted."""
        number = self._saves + 1
        with suppress(VVAgentError):
            look = self.engine.store.look(self.key) if self._in_flight is not None else None
            if look is not None and repeated(look.head, self.hold.claim.token, number):  # it was carried out
                assert self._in_flight is not None
                claim = self.engine.store.save(self.hold.claim, self._in_flight).claim
                if claim is None:
                    return
                self.hold.claim, number = claim, number + 1
            self.engine.store.save(self.hold.claim, Change(number=number, then=Release()))

    def _give_up(self, starts: bool) -> Callable[[], bool]:
        """When a save is not tried again: what is known is kept as long as the claim may stand in the store, nothing is
        started once this process may not act any more."""
        return lambda: self.hold.lost if starts else steady_clock() > self.hold.ends

    def _saved(self, change: Change, head: Head) -> None:
        self.transcript.entry_n = head.entry_n
        self.transcript.read_bytes = sum(map(len, change.log)) + (0 if change.resets else self.transcript.read_bytes)
        committed = head.cycle != self.head.cycle
        self.head = head
        self._saved_body = self.body
        self._saves += 1
        self._in_flight = None
        self._log, self._events, self._journal_changes = [], [], {}
        self.approvals.unsaved = False
        for new in change.creates:
            self.engine.programs.adopt(new.key, new.root_key)
            self.begun.append(CycleRecipe(
                key=new.key, cycle=1, definition=new.definition, store=self.engine.store.id, queue=new.queue
            ))  # fmt: skip
        self.children.new, self.children.posts = [], []
        self.inbox.consumed.clear()
        for name, blob in change.blobs.items():
            if blob is not None:
                self._blobs[name] = blob
        if committed or isinstance(change.then, Commit | End):
            self.journal = {}
            self._n = 0

    def all_said(self) -> Transcript:
        """A transcript with all messages of the segment; read again if a compaction stands between."""
        return self.transcript if self.transcript.knows(self.body.segment) else self.read_again()

    def read_again(self) -> Transcript:
        """The transcript from the first entry on, compactions or not."""
        snapshot = patiently(lambda: self.engine.store.load(self.key))
        read = Transcript()
        for entry in snapshot.log if snapshot else ():
            read.extend(entry.seq, entry.body)
        for item in self._log:
            read.add(item)
        return read

    def remember(self) -> None:
        """Keep what was decoded for this process's next claim on the run."""
        kept = Cached(self.head.run_id, self.head.revision, self.head.entry_n, self.transcript, self._blobs)
        self.engine.cache.keep(self.key, kept)

    def refresh(self) -> None:
        """Read the unread signals now, without touching the record."""
        self.hold.signalled = False
        known = Seen(entries=self.head.entry_n, revision=self.head.revision)
        snapshot = self.engine.store.load(self.key, known)
        if snapshot is not None:
            self.inbox.take(snapshot.signals)

    # Details.

    @property
    def origin(self) -> Origin:
        return Origin(self.body.run_id, self.body.agent, self.cycle, self.attempt, self.index)

    def _show(self, emitted: Emitted) -> None:
        sinks = self.engine.sinks(self.key)
        if self.head.root_key != self.key:
            sinks += self.engine.sinks(self.head.root_key)
        for sink in sinks:
            sink.put(build(self.body, emitted))
        if self.head.queue is not None and self.engine.live.wanted(self.key):
            (item,) = event_entries([emitted.whole()])
            if len(item) <= _MAX_LIVE:  # a larger one reaches readers with the save
                self.engine.live.publish(self.key, item)

    def _blob(self, name: str) -> dict[str, Any]:
        body = self._blobs.get(name)
        value: dict[str, Any] = unpack(body, f"{name} of run {self.key!r}") if body else {}
        return value

    def _changed_blobs(self) -> Mapping[str, bytes | None]:
        current = {
            "state": self.shared_state, "extensions": self.extensions, "approvals": self.approvals.stored(),
            "words": self.words.stored(), "denied": self.denied, "children": self.children.stored(),
        }  # fmt: skip
        if self.account is not None:
            current["budget"] = self.account.stored()
        packed = {name: pack(value) for name, value in current.items() if value or name in self._blobs}
        return {name: body for name, body in packed.items() if self._blobs.get(name) != body}


def _leaves_open(then: Then) -> bool:
    """Whether the cycle is given back without being closed."""
    return isinstance(then, Release) or (isinstance(then, Park) and not then.commit)
