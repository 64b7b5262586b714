"""A process whose renewals came too late goes on with the run once its old claim has ended by itself."""

from __future__ import annotations

from vv_agent import Agent, CheckpointConfig, NoToolPolicy, RunConfig, Runner
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Change, Claim, Look, Saved
from vv_agent.errors import ClaimLost
from vv_agent.testing import FakeClock, ScriptedProvider


class SlowStore(MemoryStore):
    """Its first save comes after the local end of the claim; each later look finds the clock four seconds on."""

    def __init__(self) -> None:
        self.time = FakeClock()
        self.late = True
        self.looks = 0
        super().__init__(clock=self.time)

    def save(self, claim: Claim, change: Change) -> Saved:
        if self.late:
            self.late = False
            raise ClaimLost("too late")
        return super().save(claim, change)

    def look(self, key: str) -> Look | None:
        if not self.late:
            self.looks += 1
            self.time.advance(4_000)
        return super().look(key)


def test_an_inline_run_waits_for_the_end_of_its_own_lost_claim() -> None:
    store = SlowStore()
    agent = Agent(name="a", instructions="Answer.", no_tool_policy=NoToolPolicy.FINISH)
    config = RunConfig(checkpoint_config=CheckpointConfig(key="mine", store=store))
    result = Runner(model_provider=ScriptedProvider(["Hello."])).run_sync(agent, "Hi", run_config=config)
    assert (result.status, result.final_output) == ("completed", "Hello.")
    assert store.looks > 2, "the claim was waited for, not broken"
