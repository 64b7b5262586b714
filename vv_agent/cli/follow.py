"""Following a run until it ends or waits: what is shown meanwhile, and what Ctrl-C does."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from vv_agent.cli.render import to_json
from vv_agent.cli.text import command, iso, safe, short

if TYPE_CHECKING:
    from vv_agent.checkpoint.store import CheckpointStore
    from vv_agent.events import RunEvent
    from vv_agent.result import RunResult
    from vv_agent.run_handle import RunHandle
    from vv_agent.runtime.context import Engine


class Narrator(Protocol):
    """Gets each event of a run, then the end of the telling."""

    def tell(self, event: RunEvent) -> None: ...

    def end(self) -> None: ...


def follow(handle: RunHandle, engine: Engine, narrator: Narrator, *, waits_for_people: bool = True) -> RunResult | None:
    """Tell a run's events until it ends or rests; its result, or None when Ctrl-C (or SIGTERM) came. Without
    `waits_for_people` also when it waits for somebody's yes: it holds nothing then.

    At Ctrl-C this process gives back what it held: model calls are cut off, a running tool gets its grace. The run
    stays in the store, and the command that goes on with it is printed.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    from vv_agent.outcome import read_result

    key = handle.checkpoint_key
    try:
        if not waits_for_people and _asks(engine, key, 0.0):  # a request of an earlier time is not told again
            return read_result(engine, key, ())
        for event in handle.events():
            narrator.tell(event)
            asked = event.type == "approval_requested"
            if event.type in _MAY_REST and not waits_for_people and _asks(engine, key, 2.0, asked=asked):
                narrator.end()
                return read_result(engine, key, ())
        narrator.end()
        return handle.result()
    except KeyboardInterrupt:
        narrator.end()
        sys.stderr.write("\nstopping (Ctrl-C again: at once)\n")
        _give_back(handle, engine)
        sys.stderr.write(_left(engine.store, handle.checkpoint_key))
        return None


_MAY_REST = ("approval_requested", "sub_run_completed")
"""Events after which a run that asked somebody may have come to rest."""


def _asks(engine: Engine, key: str, patience: float, *, asked: bool = False) -> bool:
    """Whether a run, or one below it, waits for a yes and nothing of the tree goes on without. What has just `asked`,
    or works beside what waits, gets `patience` seconds to come to rest: it does not if somebody decides at once."""
    from vv_agent.checkpoint.record import Filter, ParkReason, State
    from vv_agent.checkpoint.transitions import state

    end = time.monotonic() + patience
    while True:
        now = engine.store.now()
        tree = [head for head in engine.store.find(Filter(root_key=key, limit=10_000)) if head.state is not State.ENDED]
        parked = [head for head in tree if state(head, now) is State.PARKED]
        waits = any(head.reason is ParkReason.APPROVAL for head in parked)
        if len(parked) == len(tree):
            return waits
        if time.monotonic() >= end or not (waits or asked):
            return False
        time.sleep(0.05)


def _give_back(handle: RunHandle, engine: Engine) -> None:
    engine.stop()
    end = time.monotonic() + engine.grace + 5.0
    while engine.keeper.busy and time.monotonic() < end:
        time.sleep(0.02)
    with contextlib.suppress(Exception):  # an inline loop has no more to do; a run of workers goes on without us
        handle.result(0.2)


def _left(store: CheckpointStore, key: str) -> str:
    """Where the run was left, and how somebody goes on with it."""
    from vv_agent.cli.view import read_view

    view = read_view(store, key)
    if view.over:
        return f"the run has ended; look at it: {command('runs', 'show', key)}\n"
    if view.served:
        return (
            f"the run goes on in its workers\n  watch it:  {command('runs', 'watch', key)}\n"
            f"  cancel it: {command('runs', 'cancel', key)}\n"
        )
    return f"the run is kept as it stands; go on with it: {command('resume', key)}\n"


class Quiet:
    """Says nothing."""

    def tell(self, event: RunEvent) -> None:
        pass

    def end(self) -> None:
        pass


class VerboseLines:
    """One line for each event: `[utc] [type] json`."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def tell(self, event: RunEvent) -> None:
        fields = {name: value for name, value in event.to_wire().items() if name not in ("version", "type")}
        text = json.dumps(fields, ensure_ascii=False)
        self._out.write(f"[{iso(event.created_at)}] [{event.type}] {text}\n")
        self._out.flush()

    def end(self) -> None:
        pass


class JsonLines:
    """Each event as one line of JSON."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def tell(self, event: RunEvent) -> None:
        self._out.write(f"{to_json(event.to_wire())}\n")
        self._out.flush()

    def end(self) -> None:
        pass


class Talker:
    """For people: the model's text as it comes, a line for each step, and each cycle's tokens when it is over. What is
    said of a run below begins with its agent's name."""

    def __init__(self, out: TextIO, store: CheckpointStore, key: str, *, resumed: bool = False) -> None:
        self._out = out
        self._store = store
        self._key = key
        self._run_id: str | None = None
        self._speaker = ""
        """The run whose text is shown."""
        self._meter = Meter(store, key, resumed=resumed)
        self._in_text = False
        self._cycles: set[tuple[str, int | None]] = set()
        """Cycles that were begun, and those whose text was shown as it came."""
        self._heard: set[tuple[str, int | None]] = set()

    def tell(self, event: RunEvent) -> None:
        place = (event.run_id, event.cycle_index)
        match event.type:
            case "assistant_delta":
                if self._in_text and self._speaker != event.run_id:
                    self._line("")
                if not self._in_text:
                    self._out.write(self._mark(event))
                self._in_text, self._speaker = True, event.run_id
                self._heard.add(place)
                self._out.write(safe(event.delta, lines=True))
                self._out.flush()
                return
            case "cycle_started":
                self._tokens(len(self._cycles))
                self._cycles.add(place)
            case "run_completed" | "run_failed" | "run_cancelled":
                self._tokens(len(self._cycles))
        line = line_of(event)
        if event.type == "run_completed" and event.status.value == "completed" and self._heard:
            line = "completed"  # its text stands above
        if line is not None:
            self._line(f"{self._mark(event)}{line}")

    def _mark(self, event: RunEvent) -> str:
        if self._run_id is None:
            look = self._store.look(self._key)
            self._run_id = look.head.run_id if look else None
        below = event.parent_run_id is not None and event.run_id != self._run_id
        return f"[{safe(event.agent_name or event.run_id)}] " if below else ""

    def say(self, text: str) -> None:
        """A line that no event tells."""
        self._line(text)

    def end(self) -> None:
        if self._in_text:
            self._line("")

    def _tokens(self, cycles: int) -> None:
        for text in self._meter.news(cycles):
            self._line(f"  {text}")

    def _line(self, text: str) -> None:
        if self._in_text:
            self._in_text = False
            self._out.write("\n")
        if text:
            self._out.write(f"{text}\n")
        self._out.flush()


class Meter:
    """The tokens of a run's cycles, read from the log as it grows; of a resumed run only those from here on."""

    def __init__(self, store: CheckpointStore, key: str, *, resumed: bool) -> None:
        from vv_agent.runtime.transcript import Transcript

        self._store = store
        self._key = key
        self._transcript = Transcript()
        self._read()
        self._before = len(self._transcript.turns) if resumed else 0
        self._told = 0
        self._sum = 0

    def news(self, cycles: int) -> list[str]:
        """A text for each of the first `cycles` cycles that was not told yet and is saved."""
        from vv_agent.runtime.output import usage_of

        self._read()
        turns = [turn for _, turn in sorted(self._transcript.turns.items())][self._before : self._before + cycles]
        fresh, self._told = turns[self._told :], max(self._told, len(turns))
        texts = []
        for usage in map(usage_of, fresh):
            if usage.total_tokens is not None:
                self._sum += usage.total_tokens
                texts.append(f"tokens: {usage.input_tokens} in, {usage.output_tokens} out; {self._sum} so far")
        return texts

    def _read(self) -> None:
        from vv_agent.checkpoint.record import Seen

        snapshot = self._store.load(self._key, Seen(entries=self._transcript.entry_n))
        for entry in snapshot.log if snapshot else ():
            self._transcript.extend(entry.seq, entry.body)


def line_of(event: RunEvent) -> str | None:
    """An event as a line for people; None for one that would only distract."""
    make = _LINES.get(event.type)
    return None if make is None else make(event)


def _tool_ended(event: Any) -> str:
    took = f", {event.duration_ms} ms" if event.duration_ms is not None else ""
    code = f" ({event.error_code})" if event.error_code else ""
    return f"  {event.tool_name}: {event.status}{code}{took}"


def _diagnostic(event: Any) -> str | None:
    if event.level not in ("warning", "error") and event.code != "model_retry_later":
        return None
    return f"  {event.level}: {event.code} {_arguments(event.details)}"


def _completed(event: Any) -> str:
    what = "waits for an answer" if event.status.value == "wait_user" else "completed"
    return f"{what}: {short(event.final_output or '', 200)}"


_LINES: Mapping[str, Callable[[Any], str | None]] = {
    "run_started": lambda e: f"run {e.run_id}: {short(e.input, 100)}",
    "cycle_started": lambda e: f"cycle {e.cycle_index}",
    "tool_call_started": lambda e: f"  calls {e.tool_name} {_arguments(e.arguments)}",
    "tool_call_completed": _tool_ended,
    "checkpoint_resumed": lambda e: f"  taken up again, attempt {e.resume_attempt}",
    "approval_requested": lambda e: (
        f"  waits for a yes to {e.tool_name} {_arguments(e.metadata['arguments'])} (request {e.request_id})"
    ),
    "approval_resolved": lambda e: f"  {e.tool_name}: {e.action} {short(e.metadata.get('reason') or '', 100)}".rstrip(),
    "operation_replayed": lambda e: f"  uses the saved answer of {e.operation_id}",
    "operation_ambiguous": lambda e: f"  nobody knows whether {e.operation_id} was carried out",
    "model_retry_duplicate_risk": lambda e: f"  asks the model again; {e.operation_id} may be paid twice",
    "reconciliation_required": lambda e: f"waits for a decision about {e.operation_id}",
    "reconciliation_resolved": lambda e: f"  {e.operation_id} was decided: {e.decision}",
    "diagnostic": _diagnostic,
    "run_completed": _completed,
    "run_failed": lambda e: f"failed: {short(e.error, 200)}",
    "run_cancelled": lambda e: f"cancelled: {short(e.reason, 200)}",
}


def _arguments(values: Mapping[str, Any]) -> str:
    return short(json.dumps(values, ensure_ascii=False), 100)
