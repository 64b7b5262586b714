"""A run as it is shown: where it stands, what it waits for, and the exact command that goes on with it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from vv_agent.checkpoint.record import Head, ParkReason, Snapshot, State
from vv_agent.checkpoint.store import CheckpointStore, tree_of
from vv_agent.checkpoint.transitions import unserved
from vv_agent.cli.text import ago, command, iso, iso_ms, short
from vv_agent.errors import CheckpointError
from vv_agent.messages import Message

_INCOMPATIBLE_AFTER_MS = 600_000
"""A run that workers refuse for so long is labelled; until then one that can serve it may just not have come by."""
LABEL = "run_incompatible"


@dataclass(frozen=True, slots=True)
class Step:
    """What somebody can do: why, and the command (None: nothing to type, it goes on by itself)."""

    why: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class View:
    """One run, read at one moment. `operation` describes the call a run waits for somebody to decide about."""

    head: Head
    now: int
    agent: str
    model: str
    question: str | None
    observation: dict[str, Any] | None
    exhausted: dict[str, Any] | None
    """The limit that stopped it, as a BudgetExhaustion."""
    approvals: tuple[Mapping[str, Any], ...]
    """What it and the runs below it want a yes for: ApprovalSnapshots, each with the `key` of its run."""
    below: tuple[Mapping[str, Any], ...]
    """The runs below it, as rows with their `agent` and `parent_key`, oldest first."""
    operation: str | None
    answer: str | None
    error: str | None
    error_code: str | None
    tokens: int | None
    served: bool
    """Workers of its queue are there."""
    holder_alive: bool
    """The process that has it may still live."""
    holder: str | None
    """That process, in words."""
    unread: int
    said: tuple[Message, ...]
    """All messages of the run, also those that memory has put a summary in place of."""

    @property
    def over(self) -> bool:
        return self.head.state is State.ENDED

    @property
    def waits_for(self) -> str | None:
        return waits_for(self.head)

    @property
    def next(self) -> tuple[Step, ...]:
        return tuple(_next(self))

    def to_json(self) -> dict[str, Any]:
        """The values, for a script."""
        head = self.head
        return {
            **row(head, self.now),
            "agent": self.agent,
            "model": self.model,
            "question": self.question,
            "observation": self.observation,
            "approvals": list(self.approvals),
            "below": list(self.below),
            "budget_exhaustion": self.exhausted,
            "final_answer": self.answer,
            "error": self.error,
            "error_code": self.error_code,
            "tokens": self.tokens,
            "refusal": head.refusal,
            "unread_signals": self.unread,
            "next": [{"why": step.why, "command": step.command} for step in self.next],
        }


def row(head: Head, now: int) -> dict[str, Any]:
    """What a list shows of a run."""
    return {
        "key": head.key,
        "status": head.status,
        "state": head.state.value,
        "waits_for": waits_for(head),
        "label": label(head, now),
        "cycle": head.cycle,
        "queue": head.queue,
        "created_at": iso_ms(head.created_at),
        "updated_at": iso_ms(head.updated_at),
        "owner": head.owner if head.state is State.CLAIMED else None,
    }


def waits_for(head: Head) -> str | None:
    """The reason a parked run waits, as one word."""
    return head.reason.value if head.state is State.PARKED and head.reason is not None else None


def label(head: Head, now: int) -> str | None:
    """`run_incompatible` for a run that no worker could serve for ten minutes."""
    return LABEL if unserved(head, now) >= _INCOMPATIBLE_AFTER_MS else None


def place(store: CheckpointStore) -> str:
    """The store's URL as it is set, without a password."""
    scheme, _, rest = store.url.partition("://")
    return f"{scheme.partition('+')[0]}://{rest}" if not scheme.startswith("redis") else store.url


def existing(store: CheckpointStore, key: str) -> Snapshot:
    """The whole record; `checkpoint_not_found` if there is none."""
    from vv_agent.checkpoint.config import validate_key

    snapshot = store.load(validate_key(key))
    if snapshot is None:
        raise CheckpointError(
            "checkpoint_not_found",
            f"there is no run {key!r} in {place(store)}; see `vv-agent runs list`, or set VV_AGENT_STORE to its store",
        )
    return snapshot


def read_view(store: CheckpointStore, key: str) -> View:
    """Read a run."""
    from vv_agent.definition import RunDefinition
    from vv_agent.outcome import unpacked
    from vv_agent.runtime.body import Body
    from vv_agent.runtime.output import agent_result
    from vv_agent.runtime.owner import is_dead
    from vv_agent.runtime.transcript import Transcript

    snapshot = existing(store, key)
    head = snapshot.head
    body = Body.unpack(head.body, key)
    transcript = Transcript()
    for entry in snapshot.log:
        transcript.extend(entry.seq, entry.body)
    blobs = unpacked(snapshot)
    result = agent_result(head, body, transcript, blobs)
    definition = RunDefinition.decode(store.definition(head.definition))
    below = _below(store, key)
    held = head.state is State.CLAIMED and head.lease_until > snapshot.now
    gone = is_dead(head.owner or "")
    told = {signal.id for signal in snapshot.signals}
    return View(
        head=head, now=snapshot.now, agent=body.agent,
        model=f"{definition.model.backend}/{definition.model.model_id}", question=result.wait_reason,
        observation=body.observation, operation=_operation(transcript, body.observation), answer=result.final_answer,
        error=result.error, error_code=result.error_code, tokens=result.token_usage.total_tokens,
        served=served(store, head), holder_alive=held and not gone, unread=len(snapshot.signals),
        exhausted=result.budget_exhaustion.to_wire() if result.budget_exhaustion else None,
        said=tuple(transcript.history),
        approvals=(
            *({"key": key, **a.model_dump(mode="json")} for a in result.approvals() if a.interruption_id not in told),
            *(asked for child in below if child.reason is ParkReason.APPROVAL for asked in _asked_by(store, child)),
        ),
        below=tuple(
            {**row(child, snapshot.now), "agent": Body.unpack(child.body, child.key).agent,
             "parent_key": child.parent_key}
            for child in below
        ),
        holder=_holder(head.owner, gone) if head.state is State.CLAIMED and head.owner else None,
    )  # fmt: skip


def _below(store: CheckpointStore, key: str) -> list[Head]:
    """The heads below a run, oldest first."""
    tree = store._atomically(lambda tx: tree_of(tx, key), write=False)
    return sorted(tree[1:], key=lambda head: head.created_at)


def _asked_by(store: CheckpointStore, child: Head) -> tuple[Mapping[str, Any], ...]:
    """The open requests of a run below, which is parked for them."""
    return tuple(asked for asked in read_view(store, child.key).approvals if asked["key"] == child.key)


def _holder(owner: str, gone: bool) -> str:
    return f"process {owner.split('/')[1]}{', which is gone' if gone else ''}" if "/" in owner else owner


def served(store: CheckpointStore, head: Head) -> bool:
    """Whether workers of the run's queue are there."""
    from vv_agent.dispatch.distributed import workers_of

    return head.queue is not None and workers_of(store, head.queue, 10.0)


def _operation(transcript: Any, observation: dict[str, Any] | None) -> str | None:
    """The call an observation is about, in words."""
    if observation is None:
        return None
    if observation["operation_kind"] == "model":
        return f"the model call of cycle {observation['cycle_index']}"
    from vv_agent.checkpoint.identity import tool_operation_id

    turn = transcript.turns.get(observation["cycle_index"])
    for position, call in enumerate(turn.calls if turn else ()):
        if tool_operation_id(observation["cycle_index"], position + 1) == observation["operation_id"]:
            return f"the call {call.name} {short(call.arguments, 200)}"
    return f"the operation {observation['operation_id']}"


# What comes next.


def _next(view: View) -> Sequence[Step]:
    head = view.head
    if view.over:
        return ()
    if head.state is State.PARKED:
        return _of_parked(view)
    if view.unread and not view.served and not view.holder_alive:
        go_on = Step("a decision, answer or cancel is posted; carry it out here", command("resume", head.root_key))
        return (*_approvals(head.key, view.approvals), go_on)
    if label(head, view.now):
        return (
            Step(f"no worker can serve it ({head.refusal}); correct that and start one", _worker(head)),
            Step("or go on where its code can be loaded", command("resume", head.root_key)),
        )
    if view.holder_alive:
        return (Step("a process works on it; watch it", command("runs", "watch", head.key)),)
    if view.served:
        return (Step("workers go on with it; watch it", command("runs", "watch", head.key)),)
    mine = Step("nobody works on it; go on here", command("resume", head.root_key))
    return (mine,) if head.queue is None else (Step("no worker of its queue runs; start one", _worker(head)), mine)


def _of_parked(view: View) -> Sequence[Step]:
    key = view.head.key
    match view.head.reason:
        case ParkReason.INPUT:
            return (Step("it waits for an answer; give it", command("runs", "answer", key) + " TEXT"),)
        case ParkReason.APPROVAL | ParkReason.CHILDREN if view.approvals:
            return tuple(_approvals(key, view.approvals))
        case ParkReason.BUDGET:
            return (_raise_budget(key, view.exhausted or {}),)
        case ParkReason.RECONCILIATION:
            return tuple(_decisions(key, view.observation or {}))
        case ParkReason.ATTEMPTS:
            why = "five attempts in a row ended without any save (see the workers' logs for why); try again"
            return (Step(why, command("resume", key)),)
        case ParkReason.RETRY_AFTER:
            at = iso_ms(view.head.due or view.now)
            by_itself = Step(f"the model's provider asked to wait; it goes on by itself at {at}")
            here = Step("no worker runs; wait for that time here", command("resume", key))
            return (by_itself,) if view.served else (by_itself, here)
    return (Step(f"it waits for: {view.head.reason}; watch it", command("runs", "watch", key)),)


_LIMITS = {
    "total_tokens": "--total-tokens N", "uncached_input_tokens": "--uncached-tokens N", "tool_calls": "--tool-calls N",
    "wall_time": "--seconds N", "host_cost": "--host-cost N",
}  # fmt: skip


def _raise_budget(key: str, exhausted: Mapping[str, Any]) -> Step:
    tool = exhausted.get("tool_name")
    option = f"--calls {tool}=N" if tool else _LIMITS.get(str(exhausted.get("dimension")), "--total-tokens N")
    used, limit, unit = (exhausted.get(name) for name in ("observed", "limit", "unit"))
    why = f"its budget is used up ({exhausted.get('dimension')}: {used} of {limit} {unit}); give it another limit"
    return Step(why, command("runs", "raise-budget", key, options=option))


_MOST = 200
"""Characters of arguments that are shown with a question."""


def _approvals(key: str, approvals: Sequence[Mapping[str, Any]]) -> Iterator[Step]:
    for asked in approvals:
        base = partial(command, "runs", "approve", key, asked["interruption_id"])
        arguments = json.dumps(asked["arguments"], ensure_ascii=False)
        what = f"{asked['tool_name']} {short(arguments, _MOST)}"
        if len(arguments) > _MOST:
            what += f" (all {len(arguments)} characters: {command('runs', 'show', key, options='--full')})"
        who = "it" if asked["key"] == key else f"{asked['key']} below it"
        yield Step(f"{who} wants to call {what}; let it", base(options="--allow"))
        yield Step("and every later call of that tool in this run", base(options="--allow-session"))
        yield Step("do not let it", base(options="--deny REASON"))


def _decisions(key: str, observation: dict[str, Any]) -> Sequence[Step]:
    base = partial(command, "runs", "reconcile", key, str(observation.get("operation_id", "OPERATION")))
    return (
        Step("it was not carried out, or may be repeated: make it again", base(options="--retry")),
        Step("it was carried out: go on with this outcome", base(options="--done TEXT")),
        Step("it certainly failed: go on with this error", base(options="--failed TEXT")),
        Step("nobody can know: end the run as failed", base(options="--abort TEXT")),
    )


def _worker(head: Head) -> str:
    from vv_agent.settings import DEFAULT_QUEUE

    if head.queue in (None, DEFAULT_QUEUE):
        return command("worker")
    return command("worker", options=f"--queue {shlex.quote(str(head.queue))}")


# For people.


def lines(view: View) -> list[tuple[str, str]]:
    """The run as named values, in the order of interest."""
    head = view.head
    reason = f", waits for {view.waits_for}" if view.waits_for else ""
    found = [
        ("key", head.key),
        ("status", f"{head.status} ({head.state.value}{reason})"),
        ("label", f"{label(head, view.now) or ''}"),
        ("refused", f"{head.refusal} (for {ago(view.now - head.refused_at)})" if head.refused_at else ""),
        ("agent", f"{view.agent}, model {view.model}"),
        ("queue", head.queue or "none (its starter, or resume)"),
        ("cycle", f"{head.cycle}, attempt {head.attempt}"),
        ("created", f"{iso_ms(head.created_at)}, {ago(view.now - head.created_at)} ago"),
        ("updated", f"{iso_ms(head.updated_at)}, {ago(view.now - head.updated_at)} ago"),
        ("held by", view.holder or ""),
        ("tokens", "" if view.tokens is None else str(view.tokens)),
        ("question", view.question or ""),
        ("about", _about(view)),
        ("answer", view.answer or ""),
        ("error", " ".join(filter(None, (view.error_code, view.error)))),
    ]
    return [(name, short(text, 600)) for name, text in found if text]


def _about(view: View) -> str:
    if view.observation is None or view.operation is None:
        return ""
    risk = "it may be paid twice" if view.observation["operation_kind"] == "model" else "it may have had its effect"
    return f"{view.operation}: it was started and no outcome was saved; {risk}"


def timeline(events: Sequence[Any]) -> list[tuple[str, str]]:
    """Time and text of the events worth telling."""
    from vv_agent.cli.follow import line_of

    told = ((event, line_of(event)) for event in events)
    return [(iso(event.created_at), text) for event, text in told if text is not None]


def read_events(store: CheckpointStore, key: str, after: int = 0, *, below: bool = False) -> list[tuple[int, Any]]:
    """The durable events of a run after an entry's number, each with the number of its entry; `below`: and those of
    the runs below it, where they begin."""
    from vv_agent.runtime.body import Body
    from vv_agent.runtime.eventlog import EventReader

    head = existing(store, key).head
    reader = EventReader(Body.unpack(head.body, key))
    found: list[tuple[int, Any]] = []
    begun: set[str] = set()
    at = 0
    while entries := store.entries(key, at):
        for seq, numbered in ((entry.seq, n) for entry in entries for n in reader.feed(entry) if entry.seq > after):
            found.append((seq, numbered.event))
            if below and numbered.below is not None and numbered.below not in begun:
                begun.add(numbered.below)
                found += read_events(store, numbered.below, below=True)
        at = entries[-1].seq
    return found
