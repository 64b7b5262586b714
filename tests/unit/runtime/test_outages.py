"""A store that does not answer for a while: what is known is kept, nothing is started twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.runs import KEY, Host, asks
from vv_agent import function_tool
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Change, Claim, Saved, State
from vv_agent.errors import StoreError
from vv_agent.runtime import patience
from vv_agent.tools.base import ToolContext


class Failing(MemoryStore):
    """Verbs named in `down` fail as often as it says."""

    def __init__(self) -> None:
        super().__init__()
        self.down: dict[str, int] = {}

    def _pass(self, verb: str) -> None:
        if self.down.get(verb, 0) > 0:
            self.down[verb] -= 1
            raise StoreError("store_unavailable", "it does not answer")

    def save(self, claim: Claim, change: Change) -> Saved:
        self._pass("save")
        return super().save(claim, change)

    def claim(self, *args: Any, **options: Any) -> Any:
        taken = super().claim(*args, **options)
        self._pass("claim")
        return taken

    def create(self, runs: Any) -> Any:
        made = super().create(runs)
        self._pass("create")
        return made


def test_the_outcome_of_a_call_outlives_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE", 0.0)
    store, calls = Failing(), []

    @function_tool(name="write_record")
    def pay(context: ToolContext) -> str:
        """Pay."""
        calls.append(1)
        store.down["save"] = 5
        return "paid"

    outcome = Host(store, tmp_path, [pay]).run([asks(), "done"])
    assert (outcome.ok.status, len(calls), store.down["save"]) == ("completed", 1, 0)


@pytest.mark.parametrize("verb", ["claim", "create"])
def test_a_verb_whose_answer_was_lost_is_repeated(verb: str, tmp_path: Path) -> None:
    store = Failing()
    store.down[verb] = 2
    outcome = Host(store, tmp_path).run(["done"])
    assert (outcome.ok.status, outcome.model_calls) == ("completed", 1)
    assert not [event for event in outcome.events if event.type == "model_retry_duplicate_risk"]


def test_an_interrupted_run_goes_on_at_once(tmp_path: Path) -> None:
    store = MemoryStore()

    def interrupt(request: Any) -> Any:
        raise KeyboardInterrupt

    host = Host(store, tmp_path, checkpoint={"ambiguous_model_policy": "retry_with_duplicate_risk"})
    with pytest.raises(KeyboardInterrupt):
        host.run([interrupt])
    snapshot = store.load(KEY)
    assert snapshot is not None
    assert snapshot.head.state is State.READY
    assert host.run(["done"]).ok.status == "completed"
