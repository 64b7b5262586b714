"""The values of a record: its head, what is appended to it, and what a change of it is made of.

A store keeps a head (control fields and one opaque body), a log and events (append only, one rising sequence),
blobs, the journal of the open cycle, and signals. Bodies are bytes that only the runtime reads. All times are
milliseconds of the store's clock; a lease or hold is a duration in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple, TypeAlias

import msgpack

from vv_agent.errors import StoreError


class State(StrEnum):
    """Who may touch a run now."""

    READY = "ready"
    CLAIMED = "claimed"
    PARKED = "parked"
    ENDED = "ended"


UNFINISHED = frozenset({State.READY, State.CLAIMED, State.PARKED})
"""The states of a run that did not end."""


class ParkReason(StrEnum):
    """Why a run is parked (DESIGN section 3); it also says what makes it go on."""

    APPROVAL = "approval"
    INPUT = "input"
    CHILDREN = "children"
    RETRY_AFTER = "retry_after"
    RECONCILIATION = "reconciliation"
    ATTEMPTS = "attempts"
    BUDGET = "budget"


class EntryKind(IntEnum):
    LOG = 1
    EVENT = 2


class Head(NamedTuple):
    """The control fields of a record. The first block never changes after create.

    A named tuple, because a write makes three of them: a frozen dataclass of 31 fields takes 6 us each time, this 1.
    """

    key: str
    root_key: str
    parent_key: str | None
    run_id: str
    """Run id of the first segment; with the key it tells one record from another that reuses the key."""
    queue: str | None
    """The queue whose workers may take the run; None: only its starter or an explicit resume."""
    definition: str
    """Digest of the definition."""
    schema: int
    created_at: int

    state: State
    reason: ParkReason | None
    status: str
    """The public status (running, wait_user, completed, ...); the store only lists by it."""
    ending: bool
    """Past the point of no return: only the end may still be written."""
    cycle: int
    """Number of the open cycle, from 1, over all segments."""
    revision: int
    """Moved by create, claim and save only."""
    token: str | None
    owner: str | None
    """Process that holds the claim: `host/pid/start`."""
    lease_until: int
    due: int | None
    """When somebody should look at the run; None while nothing would come of it."""
    recoveries: int
    """Consecutive takeovers of an ended lease without any save."""
    attempt: int
    """1, plus one for each recovery claim ever (`resume_attempt` on the wire)."""
    dispatches: int
    """Times this cycle was handed out without a claim; sets the hold of the next hand-out."""
    refused_at: int | None
    """When a worker first said it cannot serve the run, until one claims it."""
    refusal: str | None
    entry_n: int
    """Sequence number of the last entry."""
    signal_n: int
    """Number of unread signals."""
    write_token: str | None
    write_no: int
    write_revision: int
    """Token, number and answer of the last save, for one whose answer was lost."""
    updated_at: int
    body: bytes
    """The runtime's own head fields."""
    log_from: int = 0
    """A claim reads the log after this entry: what stands before it, a reset has replaced."""


def pack_head(head: Head) -> bytes:
    """The head as a store that keeps it whole does: msgpack of its fields in order."""
    body: bytes = msgpack.packb(head)
    return body


def unpack_head(body: bytes, where: str) -> Head:
    """What `pack_head` wrote; `store_corrupt` names `where` it stood."""
    try:
        head = Head(*msgpack.unpackb(body))  # an older one may lack the last fields
        return head._replace(state=State(head.state), reason=ParkReason(head.reason) if head.reason else None)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StoreError("store_corrupt", f"the record in {where} cannot be read: {error}; restore a backup") from error


@dataclass(frozen=True, slots=True)
class Entry:
    """One appended entry; `seq` rises and is not dense per kind."""

    seq: int
    kind: EntryKind
    body: bytes


@dataclass(frozen=True, slots=True)
class Signal:
    """A note to a run. `seq` and `at` are the store's."""

    id: str
    kind: str
    body: bytes = b""
    seq: int = 0
    at: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """The control fields of a record, and the store's clock in ms as they were read."""

    head: Head
    now: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What the caller already holds of a record, so that only the rest is read.

    `entries` is the last sequence number known; with `revision` still the stored one, blobs are left out too.
    """

    entries: int = 0
    revision: int = -1


@dataclass(frozen=True, slots=True)
class Serves:
    """What a process can take: queues (None: any, the explicit resume) and record schemas."""

    queues: frozenset[str] | None = None
    schemas: frozenset[int] = frozenset({1})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent view: head, log entries after `Seen.entries`, blobs (None: unchanged), journal, unread signals."""

    head: Head
    log: tuple[Entry, ...]
    blobs: Mapping[str, bytes] | None
    journal: Mapping[str, bytes]
    signals: tuple[Signal, ...]
    now: int


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run one cycle. Compared by token and revision in every save."""

    key: str
    cycle: int
    token: str
    revision: int
    lease_until: int


@dataclass(frozen=True, slots=True)
class Claimed:
    claim: Claim
    snapshot: Snapshot
    recovered: bool
    """The previous claim's lease ended without a commit, or the caller resumed an existing run."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The claim was not given and nothing else changed. `why` is a stable word.

    not_found, ended, parked, wrong_cycle (a later or earlier cycle is open), live_lease, backing_off (recovered a
    moment ago), attempts (parked now, the poison limit), queue, schema.
    """

    why: str
    head: Head | None = None


# What follows a save.


@dataclass(frozen=True, slots=True)
class Progress:
    """The cycle goes on under the same claim."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The cycle is done. `keep`: the claim becomes the next cycle's; else released and due after `due_in` ms."""

    keep: bool = False
    due_in: int = 0


@dataclass(frozen=True, slots=True)
class Release:
    """Give the open cycle back unfinished, due after `due_in` ms; counts no attempt."""

    due_in: int = 0


@dataclass(frozen=True, slots=True)
class Park:
    """Wait without a claim. `due_in` is the deadline in ms from now, if any; `commit` closes the cycle first."""

    reason: ParkReason
    due_in: int | None = None
    commit: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """The run is over. `keep_journal`: an operator gave up on an operation whose outcome stays unknown."""

    keep_journal: bool = False


Then: TypeAlias = Progress | Commit | Release | Park | End


@dataclass(frozen=True, slots=True)
class NewRun:
    """A record to create: ready, in cycle 1, due after `due_in` ms."""

    key: str
    run_id: str
    definition: str
    definition_body: bytes
    body: bytes
    root_key: str = ""
    """Empty: the run is its own root."""
    parent_key: str | None = None
    queue: str | None = None
    schema: int = 1
    status: str = "running"
    due_in: int = 0
    log: tuple[bytes, ...] = ()
    events: tuple[bytes, ...] = ()
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    linked: Mapping[str, bytes] = field(default_factory=dict)
    """Further definitions to keep, by digest: those its own one names."""


@dataclass(frozen=True, slots=True)
class Change:
    """One save. Everything in it becomes visible at once or not at all.

    `number` counts the saves of a claim from 1 and makes a repeated save harmless.
    """

    number: int
    then: Then
    body: bytes | None = None
    status: str | None = None
    log: tuple[bytes, ...] = ()
    resets: bool = False
    """The first log entry replaces all before it: later claims read from there."""
    events: tuple[bytes, ...] = ()
    blobs: Mapping[str, bytes | None] = field(default_factory=dict)
    journal: Mapping[str, bytes | None] = field(default_factory=dict)
    """Operations of the open cycle to set, or to drop (None); a commit drops all."""
    consumed: tuple[str, ...] = ()
    """Ids of signals this change took in."""
    starts: bool = False
    """An unsafe call or a child starts with this save: refused while a cancel is unread."""
    ending: bool = False
    """The first save of an end; refused while a signal that could change the end is unread."""
    closing: bool = False
    """The first save of the end of a segment after which the run waits; refused like that of the run."""
    durable: bool = False
    """Must survive power loss."""
    creates: tuple[NewRun, ...] = ()
    posts: tuple[tuple[str, Signal], ...] = ()
    """Signals to records of the same tree."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The answer to a save: the claim to go on with (None when it was released) and the unread signals."""

    claim: Claim | None
    head: Head
    signals: tuple[Signal, ...]


@dataclass(frozen=True, slots=True)
class Posted:
    """`signal` is the one that stands: the given one, or the first with its id (`new` False)."""

    signal: Signal
    new: bool
    head: Head


@dataclass(frozen=True, slots=True)
class Renewed:
    """Which claims are lost, which runs have unread signals, and the store's time."""

    lost: frozenset[str]
    signalled: frozenset[str]
    now: int


@dataclass(frozen=True, slots=True)
class Presence:
    """A worker process that shows itself. `wake` is where a hint reaches it (a socket's path), if anywhere."""

    id: str
    queues: tuple[str, ...]
    free: int
    wake: str | None = None
    seen_at: int = 0


@dataclass(frozen=True, slots=True)
class Filter:
    """Which heads `find` lists, newest first. `before` is the `created_at` of the last one seen."""

    states: frozenset[State] | None = None
    statuses: frozenset[str] | None = None
    queue: str | None = None
    root_key: str | None = None
    roots: bool = False
    """Only runs that are below no other."""
    host: str | None = None
    """Only claims held by processes of this host."""
    limit: int = 100
    before: int | None = None

    def matches(self, head: Head) -> bool:
        """Whether a head is listed."""
        return (
            (self.states is None or head.state in self.states)
            and (self.statuses is None or head.status in self.statuses)
            and (self.queue is None or head.queue == self.queue)
            and (self.root_key is None or head.root_key == self.root_key)
            and (not self.roots or head.parent_key is None)
            and (self.host is None or (head.state is State.CLAIMED and (head.owner or "").startswith(self.host)))
            and (self.before is None or head.created_at < self.before)
        )
