"""The public result of a run, read from its record."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from vv_agent import references
from vv_agent.checkpoint.identity import tool_operation_id
from vv_agent.checkpoint.record import Head, Seen, Snapshot
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.definition import RunDefinition
from vv_agent.errors import CheckpointError, ReferenceInvalid
from vv_agent.events import RunEvent
from vv_agent.result import Home, ResolvedModel, RunResult
from vv_agent.results import AgentResult, AgentStatus, ResumeObservation
from vv_agent.runtime.body import Body
from vv_agent.runtime.context import Engine
from vv_agent.runtime.hooks import TYPE_SLOT, load_type
from vv_agent.runtime.output import agent_result
from vv_agent.runtime.program import AGENT
from vv_agent.runtime.transcript import Transcript, unpack
from vv_agent.tracing import Span, span_id, spans


def read_result(engine: Engine, key: str, events: tuple[RunEvent, ...], kind: Any = None) -> RunResult:
    """The public result of a record as it stands. The output of a completed run is a value of `kind`, or of the output
    type its definition names; `output_type_invalid` when it is not one."""
    cached = engine.cache.take(key)
    cached = cached if cached and cached.transcript.whole else None
    snapshot = engine.store.load(key, Seen(cached.entry_n) if cached else None)
    if snapshot is None:
        raise CheckpointError("checkpoint_not_found", f"run {key!r} was deleted")
    head = snapshot.head
    body = Body.unpack(head.body, key)
    if cached and (cached.run_id != head.run_id or head.entry_n < cached.entry_n):
        return read_result(engine, key, events, kind)  # another run took the key; nothing is cached any more
    transcript = cached.transcript if cached else Transcript()
    for entry in snapshot.log:
        transcript.extend(entry.seq, entry.body)
    raw = agent_result(head, body, transcript, unpacked(snapshot))
    if not body.checkpointed:
        raw = raw.model_copy(update={"checkpoint_key": None})
    definition = RunDefinition.decode(engine.store.definition(head.definition))
    if (linked := definition.linked(f"{AGENT}{body.node}")) is not None:  # another agent has taken over
        definition = RunDefinition.decode(engine.store.definition(linked))
    model = _resolved_model(definition)
    metadata = {**definition.run_metadata, "trace_id": body.trace_id, "backend": model.backend}
    metadata["run_span"] = _run_span(head, body, raw, events).to_wire()
    if raw.status is AgentStatus.RECONCILIATION_REQUIRED and raw.resume_observation is not None:
        metadata["waits_for"] = _doubt(key, transcript, raw.resume_observation)
    result = RunResult.of(
        raw, input=transcript.inputs.get(body.segment, ""), run_id=body.run_id, trace_id=body.trace_id,
        agent_name=body.agent, new_items=transcript.new_items(body.segment), events=events,
        metadata={**metadata, "resolved_model": model.model_id}, resolved_model=model, home=home_of(engine.store, key),
    )  # fmt: skip
    if raw.status is not AgentStatus.COMPLETED or definition.output_schema is None:
        return result
    kind = kind or engine.programs.live_type(key, head.definition) or _named_type(engine, definition)
    return result if kind is None else replace(result, final_output=result.final_output_as(kind))


def _named_type(engine: Engine, definition: RunDefinition) -> Any:
    """The output type of a stored definition; None where this process may not load it: then the output is text."""
    ref = definition.capability_refs.get(TYPE_SLOT)
    try:
        return load_type(ref.id if ref else None, lambda name: references.load(name, engine.programs.imports))
    except ReferenceInvalid:
        return None


def _run_span(head: Head, body: Body, raw: AgentResult, events: tuple[RunEvent, ...]) -> Span:
    """The span of the segment; by the times of the record where its events were not seen."""
    own = [event for event in events if event.run_id == body.run_id]
    ends = [event for event in own if event.type in ("run_completed", "run_failed", "run_cancelled")]
    for what, span in spans([*own[:1], *ends], body.workflow_name):
        if what == "end" and span.name == "run":
            return span
    over = {"error": raw.error} if raw.error is not None else {"final_output": raw.final_answer}
    facts = {"run_id": body.run_id, "agent_name": body.agent, "workflow_name": body.workflow_name}
    status = "cancelled" if raw.completion_reason == "cancelled" else raw.status.value
    return Span(
        "run", body.trace_id, span_id("run", body.run_id), None, head.created_at / 1000, head.updated_at / 1000,
        {**facts, "status": status, **over},
    )  # fmt: skip


_HOMES: WeakValueDictionary[tuple[int, str], Home] = WeakValueDictionary()


def home_of(store: CheckpointStore, key: str) -> Home:
    """The one `Home` of a record in this process."""
    home = _HOMES.get((id(store), key))
    if home is None or home.store is not store:
        home = _HOMES[id(store), key] = Home(store, key)
    return home


def unpacked(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    """The blobs of a record that its result is made from."""
    wanted = {name: body for name, body in (snapshot.blobs or {}).items() if name in ("state", "budget", "approvals")}
    return {name: unpack(body, f"{name} of run {snapshot.head.key!r}") for name, body in wanted.items()}


def _doubt(key: str, transcript: Transcript, observation: ResumeObservation) -> str:
    """What a run that parked for a decision waits for, in words."""
    turn = transcript.turns.get(max(transcript.turns, default=0))
    names = {tool_operation_id(turn.cycle, n): call.name for n, call in enumerate(turn.calls, 1)} if turn else {}
    tool = names.get(observation.operation_id)
    what = f"the call of the tool {tool!r}" if tool else f"the {observation.operation_kind} call"
    words = f"{shlex.quote(key)} {observation.operation_id}"
    decide = f"{words} --retry" if not key.startswith("-") else f"--retry -- {words}"
    return (
        f"{what} was started and its outcome is not known; look what became of it, then decide: "
        f"vv-agent runs reconcile {decide} (or --done TEXT, --failed TEXT, --abort TEXT in its place)"
    )


def _resolved_model(definition: RunDefinition) -> ResolvedModel:
    model = definition.model
    return ResolvedModel(model.backend, model.model_id, model.model_id, model.model_id)
