"""The rules of a record, as pure functions from a head to the next head. Every store uses these and no others.

`now` is always the store's clock in milliseconds. A function returns the new head, or raises or answers with the reason
why there is none; it never reads a clock, makes a token or knows how heads are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from vv_agent.checkpoint.record import (
    Change,
    Claim,
    Commit,
    End,
    Head,
    NewRun,
    Park,
    ParkReason,
    Progress,
    Refused,
    Release,
    Serves,
    Signal,
    State,
)
from vv_agent.errors import CheckpointError, ClaimLost, RunFinished, SignalsWaiting

MAX_RECOVERIES = 5
"""A cycle that was taken over this often without any save parks: it probably kills its workers."""
_HOLD_MS, _MAX_HOLD_MS = 8_000, 120_000
ENDS_WAIT_FOR = frozenset({"cancel", "steer", "follow_up", "budget"})
"""Signals that can still change an end that was not written yet."""
WORDS = frozenset({"steer", "follow_up"})
"""Signals that a parked run keeps unread: they say how to go on, not that it may."""
MAX_ENTRIES = 1 << 24


def create(run: NewRun, now: int) -> Head:
    """The head of a new record: ready, cycle 1, revision 0."""
    return Head(
        key=run.key, root_key=run.root_key or run.key, parent_key=run.parent_key, run_id=run.run_id, queue=run.queue,
        definition=run.definition, schema=run.schema, created_at=now, state=State.READY, reason=None, status=run.status,
        ending=False, cycle=1, revision=0, token=None, owner=None, lease_until=0, due=now + run.due_in, recoveries=0,
        attempt=1, dispatches=0, refused_at=None, refusal=None, entry_n=len(run.log) + len(run.events), signal_n=0,
        write_token=None, write_no=0, write_revision=0, updated_at=now, body=run.body,
    )  # fmt: skip


def state(head: Head, now: int) -> State:
    """The state as of now: a park whose deadline has passed is ready."""
    if head.state is State.PARKED and head.due is not None and head.due <= now:
        return State.READY
    return head.state


def backoff(recoveries: int, token: str) -> int:
    """Wait before the next takeover, in ms: none for the first, then 2, 4, 8, 16 s with up to a quarter of jitter.

    A run that exhausts memory must not take its neighbours along; the jitter comes from the dead claim's token.
    """
    if recoveries < 1:
        return 0
    base = 2_000 << (min(recoveries, 4) - 1)
    return base + base * (int(token[:4], 16) % 256) // 1024


def claim(
    head: Head, cycle: int, token: str, *, owner: str, lease: int, serves: Serves, now: int, resume: bool = False
) -> tuple[Head, Refused | bool]:
    """Take the open cycle: the new head with True when it is a recovery, or the head to keep with why not.

    Boundary: a lease that ends at `now` is over.
    """
    if head.token == token and head.state is State.CLAIMED:  # a repeated call whose answer was lost
        return head, head.recoveries > 0 or resume
    if why := _unclaimable(head, cycle, serves, now):
        return head, Refused(why, head)
    takeover = head.state is State.CLAIMED
    if takeover and head.recoveries >= MAX_RECOVERIES * (2 if head.signal_n else 1) and not head.ending:
        # (an end that was begun is only finished, and a signal may be the cancel of what kills its workers)
        parked = _unowned(head, State.PARKED, now, due=None, reason=ParkReason.ATTEMPTS)
        parked = parked._replace(status="reconciliation_required", revision=head.revision + 1)
        return parked, Refused("attempts", parked)
    recoveries = head.recoveries + 1 if takeover else head.recoveries
    lease_until = now + lease
    claimed = head._replace(
        state=State.CLAIMED, status="running", token=token, owner=owner, lease_until=lease_until,
        due=lease_until + backoff(recoveries, token), revision=head.revision + 1, recoveries=recoveries,
        attempt=head.attempt + (1 if takeover or resume else 0), dispatches=0, updated_at=now,
    )  # fmt: skip
    return claimed, takeover or resume


def _unclaimable(head: Head, cycle: int, serves: Serves, now: int) -> str | None:
    current = state(head, now)
    if current is State.ENDED:
        return "ended"
    if head.schema not in serves.schemas:
        return "schema"
    if serves.queues is not None and head.queue not in serves.queues:
        return "queue"
    if current is State.PARKED:
        return "parked"
    if cycle != head.cycle:
        return "wrong_cycle"
    if current is State.CLAIMED:
        if head.lease_until > now:
            return "live_lease"
        if now < head.lease_until + backoff(head.recoveries, head.token or "0"):
            return "backing_off"
    return None


def holds(head: Head, token: str, revision: int) -> None:
    """Raise `ClaimLost` unless this claim is the stored one. The lease's end alone does not matter here: an owner that
    nobody replaced may still save (answer 12); the worker itself stops at its own deadline."""
    if head.token != token or head.revision != revision or head.state is not State.CLAIMED:
        raise ClaimLost(
            f"run {head.key!r} is at revision {head.revision}, not {revision} under this claim: another worker took "
            "it over, stop and commit nothing"
        )


def repeated(head: Head, token: str, number: int) -> bool:
    """True for a save that was already carried out and whose answer was lost."""
    return head.write_token == token and head.write_no == number


def save(head: Head, claim: Claim, change: Change, unread: Sequence[Signal], now: int) -> Head:
    """Apply a change to the head. `unread` are the signals that would stay unread after it.

    Raises `ClaimLost` for a stale claim, `SignalsWaiting` where an unread signal decides first, `CheckpointError` for a
    change that is not legal from here.
    """
    holds(head, claim.token, claim.revision)
    _signals_allow(head, change, unread)
    entries = head.entry_n + len(change.log) + len(change.events)
    if entries >= MAX_ENTRIES:
        raise CheckpointError("checkpoint_entries_exhausted", f"run {head.key!r} has used its 16.7 million entries")
    written = head._replace(
        body=head.body if change.body is None else change.body,
        status=change.status or head.status, ending=head.ending or change.ending, entry_n=entries,
        recoveries=0 if _progresses(change) else head.recoveries,
        signal_n=len(unread), revision=claim.revision + 1, write_token=claim.token, write_no=change.number,
        write_revision=claim.revision + 1, updated_at=now, log_from=head.entry_n if change.resets else head.log_from,
    )  # fmt: skip
    if change.log or isinstance(change.then, Commit | Park | End):  # a claim alone does not serve it
        written = written._replace(refused_at=None, refusal=None)
    return _next(written, change, any(signal.kind not in WORDS for signal in unread), now)


def _progresses(change: Change) -> bool:
    """Whether a crash after this save is a first one. To start the same call once more is no progress: a run that
    kills its workers there has its back-off and its limit."""
    return bool(change.log) or not isinstance(change.then, Progress)


def _signals_allow(head: Head, change: Change, unread: Sequence[Signal]) -> None:
    kinds = {signal.kind for signal in unread}
    starts_cancelled = (change.starts or change.creates) and "cancel" in kinds
    ends = change.closing or (change.ending and not head.ending)
    end_undecided = ends and kinds & ENDS_WAIT_FOR
    if starts_cancelled or end_undecided:
        raise SignalsWaiting(head.key, unread)


def _next(head: Head, change: Change, signalled: bool, now: int) -> Head:
    match change.then:
        case Progress():
            return head
        case Commit(keep=True):
            return head._replace(cycle=head.cycle + 1)
        case Commit(due_in=due_in):
            return _unowned(head, State.READY, now, due=now if signalled else now + due_in, committed=True)
        case Release(due_in=due_in):
            return _unowned(head, State.READY, now, due=now if signalled else now + due_in)
        case Park(reason, due_in, commit):
            if signalled:
                return _unowned(head, State.READY, now, due=now, committed=commit)
            due = None if due_in is None else now + due_in
            return _unowned(head, State.PARKED, now, due=due, reason=reason, committed=commit)
        case End():
            return _unowned(head, State.ENDED, now, due=None)._replace(ending=True)


def _unowned(
    head: Head, to: State, now: int, *, due: int | None, reason: ParkReason | None = None, committed: bool = False
) -> Head:
    """The head without its claim."""
    return head._replace(
        state=to, reason=reason, token=None, owner=None, lease_until=0, due=due, recoveries=0, dispatches=0,
        cycle=head.cycle + (1 if committed else 0), updated_at=now,
    )  # fmt: skip


def renew(head: Head, token: str, lease: int, now: int) -> Head | None:
    """Move the lease, or None when this claim is not the stored one or its lease is over: then it is lost."""
    if head.token != token or head.state is not State.CLAIMED or head.lease_until <= now:
        return None
    until = now + lease
    return head._replace(lease_until=until, due=until + backoff(head.recoveries, token))


def post(head: Head, signal: Signal, now: int) -> Head:
    """Note an unread signal; a parked run becomes ready and due now, unless it is one of `WORDS`. Raises `RunFinished`
    from *ending* on."""
    if head.ending or head.state is State.ENDED:
        raise RunFinished(head.key)
    noted = head._replace(signal_n=head.signal_n + 1)
    if noted.state is State.PARKED and signal.kind not in WORDS:
        return noted._replace(state=State.READY, due=now)
    return noted


def defer(head: Head, cycle: int, reason: str, hold: int, now: int) -> Head | None:
    """Move `due` for a run that the caller cannot serve; None while a lease lives or another cycle is open."""
    if head.cycle != cycle or state(head, now) in (State.PARKED, State.ENDED):
        return None
    if head.state is State.CLAIMED and head.lease_until > now:
        return None
    return head._replace(due=now + hold, refused_at=now if head.refused_at is None else head.refused_at, refusal=reason)


def unserved(head: Head, now: int) -> int:
    """For how long nobody could serve a run, in ms; 0 while somebody holds it."""
    held = head.state is State.CLAIMED and head.lease_until > now
    return 0 if head.refused_at is None or held or head.state is State.ENDED else now - head.refused_at


def expire(head: Head, now: int) -> Head:
    """End a dead process's claim now; its cycle can be taken over as soon as its back-off allows."""
    return head._replace(lease_until=now, due=now + backoff(head.recoveries, head.token or "0"))


def hand_out(head: Head, now: int, hold: int = _HOLD_MS) -> Head:
    """Move `due` of a run that is handed out, further each time the same cycle is handed out without a claim.

    Without the doubling, sweepers flood the queue under backlog (4,705 needless messages for 5,600 cycles, measured).
    """
    wait = min(hold << min(head.dispatches, 4), _MAX_HOLD_MS)
    return head._replace(state=state(head, now), due=now + wait, dispatches=head.dispatches + 1)


def tree_accepts(root: Head, unread_of_root: Sequence[Signal]) -> None:
    """A child is not created under a cancelled root."""
    if any(signal.kind == "cancel" for signal in unread_of_root):
        raise SignalsWaiting(root.key, unread_of_root)
