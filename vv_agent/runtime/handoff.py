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
from vv_agent.runtime.hooks import host_call
from vv_agent.runtime.opening import InputBlocked, input_for
from vv_agent.runtime.output import Decision, Stop
from vv_agent.runtime.program import Program, tool_slot
from vv_agent.runtime.run import Run
from vv_agent.runtime.tool_context import parsed
from vv_agent.tools.agents import HANDOFF_REF, HandoffTool

_DENIALS = ("denied_side_effects", "denied_capability_tags", "deny_terminal_tools", "denied_cost_dimensions")


def passed_on(run: Run, decision: Decision) -> Decision:
    """The decision with the agent that takes over, if the segment ended with the call of a hand-off."""
    if not isinstance(decision, Stop) or decision.status is not AgentStatus.COMPLETED or decision.tool is None:
        return decision
    if not isinstance(run.program.tools.get(decision.tool), HandoffTool) or not _input(run, decision.answer):
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
    opening = _opening(run, run.agent(end["to"]))  # before a change: it may be one we cannot serve
    _, cycle, position = end["answer"]
    tool, text = run.program.tools[end["tool"]], _input(run, end["answer"])
    assert isinstance(tool, HandoffTool)
    source = run.origin._replace(cycle_index=run.body.index(cycle))
    run.denied = denials(run)
    run.approvals.granted = []  # another agent may have another tool of that name
    segment = run.body.segment + 1
    came_from = {
        **source._asdict(), "cycle": cycle, "position": position, "to": tool.target,
        "call_id": run.transcript.turns[cycle].call(position).id,
    }  # fmt: skip
    run.body = replace(
        run.body, segment=segment, first_cycle=run.cycle, run_id=run.engine.new_id("run"), observation=None,
        node=end["to"], handoffs=run.body.handoffs + 1, came_from=came_from, agent=tool.target,
    )  # fmt: skip
    run.use_agent()
    admitted = input_for(run, run.program, text)
    if isinstance(admitted, InputBlocked):
        run.refused = output.failed(admitted.message, admitted.code)
    else:
        text = admitted
    run.log(["i", segment, Message("user", text).to_wire(), opening])
    refs, fields = _shown(came_from, _said(run, came_from), {})
    run.emit("handoff_started", refs, source, **fields, status="started")
    show_begin(run)
    return True


def completed(run: Run, decision: Stop) -> list[Emitted]:
    """The event that closes the hand-off the segment began with, after its own end."""
    came_from = run.body.came_from
    if came_from is None:
        return []
    source = run.origin._replace(**{name: came_from[name] for name in ("run_id", "agent", "cycle_index")})
    more: dict[str, Any] = {"chain_continues": decision.to is not None}
    if decision.error is not None:
        more["error"] = decision.error
    refs, fields = _shown(came_from, _said(run, came_from), more)
    ended = {"status": decision.status.value, "child_run_id": run.body.run_id}
    return [run.number("handoff_completed", refs, source, **fields, **ended)]


def denials(run: Run) -> dict[str, Any]:
    """What the policy of the agent that works now denies, for whoever comes after it."""
    policy = run.program.policy
    values = {name: getattr(policy, name) for name in _DENIALS}
    kept = {name: [*map(str, value)] if not isinstance(value, bool) else value for name, value in values.items()}
    return {name: value for name, value in kept.items() if value}


def _input(run: Run, answer: Any) -> str:
    """The input that a call gives to the agent that takes over, whatever a hook made of its result; "" for none."""
    _, cycle, position = answer
    text = parsed(run.transcript.turns[cycle].call(position)).get("input")
    return text if isinstance(text, str) and text.strip() else ""


def _said(run: Run, came_from: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the result of the call says of the hand-off."""
    turn = run.transcript.turns.get(came_from["cycle"])  # a reset of the log may have left it behind
    return turn.results[came_from["position"]].get("metadata") or {} if turn is not None else {"mode": "handoff"}


def _opening(run: Run, program: Program) -> list[dict[str, Any]]:
    """What the agent is shown before its input: its prompt, and the run's session."""
    prompt = program.definition.compiled_prompt
    session = program.conversation
    before: list[Message] = []
    if session is not None:
        before = (
            host_call(run, "get_items of the session", "session_load_failed", session.get_items, read=sanitized) or []
        )
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
