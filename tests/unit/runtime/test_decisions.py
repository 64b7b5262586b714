"""Signals that people post: a decision counts once and for its attempt, nothing unreadable hides what is behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.runs import KEY, TOOL, Host, asks
from vv_agent import ConfigError, ReconciliationDecision, Runner, ToolContext, function_tool
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Signal, State
from vv_agent.errors import CheckpointError
from vv_agent.results import ResumeObservation
from vv_agent.runtime.inbox import answer_signal, cancel_signal, reconcile_signal
from vv_agent.runtime.transcript import pack

RETRY = {"kind": "retry"}


class Failing:
    """An unsafe tool whose outcome is never known."""

    def __init__(self) -> None:
        self.calls = 0

        @function_tool(name="write_record")
        def write_record(context: ToolContext) -> str:
            """Write a record."""
            self.calls += 1
            raise OSError("connection lost")

        self.tool = write_record


def parked(folder: Path, **options: Any) -> tuple[Host, Failing]:
    failing = Failing()
    host = Host(MemoryStore(), folder, [failing.tool], **options)
    result = host.run([asks()]).ok
    assert result.status == "reconciliation_required"
    assert "'write_record' was started and its outcome is not known" in result.metadata["waits_for"]
    assert f"vv-agent runs reconcile {KEY} {TOOL} --retry" in result.metadata["waits_for"]
    return host, failing


def test_a_decision_counts_once(tmp_path: Path) -> None:
    host, failing = parked(tmp_path)
    host.store.post(KEY, reconcile_signal("d1", TOOL, RETRY))
    assert host.run([]).ok.status == "reconciliation_required"
    assert failing.calls == 2


def test_a_decision_about_an_earlier_attempt_is_ignored(tmp_path: Path) -> None:
    host, failing = parked(tmp_path)
    host.store.post(KEY, reconcile_signal("d1", TOOL, RETRY, 1))
    host.run([])
    host.store.post(KEY, reconcile_signal("late", TOOL, RETRY, 1))
    outcome = host.run([])
    assert (outcome.ok.status, failing.calls) == ("reconciliation_required", 2)
    assert [event.code for event in outcome.events if event.type == "diagnostic"] == ["signal_ignored"]


def test_a_provider_cannot_repeat_an_effect_for_ever(tmp_path: Path) -> None:
    class Stubborn:
        def reconcile(self, observation: ResumeObservation) -> ReconciliationDecision:
            return ReconciliationDecision.retry()

    failing = Failing()
    host = Host(MemoryStore(), tmp_path, [failing.tool])
    outcome = host.run([asks()], reconciliation_provider=Stubborn())
    assert (outcome.ok.status, failing.calls) == ("reconciliation_required", 3)


def test_a_decision_for_the_other_kind_of_operation_parks_again(tmp_path: Path) -> None:
    host, failing = parked(tmp_path)
    host.store.post(KEY, reconcile_signal("d", TOOL, {"kind": "replay_success", "response": {"content": "x"}}))
    assert (host.run([]).ok.status, failing.calls) == ("reconciliation_required", 1)


def test_a_decision_is_checked_where_it_is_made() -> None:
    with pytest.raises(CheckpointError, match="decision"):
        reconcile_signal("d", TOOL, {"kind": "guess"})


@pytest.mark.parametrize(
    "body", [b"", b"rubbish", pack([1]), pack({"operation_id": TOOL, "decision": 3}), pack({"operation_id": TOOL})]
)
def test_an_unreadable_signal_hides_no_cancel(body: bytes, tmp_path: Path) -> None:
    host, _ = parked(tmp_path)
    host.store.post(KEY, Signal("broken", "reconcile", body))
    host.store.post(KEY, Signal("void", "cancel", b"rubbish"))
    host.store.post(KEY, cancel_signal("c", "enough"))
    outcome = host.run([])
    assert (outcome.ok.status, outcome.ok.completion_reason) == ("failed", "cancelled")
    assert outcome.event("run_cancelled").reason == "enough"


def test_a_signal_of_a_newer_version_gives_the_run_back(tmp_path: Path) -> None:
    host, _ = parked(tmp_path)
    host.store.post(KEY, Signal("s", "turn", pack({"text": "left"})))
    host.run([])
    snapshot = host.store.load(KEY)
    assert snapshot is not None
    assert snapshot.head.state is State.READY, "nobody waits for a lease"
    assert (snapshot.head.recoveries, [signal.kind for signal in snapshot.signals]) == (0, ["turn"])
    assert "turn" in (snapshot.head.refusal or "")
    host.store.post(KEY, reconcile_signal("d", TOOL, RETRY))
    host.run([])
    snapshot = host.store.load(KEY)
    assert snapshot is not None
    assert [signal.kind for signal in snapshot.signals] == ["turn", "reconcile"], "a decision waits for who acts on it"
    host.store.post(KEY, cancel_signal("c"))
    assert host.run([]).ok.completion_reason == "cancelled", "a cancel is understood all the same"


def test_an_answer_counts_once_and_may_be_repeated(tmp_path: Path) -> None:
    store = MemoryStore()
    host = Host(store, tmp_path, config={"no_tool_policy": "wait_user"})
    assert host.run(["Delete it?"]).ok.status == "wait_user"
    head = store.load(KEY).head  # type: ignore[union-attr]
    store.post(KEY, answer_signal(f"answer_{head.revision}", "Yes."))
    with pytest.raises(ConfigError) as caught:
        Runner().resume(KEY, input="No, keep it.", store=store)
    assert caught.value.code == "already_decided"
