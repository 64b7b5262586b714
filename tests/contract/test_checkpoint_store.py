"""checkpoint_store.json: the contract's operations and revision rules, on every store.

Its append_once cases and event digests run in test_event_store.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract import store_adapter, test_checkpoint_resume
from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.contract.store_adapter import BASE, KEY, Adapter, Refusal
from vv_agent import testing
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.errors import CheckpointError
from vv_agent.testing import FakeClock

FIXTURE = load("checkpoint_store.json")
NO_OUTBOX = "events are written in the record's transaction, there is no outbox and nothing to acknowledge (DESIGN 10)"
FORMS = "tables, keys and scripts are ours (DESIGN 10)"
OUTBOX_OPERATIONS = ("record_event_delivery", "acknowledge_terminal")
OUTBOX_RULES = (
    "event_delivery_increment", "acknowledge_increment", "event_delivery_preserves_claim_and_terminal",
    "outbox_event_ids_unique", "identical_event_enqueue_reuses_existing_entry",
)  # fmt: skip
CASES = Cases(
    "checkpoint_store.json",
    differs={
        f"store_cases/{case['name']}": NO_OUTBOX
        for case in FIXTURE["store_cases"]
        if case.get("operation", {}).get("kind") in OUTBOX_OPERATIONS
    }
    | {f"operations/{name}": NO_OUTBOX for name in OUTBOX_OPERATIONS}
    | {f"revision_rules/{name}": NO_OUTBOX for name in OUTBOX_RULES}
    | {
        f"outbox_cases/{case['name']}": NO_OUTBOX
        for case in FIXTURE["outbox_cases"]
        if not case["name"].startswith("append_once")
    }
    | {"namespaces": FORMS, "redis_rules": FORMS, "run_definition_storage": FORMS}
    | {f"redis_key_vectors/{vector['checkpoint_key']}": FORMS for vector in FIXTURE["redis_key_vectors"]},
)


@pytest.fixture
def adapter(store: CheckpointStore, clock: FakeClock) -> Adapter:
    return Adapter(store, clock)


@pytest.mark.parametrize("case", FIXTURE["store_cases"], ids=lambda case: case["name"])
def test_a_store_case(case: dict[str, Any], adapter: Adapter) -> None:
    with CASES.run(f"store_cases/{case['name']}"):
        if case["initial"] is not None:
            adapter.given(case["initial"])
        before = adapter.seen() if case["initial"] is not None else None
        outcome = adapter.carry_out(case)
        after = adapter.seen()
        seen = after | outcome
        assert {name: seen[name] for name in case["expected"]} == case["expected"]
        if "error" in outcome:
            assert after == before, "a refused operation changes nothing"


@pytest.mark.parametrize("operation", FIXTURE["operations"], ids=lambda operation: operation["name"])
def test_an_operation_has_a_verb(operation: dict[str, Any]) -> None:
    with CASES.run(f"operations/{operation['name']}"):
        assert callable(getattr(Adapter, operation["name"]))


CLAIM = {"cycle_index": 1, "claim_mode": "continue", "claim_token": "a", "now_ms": 200, "lease_expires_at_ms": 300}


def moved(adapter: Adapter, kind: str, **fields: Any) -> int:
    """How far an operation moves the revision."""
    before = adapter.seen()["revision"]
    getattr(adapter, kind)({"expected_revision": before, **fields})
    return int(adapter.seen()["revision"] - before)


def running(adapter: Adapter, **more: Any) -> None:
    adapter.given({"revision": 3, "status": "running", "claim_token": "a", "model_journal_state": "started", **more})


def rules() -> dict[str, Callable[[Adapter], Any]]:
    """What each rule says, as a function that finds it out; a rule that compares with the fixture's own word otherwise."""

    def after(kind: str, name: str, **fields: Any) -> Callable[[Adapter], Any]:
        def find(adapter: Adapter) -> Any:
            running(adapter)
            moved(adapter, kind, claim_token="a", **fields)
            return adapter.seen()[name]

        return find

    def step(kind: str, **fields: Any) -> Callable[[Adapter], int]:
        def find(adapter: Adapter) -> int:
            running(adapter)
            return moved(adapter, kind, claim_token="a", **fields)

        return find

    lease = {"now_ms": 150, "lease_expires_at_ms": 400}
    return {
        "create": lambda a: (a.create({"revision": 0}), a.seen()["revision"])[1],
        "claim_increment": lambda a: (a.given({"revision": 5}), moved(a, "claim", **CLAIM))[1],
        "progress_increment": step("progress"),
        "suspend_increment": step("suspend"),
        "cycle_commit_increment": step("commit_cycle"),
        "claimed_finalize_increment": step("finalize_claimed", status="failed"),
        "finalize_increment": lambda a: (a.given({"revision": 5}), moved(a, "finalize", status="failed"))[1],
        "renew_increment": step("renew", **lease),
        "heartbeat_requires_revision": lambda a: (running(a), moved(a, "renew", claim_token="a", **lease))[1] != 0,
        "heartbeat_requires_claim_token": lambda a: refuses(a, "renew", claim_token="another", **lease),
        "progress_preserves_claim": lambda a: after("progress", "claim_token")(a) == "a",
        "claim_modes": lambda a: list(FIXTURE["revision_rules"]["claim_modes"]) if both_modes(a) else None,
        "continue_claim_preserves_resume_attempt": lambda a: attempts(a, "continue") == 0,
        "successful_recovery_claim_increments_resume_attempt": lambda a: attempts(a, "recovery") == 1,
        "failed_recovery_claim_preserves_resume_attempt": lambda a: (
            refuses(a, "claim", **{**CLAIM, "claim_mode": "recovery", "claim_token": "b", "now_ms": 199})
            and a.seen()["resume_attempt"] == 1
        ),
        "claimable_statuses": claimable,
        "successful_claim_sets_status_running": lambda a: (
            (waiting(a), a.claim(CLAIM), a.seen()["status"])[2] == "running"
        ),
        "suspend_preserves_active_journals": lambda a: after("suspend", "model_journal_state")(a) == "started",
        "suspend_clears_claim_without_advancing_cycle": lambda a: (
            after("suspend", "claim_token")(a) is None and a.seen()["cycle_index"] == 0
        ),
        "claimed_finalize_clears_claim_atomically": lambda a: (
            after("finalize_claimed", "claim_token", status="failed")(a) is None
        ),
        "conflicting_event_enqueue_error": lambda a: "event_identity_conflict",  # proven by append_once_digest_conflict
        "run_definition_and_digest_immutable_after_create": definition_stays,
        "operator_abort_finalize_preserves_ambiguous_journal": lambda a: (
            after("finalize_claimed", "model_journal_state", status="failed", terminal_error_code=store_adapter.ABORT)(
                a
            )
            == "started"
        ),
    }


def refuses(adapter: Adapter, kind: str, **fields: Any) -> bool:
    running(adapter)
    before = adapter.seen()
    try:
        moved(adapter, kind, **fields)
    except (Refusal, CheckpointError):
        return adapter.seen() == before
    return False


def attempts(adapter: Adapter, mode: str) -> int:
    """How much a claim of an unclaimed record adds to `resume_attempt`."""
    adapter.given({"revision": 5})
    before = adapter.seen()["resume_attempt"]
    adapter.claim({**CLAIM, "claim_mode": mode})
    return int(adapter.seen()["resume_attempt"] - before)


def both_modes(adapter: Adapter) -> bool:
    assert FIXTURE["revision_rules"]["claim_modes"] == ["continue", "recovery"]
    return attempts(adapter, "recovery") == 1


def waiting(adapter: Adapter) -> None:
    adapter.given({"revision": 6, "status": "reconciliation_required", "tool_journal_state": "ambiguous"})


def claimable(adapter: Adapter) -> list[str]:
    """The statuses of a record that can be claimed."""
    found = []
    for status in ("running", "reconciliation_required", "completed", "failed", "max_cycles"):
        if adapter.store.load(KEY) is not None:
            adapter.clock.now = BASE + 10_000
            adapter.delete({})
        adapter.given({"revision": 6, "status": status})
        try:
            adapter.claim(CLAIM)
        except Refusal:
            continue
        found.append(status)
    return found


def definition_stays(adapter: Adapter) -> bool:
    running(adapter)
    head = adapter.store.load(KEY).head  # type: ignore[union-attr]
    moved(adapter, "commit_cycle", claim_token="a")
    later = adapter.store.load(KEY).head  # type: ignore[union-attr]
    return later.definition == head.definition and adapter.store.definition(head.definition) == b"definition"


@pytest.mark.parametrize("name", list(FIXTURE["revision_rules"]))
def test_a_revision_rule(name: str, adapter: Adapter) -> None:
    if f"revision_rules/{name}" in CASES.differs:
        CASES.show(f"revision_rules/{name}")
        return
    with CASES.run(f"revision_rules/{name}"):
        assert rules()[name](adapter) == FIXTURE["revision_rules"][name]


@pytest.mark.parametrize("name", list(FIXTURE["fault_rules"]))
def test_the_tests_break_runs_in_ways_that_repeat(name: str) -> None:
    source = inspect.getsource(store_adapter) + inspect.getsource(test_checkpoint_resume)
    ours = {
        "deterministic_injector": "store.save.commit" in testing.BOUNDARIES,
        "barrier_tests_for_concurrency": "threading.Barrier" in inspect.getsource(Adapter._race),
        "sigkill_canary": "SIGKILL" in inspect.getsource(test_checkpoint_resume),
        "sleep_only_timing_assertions_forbidden": "sleep" + "(" not in source,
    }
    with CASES.run(f"fault_rules/{name}"):
        assert ours[name] is FIXTURE["fault_rules"][name]


def test_what_differs_on_purpose_is_shown() -> None:
    for name in CASES.differs:
        if not name.startswith(("store_cases/", "operations/", "revision_rules/")):
            CASES.show(name)
