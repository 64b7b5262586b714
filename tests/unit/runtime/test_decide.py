"""What a complete cycle comes to, as a table."""

from __future__ import annotations

import pytest

from vv_agent import AfterCycleDecision
from vv_agent.messages import Message
from vv_agent.results import MAX_CYCLES_ANSWER, AgentStatus, CompletionReason
from vv_agent.runtime.control import HookFailed
from vv_agent.runtime.decide import decide, merged, native_outcome
from vv_agent.runtime.output import Decision, GoOn, Stop

DONE = Stop(AgentStatus.COMPLETED, CompletionReason.TOOL_FINISH, "task_finish", ("result", 1, 0))
WAITS = Stop(AgentStatus.WAIT_USER, CompletionReason.WAIT_USER)
LIMIT = Stop(AgentStatus.MAX_CYCLES, CompletionReason.MAX_CYCLES, answer=MAX_CYCLES_ANSWER)
NEXT = GoOn((Message("user", "hint"),))
STEER, STOP = AfterCycleDecision.steer("do more"), AfterCycleDecision.stop_non_success("a.b", "no")
MORE = GoOn((Message("user", "do more"),))


@pytest.mark.parametrize(
    ("native", "remaining", "steered"),
    [(DONE, 1, MORE), (DONE, 0, None), (WAITS, 1, None), (LIMIT, 0, None), (NEXT, 1, MORE)],
    ids=["completed", "completed at the limit", "waits", "limit", "continues"],
)
def test_a_stop_comes_before_steering_and_steering_before_the_native_outcome(
    native: Decision, remaining: int, steered: Decision | None
) -> None:
    allowed = native_outcome(native, remaining=remaining).steer_allowed
    assert decide(native, AfterCycleDecision(), steer_allowed=allowed) is native
    stopped = decide(native, merged([STEER, STOP]), steer_allowed=allowed)
    assert isinstance(stopped, Stop)
    assert (stopped.status, stopped.error, stopped.error_code) == ("failed", "a.b: no", "a.b")
    assert allowed is (steered is not None)
    if steered is None:
        with pytest.raises(HookFailed, match="after_cycle_steer_unavailable"):
            decide(native, STEER, steer_allowed=allowed)
    else:
        assert decide(native, STEER, steer_allowed=allowed) == steered


def test_decisions_add_up() -> None:
    one = AfterCycleDecision.steer("a", disallow_tools=["x", "y"])
    two = AfterCycleDecision.go_on(disallow_tools=["y", "z"])
    three = AfterCycleDecision.steer("b")
    both = merged([one, two, three])
    assert (both.action, both.steering_messages, both.disallow_tools) == ("steer", ("a", "b"), ("x", "y", "z"))
    assert merged([]) == AfterCycleDecision()
