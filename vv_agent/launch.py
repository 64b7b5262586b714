"""How a run enters the store, or is found there: the record of a new one, and the rules for one that exists."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vv_agent.approvals import ApprovalDecision
from vv_agent.budget import RunBudgetLimits
from vv_agent.checkpoint.admission import Admission, admit
from vv_agent.checkpoint.config import ResumePolicy
from vv_agent.checkpoint.record import UNFINISHED, Filter, Head, NewRun, ParkReason, Signal, State
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.definition import RunDefinition
from vv_agent.dispatch.base import CycleDispatcher, hint
from vv_agent.errors import CheckpointError, ConfigError
from vv_agent.events import ApprovalResolvedEvent, RunEvent
from vv_agent.messages import Message
from vv_agent.runtime import eventlog, extensions, journal, recording
from vv_agent.runtime.approval import Approvals, asks
from vv_agent.runtime.body import Body
from vv_agent.runtime.context import Engine
from vv_agent.runtime.inbox import answer_signal, approval_signal, resume_signal
from vv_agent.runtime.patience import patiently
from vv_agent.runtime.program import Program, check_compatible
from vv_agent.runtime.recipe import CycleRecipe
from vv_agent.runtime.tail import is_over, rests
from vv_agent.runtime.transcript import Transcript, log_entry, message_item, pack, unpack


@dataclass
class Admitted:
    """A record that this call may carry on, and its program."""

    key: str
    run_id: str
    body: Body
    program: Program
    recipe: CycleRecipe
    existed: bool
    rests: bool
    """It ended, or waits for somebody: there is a result already."""
    shown: tuple[RunEvent, ...]
    """The events of its creation, when this call created it."""
    waits: bool = False
    """It waits inside its segment, perhaps in another caller's hands."""


def new_run(key: str, body: Body, engine: Engine, program: Program, queue: str | None, *, hold: int) -> NewRun:
    """The record of a new run: the system prompt, what came before, and the input."""
    definition, opening = program.definition, program.opening
    assert opening is not None
    items: list[Sequence[Any]] = []
    if definition.compiled_prompt:
        system = Message("system", definition.compiled_prompt, metadata=opening.prompt_facts)
        items.append(message_item(0, system))
    items += [message_item(0, message) for message in definition.messages()]
    items.append(["i", 0, Message("user", definition.root_input).to_wire()])
    blobs = {
        "state": {**definition.initial_shared_state, **opening.state},
        "extensions": extensions.taken(program),
    }
    events = eventlog.event_entries(_first_events(body, key, engine, opening.notices))
    return NewRun(
        key=key, run_id=body.run_id, definition=definition.digest, definition_body=definition.encode(),
        linked={digest: one.definition.encode() for digest, one in program.closure.items() if one is not program},
        body=body.pack(), queue=queue, due_in=hold, log=(log_entry(items),), events=events,
        blobs={name: pack(dict(value)) for name, value in blobs.items() if value},
    )  # fmt: skip


def _first_events(body: Body, key: str, engine: Engine, notices: Sequence[Mapping[str, Any]]) -> list[eventlog.Emitted]:
    events: list[tuple[str, Mapping[str, Any], eventlog.Refs]] = [
        ("run_started", {}, {"input": ("input", 0)}), ("agent_started", {}, {}),
    ]  # fmt: skip
    if body.checkpointed:
        events.append(("checkpoint_created", {"cycle_index": 0, "checkpoint_key": key, "resume_attempt": 1}, {}))
    events += [("diagnostic", notice, {}) for notice in notices]
    return eventlog.first_events(body, engine.clock(), events)


def admit_run(engine: Engine, program: Program, new: NewRun, policy: ResumePolicy) -> Admitted:
    """Create the record, or find the one that is there, by the table of spec/10."""
    store = engine.store
    body = Body.unpack(new.body, new.key)
    if policy is not ResumePolicy.NEW and (found := store.look(new.key)) is not None:
        return _readmit(engine, program, found.head, policy)
    admit(policy, new.key, present=False)
    try:
        (head,) = patiently(lambda: store.create([new]))
    except CheckpointError as error:
        lost_race = error.code == "checkpoint_already_exists" and policy is ResumePolicy.RESUME_IF_PRESENT
        found = store.look(new.key) if lost_race else None
        if found is None:
            raise
        return _readmit(engine, program, found.head, policy)
    reader = eventlog.EventReader(body)
    reader.transcript.extend(1, new.log[0])
    shown = tuple(numbered.event for numbered in reader.decode(new.events[0]))
    recipe = CycleRecipe.of(head, store.id)
    return Admitted(new.key, new.run_id, body, program, recipe, existed=False, rests=False, shown=shown)


def _readmit(engine: Engine, program: Program, head: Head, policy: ResumePolicy) -> Admitted:
    over = is_over(head)
    stored = program if over else _stored_program(engine.store, head.definition, program)
    replayed = head.state is State.ENDED or (over and _is_of(engine.store, head, program))
    same = stored is not None and (replayed or not over)
    admission = admit(policy, head.key, present=True, terminal=replayed, same_definition=same)
    if admission is Admission.RECOVER:
        check_journal(engine.store, head.key)
    if admission is Admission.RECOVER and rests(head):
        engine.store.post(head.key, resume_signal(f"resume_{secrets.token_hex(8)}"))
    body = Body.unpack(head.body, head.key)
    recipe = CycleRecipe.of(head, engine.store.id)
    return Admitted(
        head.key,
        head.run_id,
        body,
        stored or program,
        recipe,
        existed=True,
        rests=over,
        shown=(),
        waits=head.state is State.PARKED,
    )


def _is_of(store: CheckpointStore, head: Head, program: Program) -> bool:
    """Whether a run that waits is of this agent and input. What it is carried out with may be another by now: it is
    only shown."""
    stored = RunDefinition.decode(store.definition(head.definition))
    mine = program.definition
    return (stored.agent, stored.root_input) == (mine.agent, mine.root_input)


def check_journal(store: CheckpointStore, key: str) -> None:
    """Before anything is claimed: what the journal holds belongs to the run as it is stored."""
    snapshot = store.load(key)
    if snapshot is None or not snapshot.journal:
        return
    transcript = Transcript()
    for entry in snapshot.log:
        transcript.extend(entry.seq, entry.body)
    entries = {name: unpack(body, f"journal entry {name}") for name, body in snapshot.journal.items()}
    journal.check_integrity(key, transcript, snapshot.head.cycle, entries)


def _stored_program(store: CheckpointStore, digest: str, program: Program) -> Program | None:
    """The program under the definition of that digest; None when it describes another run.

    An edited tool description is no difference: the model goes on seeing the stored one (DESIGN 5.5). Nor is a prompt
    that each start makes anew, nor another event store, which then gets the rest.
    """
    if digest == program.definition.digest:
        return program
    stored = RunDefinition.decode(store.definition(digest))
    mine = {tool.tool_schema.function.name for tool in program.definition.tools}
    if mine != {tool.tool_schema.function.name for tool in stored.tools}:
        return None
    try:
        for tool in stored.tools:
            check_compatible(program.tools[tool.tool_schema.function.name], tool)
    except ConfigError:
        return None
    links: dict[str, Program] = {}
    for slot, link in program.links.items():
        below = stored.linked(slot)
        linked = below and _stored_program(store, below, link)
        if not linked:
            return None
        links[slot] = linked
    wire = stored.to_wire()
    refs = {slot: wire["capability_refs"][slot] for slot in links}
    edited = {**program.definition.to_wire(), "tools": wire["tools"]}
    edited["capability_refs"] = {**edited["capability_refs"], **refs}
    if program.opening is not None and program.opening.accepts(stored.compiled_prompt):
        edited["compiled_prompt"] = stored.compiled_prompt
    edited["capability_refs"] = recording.with_store_of(edited["capability_refs"], stored.to_wire()["capability_refs"])
    if program.session is not None:  # its items are others by now
        edited["initial_messages"] = wire["initial_messages"]
    if RunDefinition.parse(edited).digest != digest:
        return None
    return replace(program, definition=stored, links=links)


def existing(store: CheckpointStore, key: str) -> Head:
    """The record of that key; `checkpoint_not_found` when there is none."""
    look = store.look(key)
    if look is None:
        raise CheckpointError(
            "checkpoint_not_found", f"there is no run {key!r} in {store.url}; check the key and VV_AGENT_STORE"
        )
    return look.head


def definition_at(store: CheckpointStore, key: str, path: tuple[str, ...] = ()) -> RunDefinition | None:
    """The definition of the run of that key, or of the agent that is linked to it by these slots, if there is one."""
    look = store.look(key)
    found = RunDefinition.decode(store.definition(look.head.definition)) if look else None
    for slot in path:
        digest = found and found.linked(slot)
        found = RunDefinition.decode(store.definition(digest)) if digest else None
    return found


def decide(store: CheckpointStore, dispatcher: CycleDispatcher, key: str, signal: Signal) -> None:
    """Post a word on an approval of this very record. Raises `already_decided` when another one came first, and
    `run_finished`."""
    posted = store.post(key, signal)
    if posted.signal.body != signal.body:
        name = posted.signal.id
        raise ConfigError("already_decided", f"approval {name} of run {key!r} was decided already, with another word")
    hint(dispatcher, posted.head, store.id)


def decide_approval(
    store: CheckpointStore, dispatcher: CycleDispatcher, key: str, request_id: str, decision: ApprovalDecision
) -> bool:
    """Decide on what a run asks for, or asked for: of a request that is over, the same word is accepted again and
    changes nothing (False). Raises `unknown_approval_request`, `already_decided`."""
    if request_id not in open_approvals(store, key) and (said := resolved_approval(store, key, request_id)) is not None:
        if said == decision.action:
            return False
        word = {"deny": "denied", "timeout": "timed out"}.get(said, "allowed")
        raise ConfigError("already_decided", f"approval {request_id} of run {key!r} was {word} already ({said})")
    asking, digest = shown_to(store, key, request_id)
    decide(store, dispatcher, asking, approval_signal(request_id, decision, digest))
    return True


def resolved_approval(store: CheckpointStore, key: str, request_id: str) -> str | None:
    """What was decided about a request that is not open any more, by the events of the run and of those below it."""
    for head in (existing(store, key), *store.find(Filter(root_key=key, limit=10_000))):
        reader, after = eventlog.EventReader(Body.unpack(head.body, head.key)), 0
        while entries := store.entries(head.key, after):
            after = entries[-1].seq
            for numbered in (numbered for entry in entries for numbered in reader.feed(entry)):
                event = numbered.event
                if isinstance(event, ApprovalResolvedEvent) and event.request_id == request_id:
                    return event.action
    return None


def shown_to(store: CheckpointStore, key: str, request_id: str) -> tuple[str, str]:
    """The record that waits for an approval, and the digest of the arguments it shows; `unknown_approval_request` when
    there is none."""
    asked = open_approvals(store, key).get(request_id)
    if asked is None:
        raise ConfigError(
            "unknown_approval_request", f"unknown approval request: {request_id}; run {key!r} does not wait for it"
        )
    return asked["key"], str(asked["digest"])


def open_approvals(store: CheckpointStore, key: str) -> dict[str, dict[str, Any]]:
    """The approvals that a run and those below it wait for, by request id; `key` says which of them does."""
    found: dict[str, dict[str, Any]] = {}
    for one in {key, *(head.key for head in store.find(Filter(root_key=key, states=UNFINISHED, limit=10_000)))}:
        snapshot = store.load(one)
        stored = (snapshot.blobs or {}).get("approvals") if snapshot else None
        asked = Approvals(unpack(stored, f"approvals of run {one!r}")).open() if stored else {}
        found |= {name: {**request, "key": one} for name, request in asked.items()}
    return found


def asking_record(store: CheckpointStore, key: str, name: str, digest: str) -> str | None:
    """The key of the record of this run's tree that asks for this approval, also when the request is not saved yet."""
    tree = store.find(Filter(root_key=key, states=UNFINISHED, limit=10_000))
    return next((head.key for head in (existing(store, key), *tree) if asks(head, name, digest)), None)


def limits_of(store: CheckpointStore, head: Head) -> RunBudgetLimits:
    """The limits that hold for a run; `budget_not_limited` for one without."""
    snapshot = store.load(head.key)
    raised = snapshot and (snapshot.blobs or {}).get("budget")
    kept = unpack(raised, f"budget of run {head.key!r}") if raised else {}
    wire = kept.get("limits") or RunDefinition.decode(store.definition(head.definition)).to_wire()["budget_limits"]
    if wire is None:
        raise ConfigError(
            "budget_not_limited", f"run {head.key!r} was started without limits, so there is nothing to raise"
        )
    return RunBudgetLimits.from_wire(wire)


def raised(store: CheckpointStore, head: Head, limits: RunBudgetLimits) -> RunBudgetLimits:
    """The limits, if they are other ones than those that hold, and give a run that has used up its budget more of
    something; otherwise `budget_limits_invalid`. Also `budget_not_limited`."""
    held = limits_of(store, head)
    stopped = head.state is State.PARKED and head.reason is ParkReason.BUDGET
    if limits == held or (stopped and not limits.exceed(held)):
        what = "are those that hold already" if limits == held else "give it no more of anything"
        now = ", ".join(
            f"{name}={value}" for name, value in held.to_wire().items() if value not in (None, {}) and name in _AMOUNTS
        )
        raise ConfigError(
            "budget_limits_invalid",
            f"these limits of run {head.key!r} {what}; a limit it has ({now}) must be higher, or be left out",
        )
    return limits


_AMOUNTS = frozenset(name for name in RunBudgetLimits.model_fields if name.startswith("max_"))


def wake(store: CheckpointStore, dispatcher: CycleDispatcher, head: Head, text: str | None) -> None:
    """Post what makes a resting run go on."""
    waits = head.reason is ParkReason.INPUT and head.state in (State.PARKED, State.READY)
    if text is not None:
        if not waits:
            raise ConfigError("run_not_waiting", f"run {head.key!r} is {head.status}, it waits for no input")
        answer = answer_signal(f"answer_{head.revision}", text)
        posted = store.post(head.key, answer)
        if posted.signal.body != answer.body:
            raise ConfigError("already_decided", f"run {head.key!r} was answered already, with another text")
        hint(dispatcher, posted.head, store.id)
    elif rests(head) and head.state is not State.ENDED and not waits:
        hint(dispatcher, store.post(head.key, resume_signal(f"resume_{secrets.token_hex(8)}")).head, store.id)
