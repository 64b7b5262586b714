"""The contract of distributed runs: what a delivery leads to, as transitions of the record and messages that are sent.

Queue messages are ours and there is no separate finalizer (DESIGN 10), so the adapter reads a decision off the record
and the dispatcher: `dispatch` is a recipe that was sent, `retry_at` a due that stands at the lease's end, `wait` neither,
`finalize_required` an end that the same delivery wrote, `terminal_replay` a stored end that stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.runs import receipt
from tests.unit.workers.test_station import Place, add
from vv_agent.checkpoint.identity import tool_operation_id
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Change, Claimed, NewRun, Park, ParkReason, Progress, State
from vv_agent.llm.base import ModelRequest, Part
from vv_agent.llm.scripted import ScriptedModel
from vv_agent.results import ToolExecutionResult, ToolStatus
from vv_agent.runtime.lease import renewal_interval
from vv_agent.runtime.recipe import CycleRecipe
from vv_agent.runtime.transcript import log_entry, pack, storable
from vv_agent.settings import Settings
from vv_agent.testing import FakeClock, call
from vv_agent.workers.sweeper import Sweeper

DRIVER = load("distributed_run_driver.json")
ENVELOPE = load("distributed_run_envelope.json")
TRANSITIONS = Cases("distributed_run_driver.json")
LEASES = Cases(
    "distributed_run_envelope.json",
    differs={
        **{f"expiry/{case['name']}": "a recipe has no deadline" for case in ENVELOPE["lease_lifecycle"]["expiry_cases"]},
        "worker/initial_renewal_precedes_operation": "the claim itself sets the lease; its answer is the first renewal",
        "worker/initial_renewal_failure_has_no_side_effects": "likewise: a claim that is refused starts nothing",
        **{f"invalid/{n}": "the message is ours" for n in range(len(ENVELOPE["invalid_cases"]))},
        "canonical_envelope": "the message is ours",
        **{
            f"capability/{case['name']}": "a definition names code, not capabilities"
            for case in ENVELOPE["capability_resolution_cases"]
        },
    },
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.station.stop()
    made.station.finish()


TOOL = call("add", {"a": 1, "b": 2})


def deliver(place: Place, recipe: CycleRecipe) -> str:
    """Deliver a recipe once; the decision, by what it left behind."""
    before, sent = place.head(), len(place.broker.sent)
    place.station.carry(recipe)
    after, new = place.head(), place.broker.sent[sent:]
    assert len(new) <= DRIVER["operations"]["advance"]["maximum_envelopes_enqueued"]
    if new:
        return "dispatch"
    if before.state is State.ENDED:
        assert after == before
        return "terminal_replay"
    if after.state is State.ENDED:
        return "finalize_required"
    assert after == before, "a delivery that only waits changes nothing"
    return "retry_at" if after.state is State.CLAIMED and recipe.cycle == after.cycle else "wait"


def claim_for_another(place: Place, recipe: CycleRecipe, owner: str = "elsewhere/1/1") -> Claimed:
    answer = place.store.claim(recipe.key, recipe.cycle, "b" * 32, owner=owner, lease=60_000)
    assert isinstance(answer, Claimed)
    return answer


def start(place: Place) -> str:
    place.start("done")
    return "dispatch" if [r.cycle for r in place.broker.sent] == [1] else "none"


def committed_cycle(place: Place) -> str:
    decision = deliver(place, place.start(TOOL, "three"))
    assert (place.broker.sent[-1].cycle, place.head().attempt) == (2, 1)
    return decision


def live_claim_after_transport_failure(place: Place) -> str:
    recipe = place.start("done")
    claim_for_another(place, recipe)
    decision = deliver(place, recipe)
    assert place.head().due == place.head().lease_until, "the sweeper comes back when the lease is over"
    return decision


def expired_claim(place: Place) -> str:
    recipe = place.start(TOOL, "three")
    claim_for_another(place, recipe)
    place.store.expire("elsewhere/1/1")
    assert Sweeper(place.station).round()
    assert place.broker.sent[-1] == recipe
    decision = deliver(place, recipe)
    assert place.head().attempt == 2, "a recovery"
    return decision


def terminal_candidate(place: Place) -> str:
    return deliver(place, place.start("done"))


def max_cycles_after_commit(place: Place) -> str:
    decision = deliver(place, place.start(TOOL, "never", max_cycles=1))
    assert place.head().status == "max_cycles"
    return decision


def superseded_delivery(place: Place) -> str:
    recipe = place.start(TOOL, "three")
    deliver(place, recipe)
    return deliver(place, recipe)


def terminal_replay(place: Place) -> str:
    recipe = place.start("done")
    deliver(place, recipe)
    return deliver(place, recipe)


def reconciliation(place: Place) -> str:
    recipe = place.start("done")
    claim = claim_for_another(place, recipe).claim
    place.store.save(claim, Change(1, Park(ParkReason.RECONCILIATION), status="reconciliation_required"))
    return deliver(place, recipe)


@pytest.mark.parametrize("case", DRIVER["transition_cases"], ids=lambda case: case["name"])
def test_a_delivery_leads_to_the_decision_of_the_contract(place: Place, case: dict[str, Any]) -> None:
    with TRANSITIONS.run(case["name"]):
        assert globals()[case["name"]](place) == case["decision"]


EXPECTED = {case["name"]: case["expected"] for case in ENVELOPE["redelivery_cases"]}


def left_by_another(place: Place, recipe: CycleRecipe, **change: Any) -> None:
    """What a worker that is gone saved in its claim on the cycle."""
    claim = claim_for_another(place, recipe).claim
    place.store.save(claim, Change(1, Progress(), **change))
    place.store.expire("elsewhere/1/1")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls of models and tools."""
    made: Counter[str] = Counter()
    stream, invoke = ScriptedModel.stream, type(add).invoke

    def counted_stream(self: ScriptedModel, request: ModelRequest) -> Iterator[Part]:
        made["model"] += 1
        return stream(self, request)

    def counted_invoke(self: Any, *args: Any) -> Any:
        made["tool"] += 1
        return invoke(self, *args)

    monkeypatch.setattr(ScriptedModel, "stream", counted_stream)
    monkeypatch.setattr(type(add), "invoke", counted_invoke)
    return made


ASKED = receipt({"content": "", "tool_calls": [{"id": "c1", "name": "add", "arguments": {"a": 1, "b": 2}}]})


def test_a_redelivered_call_whose_outcome_nobody_knows_is_not_made_again(place: Place, calls: Counter[str]) -> None:
    with LEASES.run("redelivery/expired_started_unknown_tool"):
        expected = EXPECTED["expired_started_unknown_tool"]
        recipe = place.start(TOOL, "three")
        started = {tool_operation_id(1, 1): pack({"state": "started", "attempt": 1})}
        left_by_another(place, recipe, log=(log_entry([ASKED]),), journal=started, starts=True)
        place.station.carry(recipe)
        assert place.head().status == expected["status"]
        assert (calls["model"], calls["tool"]) == (expected["model_calls"], expected["tool_calls"])


def test_a_redelivered_cycle_replays_what_is_committed(place: Place, calls: Counter[str]) -> None:
    with LEASES.run("redelivery/committed_receipt"):
        expected = EXPECTED["committed_receipt"]
        recipe = place.start(TOOL, "three")
        done = ToolExecutionResult(tool_call_id="c1", content="3", status_code=ToolStatus.SUCCESS)
        left_by_another(place, recipe, log=(log_entry([ASKED, ["t", 1, 0, storable(done.to_wire())]]),))
        assert deliver(place, recipe) == "dispatch"
        assert calls.total() == expected["external_calls"]
        assert (place.head().cycle == 2) is expected["operation_replayed"]
        place.station.carry(place.broker.sent[-1])
        assert (place.head().state, calls) == (State.ENDED, Counter(model=1))


def test_the_rules_of_the_transport_hold() -> None:
    from vv_agent.workers.celery import make_app

    conf = make_app(Settings(broker="memory://")).conf
    rules = DRIVER["rules"]
    assert conf.task_acks_late is rules["transport_tasks_acknowledge_late"]
    assert conf.task_reject_on_worker_lost is rules["transport_tasks_reject_on_worker_loss"]
    assert conf.result_backend is None
    assert conf.task_ignore_result is rules["celery_async_result_get_forbidden"]


def test_the_lease_rules_hold() -> None:
    lifecycle = ENVELOPE["lease_lifecycle"]
    for lease in lifecycle["interval_lease_ms_cases"]:
        with LEASES.run(f"interval/{lease}"):
            assert 0 < renewal_interval(lease) * 1000 < lease
    with LEASES.run("claim_boundary_case"):
        case = lifecycle["claim_boundary_case"]
        clock = FakeClock(case["claim_now_ms"])
        store = MemoryStore(clock)
        store.create([NewRun(key="k", run_id="r", definition="d" * 64, definition_body=b"d", body=b"b", queue="q")])
        lease = case["lease_expires_at_ms"] - case["claim_now_ms"]
        owned = store.claim("k", 1, "a" * 32, owner="a/1/1", lease=lease)
        assert isinstance(owned, Claimed)
        clock.now = case["boundary_now_ms"]
        assert ("k" not in store.renew([owned.claim], lease=lease).lost) is case["owner_renewed"]
        contender = store.claim("k", 1, "b" * 32, owner="b/1/1", lease=lease)
        assert isinstance(contender, Claimed) is case["contender_reclaimed"]
        assert isinstance(contender, Claimed)
        assert contender.recovered, ENVELOPE["claim_mode_rules"][
            "expired_claim_or_reconciliation_status_is_always_recovery"
        ]


def test_a_cycle_that_fails_stops_its_heartbeat(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with LEASES.run("worker/operation_unwind_stops_heartbeat"):
        recipe = place.start("done")
        monkeypatch.setattr("vv_agent.runtime.advance.run_cycle", _unwind)
        place.station.carry(recipe)
        assert not place.station.engine.keeper._holds
        assert place.head().state is State.CLAIMED, "no commit: its lease runs out"


def _unwind(*args: object) -> None:
    raise RuntimeError("unwound")


def test_every_other_case_is_listed_with_its_reason() -> None:
    for name in LEASES.differs:
        LEASES.show(name)
