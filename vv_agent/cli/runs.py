"""`vv-agent runs ...`: look at runs, watch them, and tell them what they wait for. None of this makes a store."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vv_agent.checkpoint.record import Filter, Head, ParkReason, Posted, Signal, State
from vv_agent.checkpoint.store import CheckpointStore, open_store
from vv_agent.cli import render
from vv_agent.cli.text import ago, command, safe
from vv_agent.cli.view import Step, View, existing, lines, place, read_events, read_view, row, timeline
from vv_agent.errors import CheckpointError, ConfigError
from vv_agent.settings import Settings, read_settings

if TYPE_CHECKING:
    from vv_agent.checkpoint.reconciliation import ReconciliationDecision

_FAILED = ("failed", "max_cycles")
_WAITING = ("wait_user", "reconciliation_required")
STATUSES = ("running", "completed", *_FAILED, *_WAITING)


@contextmanager
def _store() -> Iterator[tuple[CheckpointStore, Settings]]:
    """The store of the settings, which must be there."""
    settings = read_settings()
    store = open_store(settings.store, create=False)
    try:
        yield store, settings
    finally:
        store.close()


def code_of(view: View) -> int:
    """0 finished (or still running), 1 failed, 3 it waits for a person, or a run below it does."""
    head = view.head
    asks = head.reason is ParkReason.APPROVAL or (head.reason is ParkReason.CHILDREN and view.approvals)
    waits = head.status in _WAITING or (head.state is State.PARKED and asks)
    return 1 if head.status in _FAILED else 3 if waits else 0


# Looking.


def list_runs(*, status: str | None, queue: str | None, limit: int, below: bool = False, as_json: bool) -> int:
    """The newest runs; `below`: also those that other runs started."""
    if status is not None and status not in STATUSES:
        raise ConfigError("usage_invalid", f"--status {status!r} is not known; use one of {', '.join(STATUSES)}")
    with _store() as (store, _):
        wanted = Filter(statuses=frozenset({status}) if status else None, queue=queue, limit=limit, roots=not below)
        heads, now, where = store.find(wanted), store.now(), place(store)
    if not heads and not as_json:
        sys.stderr.write(f"no runs in {where}{' that match' if status or queue else ''}\n")
        return 0
    return table_of(heads, now, as_json=as_json)


def table_of(heads: Sequence[Head], now: int, *, as_json: bool) -> int:
    """Runs, one a line."""
    if as_json:
        render.as_json([row(head, now) for head in heads])
    else:
        render.table(_COLUMNS, [_short_row(head, now) for head in heads])
    return 0


_COLUMNS = {
    "key": "Key", "status": "Status", "waits_for": "Waits for", "cycle": "Cycle", "queue": "Queue", "age": "Age",
    "label": "Label",
}  # fmt: skip


_BELOW = {"key": "Key", "agent": "Agent", "status": "Status", "waits_for": "Waits for"}


def _short_row(head: Head, now: int) -> dict[str, Any]:
    return {**row(head, now), "age": ago(now - head.created_at)}


def show(key: str, *, full: bool, as_json: bool) -> int:
    """One run: where it stands, what happened, what can be done; `full`: and what was said."""
    with _store() as (store, _):
        view = read_view(store, key)
        events = [event for _, event in read_events(store, key)]
    if as_json:
        told = [{"at": at, "text": text.strip()} for at, text in timeline(events)]
        said = {"messages": [message.to_wire() for message in view.said]} if full else {}
        render.as_json({**view.to_json(), "timeline": told, **said})
        return code_of(view)
    render.pairs(lines(view))
    if view.below:
        render.say("\nbelow")
        render.table(_BELOW, view.below)
    render.say("\ntimeline")
    for at, text in timeline(events):
        render.say(f"  {at}  {text}")
    if full:
        render.say("\nmessages")
    for message in view.said if full else ():
        calls = "".join(f"\n  calls {call.name} {call.arguments}" for call in message.tool_calls)
        render.say(safe(f"[{message.role}] {message.content}{calls}", lines=True))
    say_next(view.next)
    return code_of(view)


def say_next(steps: tuple[Step, ...]) -> None:
    """What can be done, each with the command to copy."""
    if steps:
        render.say("\nnext")
    for step in steps:
        render.say(f"  {step.why}{':' if step.command else ''}")
        if step.command:
            render.say(f"    {step.command}")


def events(key: str, *, after: int, below: bool, as_json: bool) -> int:
    """The durable events of a run; `below`: also of the runs below it, each after its start."""
    from vv_agent.cli.follow import JsonLines

    if below and after:
        raise ConfigError("usage_invalid", "--after and --all contradict each other: each run has numbers of its own")
    with _store() as (store, _):
        found = read_events(store, key, after, below=below)
    if as_json:
        out = JsonLines(sys.stdout)
        for _, event in found:
            out.tell(event)
        return 0
    columns = {"n": "N", "at": "At", **({"agent": "Agent"} if below else {})}
    columns |= {"cycle": "Cycle", "type": "Type", "what": "What"}
    render.table(columns, [_event_row(number, event) for number, event in found])
    return 0


def _event_row(number: int, event: Any) -> dict[str, Any]:
    from vv_agent.cli.follow import line_of
    from vv_agent.cli.text import iso

    told = (line_of(event) or "").strip()
    return {
        "n": number, "at": iso(event.created_at), "agent": event.agent_name, "cycle": event.cycle_index,
        "type": event.type, "what": told,
    }  # fmt: skip


def watch(key: str, *, as_json: bool) -> int:
    """A run from its first event on, until it ends or rests. Ctrl-C leaves it alone."""
    from vv_agent.cli.follow import JsonLines, Narrator, Talker
    from vv_agent.runner import Runner

    with _store() as (store, settings):
        root = existing(store, key).head.root_key
        handle = Runner(settings=settings).attach(key, store=store)
        talker = None if as_json else Talker(sys.stdout, store, key)
        narrator: Narrator = talker or JsonLines(sys.stdout)
        try:
            for event in handle.events():
                narrator.tell(event)
                if talker is not None and event.type == "approval_requested" and _still_asks(store, root, event):
                    for line in _ways_to_decide(root, event.request_id):
                        talker.say(line)
        except KeyboardInterrupt:
            sys.stderr.write(f"\nno longer watching; the run is not touched. Again: {command('runs', 'watch', key)}\n")
            return 130
        narrator.end()
        handle.result()
        view = read_view(store, key)
    if not as_json:
        say_next(view.next)
    return code_of(view)


def _still_asks(store: CheckpointStore, root: str, event: Any) -> bool:
    """Whether a request that was told can be decided. One that is shown as it comes is saved a moment later."""
    from vv_agent.launch import open_approvals, resolved_approval

    end = time.monotonic() + 2.0
    while True:
        if event.request_id in open_approvals(store, root):
            return True
        if resolved_approval(store, root, event.request_id) is not None or time.monotonic() >= end:
            return False
        time.sleep(0.1)


def _ways_to_decide(root: str, request: str) -> Iterator[str]:
    for why, option in (
        ("let it", "--allow"), ("and every later call of that tool", "--allow-session"), ("do not", "--deny REASON")
    ):  # fmt: skip
        yield f"    {why}: {command('runs', 'approve', root, request, options=option)}"


# Telling.


def cancel(key: str, *, reason: str | None, as_json: bool) -> int:
    """Ask a run to stop; one that nobody works on is ended here."""
    import secrets

    from vv_agent import process
    from vv_agent.dispatch.distributed import settle
    from vv_agent.runtime.inbox import cancel_signal

    with _store() as (store, settings):
        existing(store, key)
        posted = store.post(key, cancel_signal(f"cancel_{secrets.token_hex(8)}", reason))
        settle(process.engine_for(store, settings), process.dispatcher_for(store, settings), posted.head)
        view = read_view(store, key)
    return _told(view, "cancelled" if view.over else "the cancel is posted", as_json)


def answer(key: str, text: str, *, as_json: bool) -> int:
    """Answer a run that waits for its user."""
    from vv_agent.runtime.inbox import answer_signal

    with _store() as (store, settings):
        head = _parked(store, key, ParkReason.INPUT, "an answer")
        signal = answer_signal(f"answer_{head.revision}", text)
        return _told(_post(store, settings, key, signal), "the answer is posted", as_json)


def say(key: str, text: str, *, follow_up: bool, as_json: bool) -> int:
    """Steer a run, or give it what comes after its end."""
    from vv_agent.runtime.inbox import follow_up_signal, steer_signal

    kind, make = ("follow-up", follow_up_signal) if follow_up else ("steer", steer_signal)
    with _store() as (store, settings):
        existing(store, key)
        signal = make(f"{kind}_{secrets.token_hex(8)}", text)
        view = _post(store, settings, key, signal)
    kept = ", and kept until the run goes on" if view.head.state is State.PARKED else ""
    return _told(view, f"the {kind} is posted{kept}", as_json)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a person decided: retry, done, failed or abort, with the text that goes with it."""

    kind: str
    text: str = ""

    @classmethod
    def of(cls, *, retry: bool, done: str | None, failed: str | None, abort: str | None) -> Verdict:
        """The one decision the options give; `usage_invalid` for none or several."""
        texts = {"done": done, "failed": failed, "abort": abort}
        given = [cls("retry")] if retry else []
        given += [cls(kind, text) for kind, text in texts.items() if text is not None]
        if len(given) != 1:
            named = " and ".join(f"--{verdict.kind}" for verdict in given)
            problem = f"{named} contradict each other" if given else "there is no decision"
            raise ConfigError(
                "usage_invalid", f"{problem}; give exactly one of --retry, --done TEXT, --failed TEXT, --abort TEXT"
            )
        return given[0]

    def decision(self, operation: str, operation_kind: str) -> ReconciliationDecision:
        """The decision on the wire; the receipt of `done` fits the kind of the operation."""
        from vv_agent.checkpoint.reconciliation import ABORT_CODE, ReconciliationDecision
        from vv_agent.results import ToolExecutionResult

        match self.kind:
            case "retry":
                return ReconciliationDecision.retry()
            case "failed":
                return ReconciliationDecision.record_failure("operator_reported_failure", self.text)
            case "abort":
                return ReconciliationDecision.abort(ABORT_CODE, self.text)
        if operation_kind == "model":
            return ReconciliationDecision.replay_response({"content": self.text, "tool_calls": []})
        result = ToolExecutionResult(tool_call_id=operation, content=self.text)
        return ReconciliationDecision.replay_result(result.to_wire())


def reconcile(key: str, operation: str, verdict: Verdict, *, as_json: bool) -> int:
    """Decide what became of the operation a run waits for."""
    from vv_agent.runtime.inbox import reconcile_signal
    from vv_agent.runtime.transcript import unpack

    with _store() as (store, settings):
        head = _parked(store, key, ParkReason.RECONCILIATION, "a decision about an operation")
        view = read_view(store, key)
        _check_operation(view, operation)
        decision = verdict.decision(operation, str((view.observation or {}).get("operation_kind")))
        entry = existing(store, key).journal.get(operation)
        attempt = unpack(entry, f"journal entry {operation}")["attempt"] if entry else None
        name = f"reconcile_{head.revision}_{operation}"
        signal = reconcile_signal(name, operation, decision.to_wire(), attempt)
        return _told(_post(store, settings, key, signal), "the decision is posted", as_json)


def approve(key: str, request: str, *, allow: bool, allow_session: bool, deny: str | None, as_json: bool) -> int:
    """Decide on a call that waits for a yes."""
    from vv_agent import process
    from vv_agent.approvals import ApprovalDecision
    from vv_agent.launch import decide_approval

    if [allow, allow_session, deny is not None].count(True) != 1:
        raise ConfigError("usage_invalid", "give exactly one of --allow, --allow-session, --deny REASON")
    if deny is not None and not deny.strip():
        raise ConfigError("usage_invalid", "--deny needs a reason, which the model reads; give --deny 'too expensive'")
    if deny is not None:
        decision = ApprovalDecision.deny(deny)
    else:
        decision = ApprovalDecision.allow() if allow else ApprovalDecision.allow_session()
    with _store() as (store, settings):
        existing(store, key)
        new = decide_approval(store, process.dispatcher_for(store, settings), key, request, decision)
        said = "the decision is posted" if new else "the decision was posted before"
        return _told(read_view(store, key), said, as_json)


def raise_budget(
    key: str, limits: Mapping[str, int | None], calls: Sequence[str], host_cost: int | None, *, as_json: bool
) -> int:
    """Put other limits in place of those that are named."""
    from vv_agent.budget import RunBudgetLimits
    from vv_agent.launch import limits_of, raised
    from vv_agent.runtime.inbox import budget_signal

    changed: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
    by_name = dict(map(_limit_of_tool, calls))
    if not changed and not by_name and host_cost is None:
        raise ConfigError("usage_invalid", "there is no limit to raise; give e.g. --total-tokens N")
    with _store() as (store, settings):
        head = existing(store, key).head
        held = limits_of(store, head).to_wire()
        if host_cost is not None and held["max_host_cost"] is None:
            raise ConfigError("usage_invalid", f"run {key!r} has no limit of the host's cost to raise")
        if host_cost is not None:
            changed["max_host_cost"] = {**held["max_host_cost"], "amount_microunits": host_cost}
        changed["max_tool_calls_by_name"] = {**held["max_tool_calls_by_name"], **by_name}
        higher = raised(store, head, RunBudgetLimits(**{**held, **changed}))
        signal = budget_signal(f"budget_{secrets.token_hex(8)}", higher)
        return _told(_post(store, settings, key, signal), "the new limits are posted", as_json)


def _limit_of_tool(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name or not number.isdigit():
        raise ConfigError("usage_invalid", f"--calls {text!r} is not of the form TOOL=N, such as --calls search=20")
    return name, int(number)


def _check_operation(view: View, operation: str) -> None:
    known = str((view.observation or {}).get("operation_id"))
    if operation != known:
        raise ConfigError(
            "usage_invalid",
            f"run {view.head.key!r} does not wait for a decision about {operation!r} but about {known!r}; "
            f"give that one: {command('runs', 'reconcile', view.head.key, known, options='--retry')}",
        )


def _parked(store: CheckpointStore, key: str, reason: ParkReason, what: str) -> Head:
    """The head of a run that waits for this; otherwise `run_not_waiting` says what it does."""
    head = existing(store, key).head
    if head.state is State.READY and head.reason is reason and head.signal_n:
        raise CheckpointError(
            "already_decided",
            f"run {key!r} has been told something already, and the first word counts; it goes on with that: "
            f"{command('resume', head.root_key)}",
        )
    if head.state is not State.PARKED or head.reason is not reason:
        stands = f"waits for: {head.reason}" if head.state is State.PARKED else f"is {head.status}"
        raise ConfigError(
            "run_not_waiting",
            f"run {key!r} {stands}; it does not wait for {what}. What it needs: {command('runs', 'show', key)}",
        )
    return head


def _post(store: CheckpointStore, settings: Settings, key: str, signal: Signal) -> View:
    """Post a decision, of which the first one counts, and wake a worker."""
    from vv_agent import process
    from vv_agent.dispatch.base import hint

    posted: Posted = store.post(key, signal)
    if not posted.new and posted.signal.body != signal.body:
        raise CheckpointError(
            "already_decided",
            f"run {key!r} has been told something else already, and the first word counts; it goes on with that: "
            f"{command('resume', key)}",
        )
    hint(process.dispatcher_for(store, settings), posted.head, store.id)
    return read_view(store, key)


def _told(view: View, said: str, as_json: bool) -> int:
    """What was done, and how it goes on."""
    if as_json:
        render.as_json({"done": said, **view.to_json()})
    elif view.over:
        render.say(f"{view.head.key}: {said}")
    elif view.served or view.holder_alive:
        render.say(
            f"{view.head.key}: {said}; it goes on by itself. Watch it: {command('runs', 'watch', view.head.root_key)}"
        )
    else:
        render.say(f"{view.head.key}: {said}; continue with: {command('resume', view.head.root_key)}")
    return 0


def complete_key(incomplete: str) -> list[tuple[str, str]]:
    """Keys for the shell's completion, newest first, with their status."""
    try:
        with _store() as (store, _):
            heads = store.find(Filter(limit=200))
    except Exception:  # a shell in the middle of a line is told nothing
        return []
    return [(head.key, head.status) for head in heads if head.key.startswith(incomplete)]
