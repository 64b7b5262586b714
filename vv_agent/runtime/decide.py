"""What a complete cycle comes to: the model's own outcome, unless an after-cycle hook wants it otherwise.

The order of what ends a cycle (spec/18): a failure that was raised, a cancel, the budget, a hook's stop, a hook's
steering, the native completed or waiting outcome, the cycle limit, the next cycle. The first three leave the
cycle as exceptions before anything is decided.
"""

from __future__ import annotations

from collections.abc import Sequence

from vv_agent.hooks import AfterCycleAction, AfterCycleDecision, NativeCycleOutcome, NativeCycleOutcomeKind
from vv_agent.messages import Message
from vv_agent.runtime.control import HookFailed
from vv_agent.runtime.output import Decision, GoOn, Stop, failed


def native_outcome(native: Decision, *, remaining: int) -> NativeCycleOutcome:
    """A decision as hooks see it; `remaining` is the number of cycles the segment has left."""
    if isinstance(native, Stop):
        kind = NativeCycleOutcomeKind(native.status.value)
        steers = kind is NativeCycleOutcomeKind.COMPLETED and remaining > 0
        return NativeCycleOutcome(
            kind=kind, completion_reason=native.reason, completion_tool_name=native.tool, steer_allowed=steers
        )
    return NativeCycleOutcome(
        kind=NativeCycleOutcomeKind.CONTINUE, completion_reason=None, completion_tool_name=None, steer_allowed=True
    )


def merged(decisions: Sequence[AfterCycleDecision]) -> AfterCycleDecision:
    """All decisions as one, under the same limits: messages in order, denials together, the last one's stop."""
    stop = decisions[-1].stop if decisions else None
    if stop is not None:
        return AfterCycleDecision(action=AfterCycleAction.STOP_NON_SUCCESS, stop=stop)
    messages = tuple(text for one in decisions for text in one.steering_messages)
    return AfterCycleDecision(
        action=AfterCycleAction.STEER if messages else AfterCycleAction.CONTINUE,
        steering_messages=messages,
        disallow_tools=tuple(dict.fromkeys(name for one in decisions for name in one.disallow_tools)),
    )


def decide(native: Decision, wanted: AfterCycleDecision, *, steer_allowed: bool) -> Decision:
    """The outcome. Raises `after_cycle_steer_unavailable`."""
    if wanted.stop is not None:
        return failed(f"{wanted.stop.code}: {wanted.stop.message}", wanted.stop.code)
    if wanted.action is AfterCycleAction.STEER:
        if not steer_allowed:
            raise HookFailed(
                "after_cycle_steer_unavailable",
                "a hook steers a run that waits for its user or has no cycle left; see native_outcome.steer_allowed",
            )
        return GoOn(tuple(Message("user", text) for text in wanted.steering_messages))
    return native
