"""The contract's twelve store operations, said in our verbs, for the cases of checkpoint_store.json.

Two things are translated, and nothing else. Revisions: a case may begin at any revision, ours begins at 0 and is moved by
each verb; what is compared is how far an operation moves it. `finalize` of a record that nobody claimed: with us whoever
ends a run claims it first, so the claim's own step is not counted.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from vv_agent.checkpoint.record import (
    Change,
    Claim,
    Claimed,
    Commit,
    End,
    NewRun,
    Park,
    ParkReason,
    Progress,
    Refused,
    Signal,
    State,
    Then,
)
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.errors import CheckpointError, ClaimLost
from vv_agent.testing import FakeClock

KEY = "case-key"
BASE = 1_800_000_000_000
"""Where a case's small times begin on our clock."""
LEASE = 100
ABORT = "operator_abort_with_unknown_outcome"
CODES = {"live_lease": "checkpoint_claim_active", "ended": "checkpoint_terminal_immutable"}
"""Our refusals that the contract raises as errors."""


class Refusal(Exception):
    """An operation was refused with a code of the contract."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Adapter:
    """One record on one store; each operation of the contract is a method of the same name."""

    def __init__(self, store: CheckpointStore, clock: FakeClock) -> None:
        self.store, self.clock = store, clock
        self.skew = 0
        self._names: dict[str, str] = {}
        self._numbers = iter(range(1, 1000))
        self._lock = threading.Lock()

    # What a case begins with.

    def given(self, initial: Mapping[str, Any]) -> None:
        """A record in the state a case describes."""
        lease_until = initial.get("lease_expires_at_ms") or 200
        self.clock.now = BASE + lease_until - LEASE
        self.store.create([_new("run_initial")])
        for _ in range(initial.get("cycle_index", 0)):
            self._save(self._claimed("past"), Commit())
        status, token = initial.get("status", "running"), initial.get("claim_token")
        journal = _journal(initial)
        if token is not None:
            claim = self._claimed(token)
            if journal:
                self._save(claim, Progress(), journal=journal)
        elif status == "reconciliation_required":
            self._save(self._claimed("past"), Park(ParkReason.RECONCILIATION), status=status, journal=journal)
        elif status not in ("running", "reconciliation_required"):
            self._save(self._claimed("past"), End(), status=status, log=(b"end",), ending=True)
        self.skew = initial.get("revision", 0) - self._head().revision

    def _claimed(self, token: str) -> Claim:
        head = self._head()
        answer = self.store.claim(KEY, head.cycle, self._token(token), owner="w/1/1", lease=LEASE)
        assert isinstance(answer, Claimed), answer
        return answer.claim

    # The operations.

    def create(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        (head,) = self.store.create([_new("run_created")])
        self.skew = operation["revision"] - head.revision
        return {"created": True}

    def load(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        return {"found": self.store.load(KEY) is not None}

    def claim(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        self.clock.now = BASE + operation["now_ms"]
        if self._head().state is State.PARKED:  # somebody wants a waiting run to go on
            self.store.post(KEY, Signal(f"resume {operation['claim_token']}", "resume"))
        lease = operation["lease_expires_at_ms"] - operation["now_ms"]
        answer = self.store.claim(
            KEY, operation["cycle_index"], self._token(operation["claim_token"]), owner="w/1/1", lease=lease,
            resume=operation["claim_mode"] == "recovery",
        )  # fmt: skip
        if isinstance(answer, Refused):
            raise Refusal(CODES.get(answer.why, answer.why))
        return {"claimed": True}

    def renew(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        self.clock.now = BASE + operation["now_ms"]
        lease = operation["lease_expires_at_ms"] - operation["now_ms"]
        answer = self.store.renew([self._under(operation)], lease=lease)
        if answer.lost:
            raise Refusal("checkpoint_lease_lost")
        return {"renewed": True}

    def progress(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        return self._update(operation, Progress(), log=(operation.get("writer", "").encode(),))

    def suspend(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        return self._update(operation, Park(ParkReason.RECONCILIATION), status="reconciliation_required")

    def commit_cycle(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        return self._update(operation, Commit())

    def finalize_claimed(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        aborts = operation.get("terminal_error_code") == ABORT
        return self._update(
            operation, End(keep_journal=aborts), status=operation["status"], log=(b"end",), ending=True,
            body=b"observation" if aborts else None,
        )  # fmt: skip

    def finalize(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        self._expect(operation)
        now = self.clock.now - BASE
        self.claim({
            "cycle_index": self._head().cycle, "claim_token": "who ends it", "claim_mode": "continue", "now_ms": now,
            "lease_expires_at_ms": now + LEASE,
        })  # fmt: skip
        self.skew -= 1
        revision = self._head().revision + self.skew
        return self.finalize_claimed({**operation, "claim_token": "who ends it", "expected_revision": revision})

    def delete(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        return {"deleted": self.store.delete(KEY)}

    # Carrying them out.

    def carry_out(self, case: Mapping[str, Any]) -> dict[str, Any]:
        """What came of a case's operation, or of its operations at once."""
        if "operations" in case:
            return self._race(case["operations"])
        operation = case["operation"]
        done = {"create": "created", "claim": "claimed", "renew": "renewed"}.get(operation["kind"], "updated")
        try:
            return getattr(self, operation["kind"])(operation)  # type: ignore[no-any-return]
        except (Refusal, CheckpointError) as refusal:
            return {done: False, "error": refusal.code}

    def _race(self, operations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        barrier = threading.Barrier(len(operations))
        won: list[bool] = []

        def one(operation: Mapping[str, Any]) -> None:
            barrier.wait()
            try:
                getattr(self, operation["kind"])(operation)
            except (Refusal, CheckpointError):
                won.append(False)
            else:
                won.append(True)

        threads = [threading.Thread(target=one, args=(operation,)) for operation in operations]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lost = won.count(False)
        return {"success_count": won.count(True), "conflict_count": lost, "rejected_count": lost}

    def seen(self) -> dict[str, Any]:
        """The record, in the contract's words."""
        snapshot = self.store.load(KEY)
        assert snapshot is not None
        head = snapshot.head
        states = {name: body.decode() for name, body in snapshot.journal.items()}
        claimed = head.state is State.CLAIMED
        return {
            "revision": head.revision + self.skew,
            "resume_attempt": head.attempt,
            "cycle_index": head.cycle - 1,
            "status": head.status,
            "claim_token": self._names[head.token] if head.token else None,
            "claimed_cycle": head.cycle if claimed else None,
            "lease_expires_at_ms": head.lease_until - BASE if claimed else None,
            "model_journal_count": sum(name.startswith("model") for name in states),
            "tool_journal_count": sum(name.startswith("tool") for name in states),
            "journal_state": next(iter(states.values()), None),
            "model_journal_state": states.get("model 1"),
            "tool_journal_state": states.get("tool 1"),
            "terminal_result_present": snapshot.log[-1].body == b"end",
            "resume_observation_present": head.body == b"observation",
        }

    def _update(self, operation: Mapping[str, Any], then: Then, **fields: Any) -> dict[str, Any]:
        self._save(self._under(operation), then, **fields)
        return {"updated": True}

    def _save(self, claim: Claim, then: Then, **fields: Any) -> None:
        with self._lock:
            number = next(self._numbers)
        try:
            self.store.save(claim, Change(number, then, **fields))
        except ClaimLost as lost:
            raise Refusal("checkpoint_claim_lost") from lost

    def _under(self, operation: Mapping[str, Any]) -> Claim:
        """The claim an operation names."""
        head = self._head()
        revision = operation["expected_revision"] - self.skew if "expected_revision" in operation else head.revision
        return Claim(KEY, head.cycle, self._token(operation["claim_token"]), revision, head.lease_until)

    def _expect(self, operation: Mapping[str, Any]) -> None:
        if operation["expected_revision"] != self._head().revision + self.skew:
            raise Refusal("checkpoint_revision_conflict")

    def _head(self) -> Any:
        snapshot = self.store.load(KEY)
        assert snapshot is not None
        return snapshot.head

    def _token(self, name: str) -> str:
        token = hashlib.sha256(name.encode()).hexdigest()[:32]
        self._names[token] = name
        return token


def _new(run_id: str) -> NewRun:
    return NewRun(
        key=KEY, run_id=run_id, definition="d" * 64, definition_body=b"definition", body=b"head", log=(b"begin",)
    )  # fmt: skip


def _journal(initial: Mapping[str, Any]) -> dict[str, bytes]:
    """Entries of the kinds, states and numbers a case names; a kind it leaves open is a tool's."""
    entries = {}
    for kind in ("model", "tool"):
        for n in range(initial.get(f"{kind}_journal_count", 0)):
            entries[f"{kind} {n + 1}"] = b"started"
        if state := initial.get(f"{kind}_journal_state"):
            entries[f"{kind} 1"] = state.encode()
    if state := initial.get("journal_state"):
        entries["tool 1"] = state.encode()
    return entries
