"""The contract of a checkpoint store, the same on every store (its text is the docstring of `CheckpointStore`)."""

from __future__ import annotations

import pytest

from vv_agent.checkpoint.record import (
    Change,
    Claim,
    Claimed,
    Commit,
    End,
    EntryKind,
    Filter,
    Look,
    NewRun,
    Park,
    ParkReason,
    Presence,
    Progress,
    Refused,
    Release,
    Seen,
    Serves,
    Signal,
    State,
)
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.errors import CheckpointError, ClaimLost, RunFinished, SignalsWaiting
from vv_agent.testing import FakeClock

LEASE = 30_000


def new(key: str = "k", **changes: object) -> NewRun:
    values: dict[str, object] = {
        "key": key, "run_id": f"run_{key}", "definition": "d" * 64, "definition_body": b"def", "body": b"head",
        "queue": "q", "log": (b"first",), "events": (b"created",),
    }  # fmt: skip
    return NewRun(**{**values, **changes})  # type: ignore[arg-type]


def claimed(store: CheckpointStore, key: str = "k", cycle: int = 1, token: str = "a" * 32, **more: object) -> Claimed:
    answer = store.claim(key, cycle, token, owner="host/1/1", lease=LEASE, **more)  # type: ignore[arg-type]
    assert isinstance(answer, Claimed), answer
    return answer


def refused(store: CheckpointStore, key: str = "k", cycle: int = 1, token: str = "b" * 32, **more: object) -> str:
    answer = store.claim(key, cycle, token, owner="host/2/2", lease=LEASE, **more)  # type: ignore[arg-type]
    assert isinstance(answer, Refused), answer
    return answer.why


def test_create_inserts_a_ready_run_with_its_first_entries(store: CheckpointStore, clock: FakeClock) -> None:
    (head,) = store.create([new(blobs={"state": b"s"})])
    assert (head.state, head.cycle, head.revision, head.due, head.attempt) == (State.READY, 1, 0, clock.now, 1)
    snapshot = store.load("k")
    assert snapshot is not None
    assert snapshot.head == head
    assert [entry.body for entry in snapshot.log] == [b"first"]
    assert snapshot.blobs == {"state": b"s"}
    assert store.definition("d" * 64) == b"def"


def test_a_claim_reads_the_log_from_the_last_reset_and_a_load_all_of_it(store: CheckpointStore) -> None:
    store.create([new()])
    first = claimed(store)
    saved = store.save(first.claim, Change(1, Progress(), log=(b"second",), events=(b"e",)))
    assert saved.claim is not None
    store.save(saved.claim, Change(2, Commit(), log=(b"reset",), resets=True))
    later = claimed(store, cycle=2, token="c" * 32)
    store.save(later.claim, Change(1, Commit(), log=(b"after",)))
    again = claimed(store, cycle=3, token="d" * 32)
    assert [entry.body for entry in again.snapshot.log] == [b"reset", b"after"]
    whole = store.load("k")
    assert whole is not None
    assert [entry.body for entry in whole.log] == [b"first", b"second", b"reset", b"after"]
    assert whole.head.log_from == again.snapshot.log[0].seq - 1
    store.save(again.claim, Change(1, Commit()))
    seen = claimed(store, cycle=4, token="e" * 32, seen=Seen(entries=again.snapshot.log[0].seq))
    assert [entry.body for entry in seen.snapshot.log] == [b"after"]


def test_look_gives_the_control_fields_and_the_time(store: CheckpointStore, clock: FakeClock) -> None:
    assert store.look("k") is None
    (head,) = store.create([new()])
    clock.advance(5)
    assert store.look("k") == Look(head, clock.now)


def test_create_again_by_the_same_run_is_the_same_answer(store: CheckpointStore) -> None:
    first = store.create([new()])
    assert store.create([new()]) == first
    with pytest.raises(CheckpointError, match="checkpoint_already_exists"):
        store.create([new("other"), new(run_id="run_else")])
    assert store.load("other") is None, "nothing of a refused create may stay"


def test_claim_takes_the_run_and_sees_everything(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new()])
    answer = claimed(store)
    assert answer.recovered is False
    head = answer.snapshot.head
    assert (head.state, head.owner, head.revision, head.lease_until) == (
        State.CLAIMED, "host/1/1", 1, clock.now + LEASE)  # fmt: skip
    assert [entry.body for entry in answer.snapshot.log] == [b"first"]


def test_a_repeated_claim_gives_the_same_claim(store: CheckpointStore) -> None:
    store.create([new()])
    first = claimed(store)
    assert claimed(store).claim == first.claim


def test_claim_is_refused_with_the_reason(store: CheckpointStore, clock: FakeClock) -> None:
    assert refused(store) == "not_found"
    store.create([new()])
    assert refused(store, cycle=2) == "wrong_cycle"
    assert refused(store, serves=Serves(queues=frozenset({"other"}))) == "queue"
    assert refused(store, serves=Serves(schemas=frozenset({2}))) == "schema"
    claimed(store)
    clock.advance(LEASE - 1)
    assert refused(store) == "live_lease"
    clock.advance(1)
    assert claimed(store, token="c" * 32).recovered is True, "a lease that ends now is over"


def test_only_one_of_the_callers_of_an_ended_lease_gets_it(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new()])
    claimed(store)
    clock.advance(LEASE)
    second = claimed(store, token="c" * 32)
    assert second.snapshot.head.attempt == 2
    assert refused(store, token="e" * 32) == "live_lease"


def test_a_stale_worker_is_fenced(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new()])
    stale = claimed(store).claim
    clock.advance(LEASE)
    claimed(store, token="c" * 32)
    with pytest.raises(ClaimLost):
        store.save(stale, Change(1, Commit(), log=(b"mine",)))
    assert store.renew([stale], lease=LEASE).lost == {"k"}
    snapshot = store.load("k")
    assert snapshot is not None
    assert [entry.body for entry in snapshot.log] == [b"first"]


def test_a_late_owner_that_nobody_replaced_may_still_save(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new()])
    claim = claimed(store).claim
    clock.advance(LEASE * 2)
    assert store.save(claim, Change(1, Commit())).head.cycle == 2
    assert store.renew([claim], lease=LEASE).lost == {"k"}


def test_save_appends_and_replaces_in_one_step(store: CheckpointStore) -> None:
    store.create([new(blobs={"a": b"1", "b": b"2"})])
    claim = claimed(store).claim
    change = Change(
        1, Progress(), body=b"head2", log=(b"l1", b"l2"), events=(b"e1",), blobs={"a": b"9", "b": None},
        journal={"op": b"started"}, durable=True,
    )  # fmt: skip
    saved = store.save(claim, change)
    assert saved.claim is not None
    assert saved.claim.revision == claim.revision + 1
    snapshot = store.load("k")
    assert snapshot is not None
    assert [entry.body for entry in snapshot.log] == [b"first", b"l1", b"l2"]
    assert snapshot.blobs == {"a": b"9"}
    assert snapshot.journal == {"op": b"started"}
    assert snapshot.head.body == b"head2"
    entries = store.entries("k")
    assert [(e.kind, e.body) for e in entries][-1] == (EntryKind.EVENT, b"e1")
    assert [e.seq for e in entries] == sorted({e.seq for e in entries})


def test_a_repeated_save_is_answered_and_changes_nothing(store: CheckpointStore) -> None:
    store.create([new()])
    claim = claimed(store).claim
    change = Change(1, Progress(), log=(b"l1",))
    first = store.save(claim, change)
    assert store.save(claim, change) == first
    assert first.claim is not None
    done = Change(2, Commit(), log=(b"l2",))
    released = store.save(first.claim, done)
    assert released.claim is None
    assert store.save(first.claim, done).claim is None
    claimed(store, cycle=2, token="c" * 32)
    assert store.save(first.claim, done).claim is None, "also when another worker went on already"
    snapshot = store.load("k")
    assert snapshot is not None
    assert [entry.body for entry in snapshot.log] == [b"first", b"l1", b"l2"]


def test_commit_opens_the_next_cycle_and_drops_the_journal(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new()])
    claim = claimed(store).claim
    saved = store.save(claim, Change(1, Progress(), journal={"op": b"x"}))
    assert saved.claim is not None
    saved = store.save(saved.claim, Change(2, Commit(due_in=5_000)))
    assert saved.claim is None
    assert (saved.head.state, saved.head.cycle, saved.head.due) == (State.READY, 2, clock.now + 5_000)
    snapshot = store.load("k")
    assert snapshot is not None
    assert snapshot.journal == {}


def test_a_kept_claim_is_the_claim_of_the_next_cycle(store: CheckpointStore) -> None:
    store.create([new()])
    kept = store.save(claimed(store).claim, Change(1, Commit(keep=True))).claim
    assert kept is not None
    assert kept.cycle == 2
    assert refused(store, cycle=2) == "live_lease"
    assert store.save(kept, Change(2, Commit())).head.cycle == 3


def test_a_claim_reads_only_what_is_new(store: CheckpointStore) -> None:
    store.create([new(blobs={"a": b"1"})])
    saved = store.save(claimed(store).claim, Change(1, Commit(), log=(b"l1",)))
    known = claimed(store, cycle=2, token="c" * 32, seen=Seen(saved.head.entry_n, saved.head.revision)).snapshot
    assert known.log == ()
    assert known.blobs is None
    store.save(Claim("k", 2, "c" * 32, saved.head.revision + 1, 0), Change(1, Release()))
    stale = claimed(store, cycle=2, token="d" * 32, seen=Seen(2, saved.head.revision)).snapshot
    assert [entry.body for entry in stale.log] == [b"l1"]
    assert stale.blobs == {"a": b"1"}


def test_release_counts_no_attempt_and_is_due_now(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new()])
    released = store.save(claimed(store).claim, Change(1, Release()))
    assert (released.head.cycle, released.head.state, released.head.due) == (1, State.READY, clock.now)
    assert claimed(store, token="c" * 32).snapshot.head.attempt == 1


def test_a_parked_run_is_claimed_by_nobody_until_something_wakes_it(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new()])
    store.save(claimed(store).claim, Change(1, Park(ParkReason.INPUT)))
    assert refused(store, token="c" * 32) == "parked"
    assert store.take_due(["q"], 10) == ()
    posted = store.post("k", Signal("s1", "answer", b"yes"))
    assert posted.new
    assert posted.head.due == clock.now
    answer = claimed(store, token="c" * 32)
    assert [s.body for s in answer.snapshot.signals] == [b"yes"]
    assert answer.snapshot.head.reason is ParkReason.INPUT


def test_a_park_with_a_deadline_wakes_by_itself(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new()])
    store.save(claimed(store).claim, Change(1, Park(ParkReason.RETRY_AFTER, due_in=7_000)))
    clock.advance(6_999)
    assert refused(store, token="c" * 32) == "parked"
    clock.advance(1)
    assert [head.key for head in store.take_due(["q"], 10)] == ["k"]
    claimed(store, token="c" * 32)


def test_no_wake_up_is_lost_between_a_signal_and_a_park(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new()])
    claim = claimed(store).claim
    store.post("k", Signal("s1", "answer"))
    saved = store.save(claim, Change(1, Park(ParkReason.INPUT)))
    assert (saved.head.state, saved.head.due) == (State.READY, clock.now)
    again = claimed(store, token="c" * 32).claim
    consumed = store.save(again, Change(1, Park(ParkReason.INPUT), consumed=("s1",)))
    assert consumed.head.state is State.PARKED


def test_post_is_idempotent_and_the_first_body_stands(store: CheckpointStore) -> None:
    store.create([new()])
    assert store.post("k", Signal("s1", "decision", b"allow")).new
    again = store.post("k", Signal("s1", "decision", b"deny"))
    assert (again.new, again.signal.body) == (False, b"allow")
    assert len(store.load("k").signals) == 1  # type: ignore[union-attr]
    store.save(claimed(store).claim, Change(1, Progress(), consumed=("s1",)))
    assert store.post("k", Signal("s1", "decision", b"deny")).signal.body == b"allow", "also once it was read"
    assert store.load("k").head.signal_n == 0  # type: ignore[union-attr]


def test_post_to_nothing_and_to_a_finished_run_is_refused(store: CheckpointStore) -> None:
    with pytest.raises(CheckpointError, match="checkpoint_not_found"):
        store.post("k", Signal("s1", "cancel"))
    store.create([new()])
    saved = store.save(claimed(store).claim, Change(1, Progress(), ending=True))
    with pytest.raises(RunFinished):
        store.post("k", Signal("s1", "cancel"))
    assert saved.claim is not None
    store.save(saved.claim, Change(2, End(), status="completed"))
    with pytest.raises(RunFinished):
        store.post("k", Signal("s2", "cancel"))
    assert refused(store, token="c" * 32) == "ended"


def test_an_end_waits_for_signals_that_could_change_it(store: CheckpointStore) -> None:
    store.create([new()])
    claim = claimed(store).claim
    store.post("k", Signal("s1", "cancel", b"enough"))
    with pytest.raises(SignalsWaiting) as waiting:
        store.save(claim, Change(1, End(), ending=True, status="completed"))
    assert [s.body for s in waiting.value.signals] == [b"enough"]
    saved = store.save(claim, Change(1, End(), ending=True, status="failed", consumed=("s1",)))
    assert (saved.head.state, saved.head.status) == (State.ENDED, "failed")


def test_a_park_that_ends_the_segment_waits_for_them_too(store: CheckpointStore) -> None:
    store.create([new()])
    claim = claimed(store).claim
    store.post("k", Signal("s1", "cancel", b"enough"))
    with pytest.raises(SignalsWaiting):
        store.save(claim, Change(1, Park(ParkReason.INPUT, commit=True), status="wait_user", closing=True))
    store.save(claim, Change(1, Progress()))
    store.post("k", Signal("s2", "resume"))
    other = Change(2, Park(ParkReason.INPUT, commit=True), consumed=("s1",), closing=True)
    saved = store.save(Claim("k", 1, "a" * 32, claim.revision + 1, 0), other)
    assert saved.head.state is State.READY, "any other signal just wakes it again"


def test_no_unsafe_call_starts_after_an_accepted_cancel(store: CheckpointStore) -> None:
    store.create([new()])
    claim = claimed(store).claim
    store.post("k", Signal("s1", "cancel"))
    with pytest.raises(SignalsWaiting):
        store.save(claim, Change(1, Progress(), starts=True, journal={"op": b"started"}))
    assert store.save(claim, Change(1, Progress())).signals != ()


def test_take_due_hands_a_run_out_once_and_later_again(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new("k1"), new("k2"), new("mine", queue=None), new("other", queue="z")])
    assert len(store.take_due(["q"], 1)) == 1
    assert len(store.take_due(["q"], 10)) == 1
    assert store.take_due(["q"], 10) == ()
    for wait in (8_000, 16_000, 32_000, 64_000, 120_000, 120_000):
        clock.advance(wait - 1)
        assert store.take_due(["q"], 10) == ()
        clock.advance(1)
        assert len(store.take_due(["q"], 10)) == 2


def test_an_ended_lease_is_due(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new()])
    claimed(store)
    clock.advance(LEASE - 1)
    assert store.take_due(["q"], 10) == ()
    clock.advance(1)
    assert [head.key for head in store.take_due(["q"], 10)] == ["k"]


def test_renew_moves_leases_touches_no_revision_and_tells_of_signals(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new("k1"), new("k2")])
    one, two = claimed(store, "k1").claim, claimed(store, "k2", token="c" * 32).claim
    store.post("k2", Signal("s", "cancel"))
    clock.advance(LEASE - 1)
    answer = store.renew([one, two], lease=LEASE, presence=Presence("w1", ("q",), 3))
    assert (answer.lost, answer.signalled) == (frozenset(), {"k2"})
    clock.advance(LEASE - 1)
    assert refused(store, "k1") == "live_lease"
    assert store.save(one, Change(1, Commit())).head.cycle == 2, "a renewal must not make the worker's save fail"
    clock.advance(1)
    assert store.renew([two], lease=LEASE).lost == {"k2"}


def test_presence_counts_for_a_while(store: CheckpointStore, clock: FakeClock) -> None:
    store.renew([], lease=LEASE, presence=Presence("w1", ("q", "r"), 3, "/tmp/x"))
    (seen,) = store.presences()
    assert (seen.id, seen.queues, seen.free, seen.wake) == ("w1", ("q", "r"), 3, "/tmp/x")
    clock.advance(10_000)
    assert store.presences() == ()


def test_defer_moves_due_and_keeps_the_time_of_the_first_refusal(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new()])
    assert store.defer("k", 1, "missing module x", 5_000)
    first = clock.now
    clock.advance(5_000)
    assert store.defer("k", 1, "missing module y", 5_000)
    head = store.load("k").head  # type: ignore[union-attr]
    assert (head.refused_at, head.refusal, head.due, head.revision) == (first, "missing module y", clock.now + 5_000, 0)
    assert not store.defer("k", 2, "not this cycle", 1)
    claim = claimed(store).claim
    assert not store.defer("k", 1, "held", 1)
    store.save(claim, Change(1, Release()))
    assert store.load("k").head.refused_at == first, "who claims it may not be able to serve it"  # type: ignore[union-attr]
    clock.advance(5_000)
    claim = claimed(store, token="c" * 32).claim
    store.save(claim, Change(1, Progress(), log=(b"paid",)))
    assert store.load("k").head.refused_at is None, "who goes on with it can"  # type: ignore[union-attr]


def test_expire_ends_the_claims_of_one_process(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new("k1"), new("k2")])
    claimed(store, "k1")
    store.claim("k2", 1, "c" * 32, owner="host/2/2", lease=LEASE)
    assert [head.key for head in store.find(Filter(host="host/1"))] == ["k1"]
    assert store.expire("host/1/1") == ("k1",)
    assert [head.key for head in store.take_due(["q"], 10)] == ["k1"]
    assert claimed(store, "k1", token="d" * 32).recovered
    assert refused(store, "k2") == "live_lease"


def test_takeovers_back_off_and_the_sixth_parks(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new()])
    tokens = iter("123456789")
    claimed(store, token="0" * 32)
    for wait in (0, 2_000, 4_000, 8_000, 16_000):
        clock.advance(LEASE)
        if wait:
            assert refused(store, token=next(tokens) * 32) == "backing_off"
            clock.advance(wait + wait // 4)
        claimed(store, token=next(tokens) * 32)
    clock.advance(LEASE + 20_000)
    assert refused(store) == "attempts"
    head = store.load("k").head  # type: ignore[union-attr]
    assert (head.state, head.reason, head.status) == (State.PARKED, ParkReason.ATTEMPTS, "reconciliation_required")
    assert store.take_due(["q"], 10) == ()
    store.post("k", Signal("r1", "resume"))
    assert claimed(store, token="f" * 32).snapshot.head.recoveries == 0


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        (Change(1, Progress(), log=(b"a receipt",)), 1),
        (Change(1, Commit(keep=True)), 1),
        (Change(1, Progress(), journal={"op": b"started again"}, starts=True), 2),
    ],
    ids=["receipt", "commit", "the same start again"],
)
def test_progress_forgets_the_takeovers(store: CheckpointStore, clock: FakeClock, change: Change, counted: int) -> None:
    store.create([new()])
    claimed(store)
    clock.advance(LEASE)
    second = claimed(store, token="c" * 32)
    assert second.snapshot.head.recoveries == 1
    head = store.save(second.claim, change).head
    clock.advance(LEASE + 3_000)
    assert claimed(store, cycle=head.cycle, token="d" * 32).snapshot.head.recoveries == counted


def test_a_claim_says_nothing_about_a_run_that_was_made_anew_under_its_key(
    store: CheckpointStore, clock: FakeClock
) -> None:
    store.create([new()])
    stale = claimed(store).claim
    clock.advance(LEASE)
    store.delete("k")
    store.create([new(run_id="run_anew")])
    mine = claimed(store, token="b" * 32).claim
    with pytest.raises(ClaimLost):
        store.save(stale, Change(1, Commit(), log=(b"of the old run",)))
    assert store.save(mine, Change(1, Commit())).head.run_id == "run_anew"


def test_a_child_is_made_with_its_parents_save_and_a_cancel_reaches_the_tree(store: CheckpointStore) -> None:
    store.create([new("root")])
    claim = claimed(store, "root").claim
    child = new("c_child", root_key="root", parent_key="root")
    saved = store.save(claim, Change(1, Park(ParkReason.CHILDREN), creates=(child,)))
    assert saved.head.state is State.PARKED
    kid = claimed(store, "c_child", token="c" * 32).claim
    grandchild = new("c_grandchild", root_key="root", parent_key="c_child")
    kept = store.save(kid, Change(1, Progress(), creates=(grandchild,)))
    assert kept.claim is not None
    store.post("root", Signal("s", "cancel", b"why"))
    for key in ("root", "c_child", "c_grandchild"):
        assert [s.kind for s in store.load(key).signals] == ["cancel"]  # type: ignore[union-attr]
    late = new("c_late", root_key="root", parent_key="c_child")
    with pytest.raises(SignalsWaiting):
        store.save(kept.claim, Change(2, Progress(), creates=(late,)))
    assert store.load("c_late") is None
    assert len(store.find(Filter(root_key="root"))) == 3


def test_a_save_may_post_within_the_tree(store: CheckpointStore) -> None:
    store.create([new("root"), new("c_child", root_key="root", parent_key="root")])
    store.save(claimed(store, "root").claim, Change(1, Park(ParkReason.CHILDREN)))
    kid = claimed(store, "c_child", token="c" * 32).claim
    ended = Change(1, End(), ending=True, status="completed", posts=(("root", Signal("end", "child_ended", b"x")),))
    store.save(kid, ended)
    head = store.load("root").head  # type: ignore[union-attr]
    assert (head.state, head.signal_n) == (State.READY, 1)


def test_find_lists_newest_first(store: CheckpointStore, clock: FakeClock) -> None:
    for number in range(5):
        store.create([new(f"k{number}")])
        clock.advance(10)
    assert [h.key for h in store.find(Filter(limit=2))] == ["k4", "k3"]
    assert [h.key for h in store.find(Filter(limit=2, before=clock.now - 20))] == ["k2", "k1"]
    claimed(store, "k0")
    assert [h.key for h in store.find(Filter(states=frozenset({State.CLAIMED})))] == ["k0"]
    assert store.find(Filter(statuses=frozenset({"failed"}))) == ()


def test_delete_removes_everything_but_not_under_a_claim(store: CheckpointStore) -> None:
    store.create([new(blobs={"a": b"1"})])
    claim = claimed(store).claim
    with pytest.raises(CheckpointError, match="checkpoint_claim_active"):
        store.delete("k")
    store.save(claim, Change(1, End(), ending=True))
    assert store.delete("k")
    assert not store.delete("k")
    store.create([new(run_id="run_second", log=(), events=(b"only",))])
    assert [entry.body for entry in store.entries("k")] == [b"only"]
    assert store.load("k").blobs == {}  # type: ignore[union-attr]


def test_events_wait_for_the_first_one(store: CheckpointStore) -> None:
    store.create([new()])
    assert [e.body for e in store.events("k")] == [b"first", b"created"]
    assert store.events("k", after=2, wait=0.05) == ()


def test_live_text_is_read_from_a_number_on(store: CheckpointStore) -> None:
    start = store.live.last()
    store.live.listen(["k"])
    assert store.live.wanted("k")
    store.live.publish([("k", b"a"), ("other", b"x"), ("k", b"b")])
    cursor, items = store.live.read(["k"], start)
    assert items == [("k", b"a"), ("k", b"b")]
    assert store.live.read(["k"], cursor) == (cursor, [])
    store.live.publish([("k", b"c")])
    assert store.live.read(["k"], cursor)[1] == [("k", b"c")]


def test_a_large_body_is_kept_whole(store: CheckpointStore) -> None:
    store.create([new(log=(bytes(3_000_000),))])
    assert len(store.load("k").log[0].body) == 3_000_000  # type: ignore[union-attr]


def test_a_redis_store_works_on_the_fake_server_too() -> None:
    """Quick unit tests may use fakeredis: the same script, the same answers."""
    import fakeredis

    from vv_agent.checkpoint.redis import RedisStore

    fake = RedisStore("redis://fake", client=fakeredis.FakeRedis())
    fake.create([new()])
    claim = claimed(fake).claim
    saved = fake.save(claim, Change(1, Commit(), log=(b"l1",)))
    assert (saved.head.cycle, saved.claim) == (2, None)
    with pytest.raises(ClaimLost):
        fake.save(claim, Change(2, Commit()))
    assert [entry.body for entry in fake.load("k").log] == [b"first", b"l1"]  # type: ignore[union-attr]


def test_an_end_that_was_begun_is_never_parked_away(store: CheckpointStore, clock: FakeClock) -> None:
    """Its session may be down for long: after five takeovers it is taken over again."""
    store.create([new()])
    store.save(claimed(store).claim, Change(1, Progress(), ending=True))
    for n in range(8):
        clock.advance(LEASE + 60_000)
        assert claimed(store, token=f"{n:032x}").recovered


def test_a_run_that_kills_its_workers_parks_whatever_it_was_told(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new()])
    store.post("k", Signal("s", "steer"))
    for n in range(11):
        claimed(store, token=f"{n:032x}")
        clock.advance(LEASE + 60_000)
    assert refused(store, token="f" * 32) == "attempts"


def test_a_word_wakes_no_run_that_waits_and_is_there_when_it_goes_on(store: CheckpointStore) -> None:
    store.create([new()])
    claim = claimed(store).claim
    store.post("k", Signal("s1", "steer"))
    assert store.save(claim, Change(1, Park(ParkReason.INPUT))).head.state is State.PARKED
    assert store.post("k", Signal("s2", "follow_up")).head.state is State.PARKED
    assert store.post("k", Signal("a", "answer")).head.state is State.READY
    answer = claimed(store, token="c" * 32)
    assert [signal.id for signal in answer.snapshot.signals] == ["s1", "s2", "a"]


def test_a_signal_that_nobody_read_keeps_a_run_from_being_parked(store: CheckpointStore, clock: FakeClock) -> None:
    store.create([new()])
    for n in range(6):
        claimed(store, token=f"{n:032x}")
        clock.advance(LEASE + 60_000)
    store.post("k", Signal("c", "cancel"))
    answer = claimed(store, token="f" * 32)
    assert [signal.kind for signal in answer.snapshot.signals] == ["cancel"]
    clock.advance(LEASE + 60_000)
    store.save(answer.claim, Change(1, Progress(), consumed=("c",)))
