"""After-cycle hooks: asked once the tools of a cycle are done and before it is committed (spec/18, section 4)."""

from __future__ import annotations

import copy
from functools import partial

from pydantic import ValidationError

from vv_agent._json import utf16_order
from vv_agent.hooks import (
    AfterCycleDecision,
    AfterCycleSnapshot,
    NativeCycleOutcome,
    faults_of,
)
from vv_agent.runtime import control, hooks
from vv_agent.runtime.control import HookFailed
from vv_agent.runtime.decide import decide, merged, native_outcome
from vv_agent.runtime.output import Decision, cycle_record, usage_between
from vv_agent.runtime.run import Run
from vv_agent.runtime.tool_context import copied

HOOK_CODE = "after_cycle_hook_failed"
INVALID_CODE = "after_cycle_decision_invalid"


def judged(run: Run, native: Decision) -> Decision:
    """What the cycle comes to; denials are in the shared state then."""
    if not run.program.hooks.after_cycle:
        return native
    remaining = max(0, run.program.controls.max_cycles - run.index)
    outcome = native_outcome(native, remaining=remaining)
    wanted = _asked(run, outcome, remaining)
    if wanted.disallow_tools:
        run.shared_state = control.denying(run.shared_state, wanted.disallow_tools)
    if wanted != AfterCycleDecision():
        run.emit("diagnostic", level="info", code="after_cycle_decision", details={
            "action": wanted.action.value, "messages": len(wanted.steering_messages),
            "disallow_tools": list(wanted.disallow_tools),
        })  # fmt: skip
    return decide(native, wanted, steer_allowed=outcome.steer_allowed)


def _asked(run: Run, outcome: NativeCycleOutcome, remaining: int) -> AfterCycleDecision:
    decisions: list[AfterCycleDecision] = []
    try:
        for hook in run.program.hooks.after_cycle:
            snapshot = _snapshot(run, outcome, remaining)  # one each, so that none sees what another did to it
            name = f"{type(hook).__name__}.after_cycle"
            given = hooks.host_call(run, name, HOOK_CODE, partial(hook.after_cycle, snapshot))
            decisions.append(_read(given))
            if decisions[-1].stop is not None:
                break
        return merged(decisions)
    except ValidationError as error:
        raise HookFailed(INVALID_CODE, f"an after-cycle hook gave what is no decision: {faults_of(error)}") from None


def _read(given: object) -> AfterCycleDecision:
    if given is None:
        return AfterCycleDecision()
    if isinstance(given, AfterCycleDecision):
        return given
    if isinstance(given, dict):
        return AfterCycleDecision.model_validate(given)
    raise HookFailed(
        INVALID_CODE, f"an after-cycle hook gave {type(given).__name__}, not an AfterCycleDecision or None"
    )


def _snapshot(run: Run, outcome: NativeCycleOutcome, remaining: int) -> AfterCycleSnapshot:
    """The cycle as copies."""
    assert run.turn is not None
    turns = [turn for cycle, turn in sorted(run.transcript.turns.items()) if cycle >= run.body.first_cycle]
    denied = {*control.denied(run.shared_state), *run.program.policy.disallowed_tools}
    record = cycle_record(run.turn, run.body.first_cycle, {}, run.cycle in run.transcript.compactions)
    return AfterCycleSnapshot(
        task_id=run.key,
        cycle_index=run.index,
        max_cycles=run.program.controls.max_cycles,
        remaining_cycles=remaining,
        cycle=record.model_copy(deep=True),
        messages=tuple(copy.deepcopy(message) if message.metadata else message for message in run.transcript.messages),
        shared_state=copied(run.shared_state),
        cumulative_token_usage=usage_between(run.body, turns, run.transcript.asides, run.body.first_cycle),
        available_tool_names=tuple(hooks.name_of(schema) for schema in hooks.shown(run)),
        disallowed_tool_names=tuple(sorted(denied, key=utf16_order)),
        native_outcome=outcome,
    )  # fmt: skip
