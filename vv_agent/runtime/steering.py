"""What is said to a run while it works: a steer enters before the next model call, a follow-up begins the next segment
once the run would have ended.

Both come as signals from any process, and the program's own `interruption_messages` count as steers. What was heard and
cannot act yet is kept in the record. A steer skips the calls of the batch that were not begun, and a completed end goes
on instead. A run that waits for its user or for other limits keeps what was said until it goes on; any other end drops
it with a diagnostic.
"""

from __future__ import annotations

from vv_agent.messages import Message
from vv_agent.results import AgentStatus
from vv_agent.runtime import approval, journal
from vv_agent.runtime.control import HookFailed
from vv_agent.runtime.hooks import host_call
from vv_agent.runtime.output import Decision, GoOn, Stop
from vv_agent.runtime.run import Run
from vv_agent.runtime.transcript import message_item
from vv_agent.runtime.waiting import refreshed

SKIPPED = "skipped_due_to_steering"
SKIPPED_TEXT = "Tool skipped due to queued steering message."


def steered(run: Run) -> bool:
    """Whether a steer waits for the next model call. Reads what came meanwhile."""
    _hear(run)
    ask = run.program.interruption_messages
    if ask is not None:
        code = "interruption_messages_failed"
        try:
            run.words.steers += host_call(
                run, "interruption_messages", code, lambda: [message.to_wire() for message in ask()]
            )
        except HookFailed as error:
            run.emit("diagnostic", level="warning", code=code, details={"error": str(error.__cause__)})
    return bool(run.words.steers)


def skips(run: Run, position: int) -> bool:
    """Whether a steer takes the place of a call: one that nobody was asked about and that was not begun."""
    if not steered(run):
        return False
    return not approval.was_asked(run, position) and journal.operation_id(run, position) not in run.journal


def enter(run: Run) -> None:
    """The steers become messages of the user, which are saved with what the model answers."""
    if not steered(run):
        return
    for wire in run.words.steers:
        run.log(message_item(run.cycle, Message.from_wire(wire)))
    run.emit("diagnostic", level="info", code="run_steered", details={"messages": len(run.words.steers)})
    run.words.steers = []


def redirected(run: Run, decision: Decision) -> Decision:
    """The decision after what was said: a completed end goes on for a steer. In the last cycle of the segment there is
    no room for it, so it begins the next one."""
    if isinstance(decision, GoOn) or run.body.segment in run.transcript.candidates:
        return decision
    _hear(run)
    if decision.to is not None:  # the agent that takes over is told
        return decision
    if decision.status is AgentStatus.COMPLETED and run.words.steers:
        if run.index < run.program.controls.max_cycles:
            return GoOn()
        run.words.follow_ups[:0], run.words.steers = run.words.steers, []
    return decision


def continues(run: Run, decision: Stop) -> bool:
    """Whether the segment that ends is followed by another one, of another agent or for a follow-up."""
    return decision.to is not None or (decision.status is AgentStatus.COMPLETED and bool(run.words.follow_ups))


def drop(run: Run) -> None:
    """The run ends otherwise than completed: what was said comes too late."""
    for kind, messages in run.words.stored().items():
        run.emit("diagnostic", level="warning", code="words_dropped", details={"kind": kind, "messages": len(messages)})
    run.words.steers, run.words.follow_ups = [], []


def next_input(run: Run) -> Message | None:
    """The follow-up that begins the next segment, after one that completed."""
    end = run.transcript.ends.get(run.body.segment)
    if end is None or end["status"] != AgentStatus.COMPLETED or not run.words.follow_ups:
        return None
    first, *run.words.follow_ups = run.words.follow_ups
    return Message.from_wire(first)


def _hear(run: Run) -> None:
    if run.hold.signalled:
        refreshed(run)
    if run.inbox.hears:
        run.inbox.give_words(run.words)
