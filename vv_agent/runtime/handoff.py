"""Hand-offs: a segment that ends with the call of one is followed by a segment of another agent, in the same record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vv_agent.history import sanitized
from vv_agent.messages import Message
from vv_agent.results import AgentStatus
from vv_agent.runtime import output
from vv_agent.runtime.children import show_begin
from vv_agent.runtime.eventlog import Emitted
from vv_agent.runtime.hooks import context_of
from vv_agent.runtime.opening import InputBlocked, admitted_input
from vv_agent.runtime.output import Decision, Stop
from vv_agent.runtime.program import AGENT, Program, tool_slot
from vv_agent.runtime.run import Run
from vv_agent.tools.agents import HANDOFF_REF, HandoffTool

_DENIALS = ("denied_side_effects", "denied_capability_tags", "deny_terminal_tools", "denied_cost_dimensions")


def passed_on(run: Run, decision: Decision) -> Decision:
    """The decision with the agent that takes over, if the segment ended with the call of a hand-off."""
    if not isinstance(decision, Stop) or decision.status is not AgentStatus.COMPLETED or decision.tool is None:
        return decision
    if not isinstance(run.program.tools.get(decision.tool), HandoffTool):
        return decision
    definition = run.program.definition
    if run.body.handoffs >= run.first.definition.runtime_controls.max_handoffs:
        return output.failed("maximum handoff depth exceeded", "max_handoffs_exceeded")
    place = next(n for n, tool in enumerate(definition.tools) if tool.tool_schema.function.name == decision.tool)
    ref = definition.capability_refs[tool_slot(place)]
    return replace(decision, to=int(ref.id.removeprefix(HANDOFF_REF)))


def take_over(run: Run) -> bool:
    """Begin the segment of the agent that the last one was handed to; False when it was handed to nobody."""
    end = run.transcript.ends.get(run.body.segment)
    if end is None or "to" not in end:
        return False
    opening = _opening(run.first.linked(f"{AGENT}{end['to']}"))  # before a change: it may be one we cannot serve
    _, cycle, position = end["answer"]
    said = run.transcript.turns[cycle].results[position]["metadata"]
    source = run.origin._replace(cycle_index=run.body.index(cycle))
    run.denied = denials(run)
    segment = run.body.segment + 1
    came_from = {
        **source._asdict(), "cycle": cycle, "position": position, "to": said["handoff_to"],
        "call_id": run.transcript.turns[cycle].call(position).id,
    }  # fmt: skip
    run.body = replace(
        run.body, segment=segment, first_cycle=run.cycle, run_id=run.engine.new_id("run"), observation=None,
        node=end["to"], handoffs=run.body.handoffs + 1, came_from=came_from, agent=said["handoff_to"],
    )  # fmt: skip
    run.use_agent()
    text = said["handoff_input"]
    try:
        text = admitted_input(run.program.hooks.input_guardrails, context_of(run), text, lambda: None)
    except InputBlocked as block:
        run.refused = output.failed(block.message, block.code)
    run.log(["i", segment, Message("user", text).to_wire(), opening])
    refs, fields = _shown(came_from, said, {})
    run.emit("handoff_started", refs, source, **fields, status="started")
    show_begin(run)
    return True


def completed(run: Run, decision: Stop) -> list[Emitted]:
    """The event that closes the hand-off the segment began with, after its own end."""
    came_from = run.body.came_from
    if came_from is None:
        return []
    source = run.origin._replace(**{name: came_from[name] for name in ("run_id", "agent", "cycle_index")})
    turn = run.transcript.turns.get(came_from["cycle"])  # a reset of the log may have left it behind
    said = turn.results[came_from["position"]]["metadata"] if turn is not None else {"mode": "handoff"}
    more: dict[str, Any] = {"chain_continues": decision.to is not None}
    if decision.error is not None:
        more["error"] = decision.error
    refs, fields = _shown(came_from, said, more)
    ended = {"status": decision.status.value, "child_run_id": run.body.run_id}
    return [run.number("handoff_completed", refs, source, **fields, **ended)]


def denials(run: Run) -> dict[str, Any]:
    """What the policy of the agent that works now denies, for whoever comes after it."""
    policy = run.program.policy
    values = {name: getattr(policy, name) for name in _DENIALS}
    kept = {name: [*map(str, value)] if not isinstance(value, bool) else value for name, value in values.items()}
    return {name: value for name, value in kept.items() if value}


def _opening(program: Program) -> list[dict[str, Any]]:
    """What the agent is shown before its input: its prompt, and the run's session."""
    prompt = program.definition.compiled_prompt
    session = program.conversation
    before = sanitized(session.get_items()) if session is not None else []
    return [message.to_wire() for message in [*([Message("system", prompt)] if prompt else []), *before]]


def _shown(
    came_from: Mapping[str, Any], said: Mapping[str, Any], more: Mapping[str, Any]
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """References and fields of an event about a hand-off: what its call said stands in the log."""
    refs = {"metadata": ["handoff", came_from["cycle"], came_from["position"], more]}
    return refs, {
        "source_agent": came_from["agent"], "target_agent": came_from["to"], "tool_call_id": came_from["call_id"],
        "metadata": {**said, **more},
    }  # fmt: skip
