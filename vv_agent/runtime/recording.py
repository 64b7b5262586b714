"""Feeding the host's event store with a run's events, in order, from a cursor in the head (DESIGN section 6.7).

After each save the events after the cursor are read back and appended. The next save takes the cursor along, so what
was appended after the last save of a worker is appended again by the next one: once, by event id. A run that ends does
so in two saves, with its last events appended in between: whoever finds it between them finishes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from vv_agent.checkpoint.record import Entry, EntryKind
from vv_agent.definition import CapabilityRef
from vv_agent.errors import ConfigError, StoreError, VVAgentError
from vv_agent.event_store import IdempotentRunEventStore, RunEventStore, event_digest
from vv_agent.events import RunEvent
from vv_agent.references import name_of, version_of, why_unnamed
from vv_agent.results import AgentStatus
from vv_agent.runtime.eventlog import EventReader
from vv_agent.runtime.output import Decision, Stop, failed

if TYPE_CHECKING:
    from vv_agent.runtime.run import Run
    from vv_agent.runtime.transcript import Transcript

log = logging.getLogger("vv_agent.events")

SLOT, CLOSED_SLOT = "event_store", "event_store.fail_closed"
"""Where a definition names the event store: one whose failure is only told, one whose failure fails the run."""


def references(
    store: RunEventStore | None,
    given: Mapping[str, CapabilityRef],
    *,
    closed: bool,
    checkpointed: bool,
    elsewhere: bool,
) -> dict[str, CapabilityRef]:
    """The name of an event store by its slot: needed where workers carry the run out, and where a run that can be
    resumed by others must not go on without it."""
    if store is None:
        return {}
    slot = CLOSED_SLOT if closed else SLOT
    if SLOT in given:
        return {slot: given[SLOT]}
    ref = getattr(store, "ref", None) or name_of(store)
    if ref is not None:
        return {slot: CapabilityRef(id=ref, version=version_of(store))}
    if elsewhere or (closed and checkpointed):
        why = why_unnamed(store)
        raise ConfigError("reference_required", f"workers cannot open the event store of this run: {why}")
    return {}


def with_store_of(refs: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """A definition's references with the event store of another one: where events go is not what a run does."""
    kept = {slot: ref for slot, ref in refs.items() if slot not in (SLOT, CLOSED_SLOT)}
    return kept | {slot: ref for slot, ref in stored.items() if slot in (SLOT, CLOSED_SLOT)}


class Recorder:
    """What one claim knows of its run's event store."""

    def __init__(self, store: RunEventStore | None, *, closed: bool) -> None:
        self._append = _once(store) if store is not None else None
        self._closed = closed
        self.problem: str | None = None
        """Why events could not be appended; nothing more is tried under this claim."""
        self._told = False

    @property
    def on(self) -> bool:
        return self._append is not None

    def feed(self, run: Run) -> None:
        """Append what is after the cursor. Never raises: what could not be read or kept is for the next time."""
        if self._append is None or self.problem is not None or run.body.fed >= run.head.entry_n:
            return
        all_of_it = cache(run.read_again)
        try:
            while entries := run.engine.store.entries(run.key, run.body.fed):
                for entry in entries:
                    if entry.kind is EntryKind.EVENT:
                        self._keep(run, entry, all_of_it)
                run.body = replace(run.body, fed=entries[-1].seq)
        except StoreError as error:
            log.warning("the events of run %s are fed to their store later: %s", run.key, error)
        except Exception as error:  # the host's own code
            self.problem = error.message if isinstance(error, VVAgentError) else str(error) or type(error).__name__
            log.warning("run event store append failed for run %s: %s", run.key, self.problem)

    def _keep(self, run: Run, entry: Entry, all_of_it: Callable[[], Transcript]) -> None:
        """Append the events of an entry. What was said before a compaction may be missing in the run's transcript; its
        events, and those that point back over it, are read with `all_of_it`."""
        assert self._append is not None
        reader = EventReader(run.body)
        reader.transcript = run.transcript
        if not run.transcript.whole and entry.seq <= run.head.log_from:
            reader.transcript = all_of_it()
        try:
            found = reader.decode(entry.body)
        except LookupError:
            reader.transcript = all_of_it()
            found = reader.decode(entry.body)
        for numbered in found:
            self._append(numbered.event)

    def tell(self, run: Run) -> None:
        """Say in the run's own events that their store lacks some."""
        if self.problem is not None and not self._told:
            self._told = True
            details = {"error": self.problem}
            run.emit("diagnostic", level="warning", code="event_store_append_failed", details=details)

    def judge(self, decision: Decision) -> Decision:
        """The decision, or the failure of a run that must not go on without its event store."""
        if self.problem is None or not self._closed:
            return decision
        if isinstance(decision, Stop) and decision.status is AgentStatus.FAILED:
            return decision
        return failed(f"run event store append failed: {self.problem}", "event_store_append_failed")


def _once(store: RunEventStore) -> Callable[[RunEvent], Any]:
    """How to append without repeating what an earlier worker appended."""
    if isinstance(store, IdempotentRunEventStore):
        return lambda event: store.append_once(event.event_id, event_digest(event), event)
    known: dict[str, set[str]] = {}

    def append(event: RunEvent) -> None:
        if event.run_id not in known:
            known[event.run_id] = {kept.event_id for kept in store.replay(event.run_id, include_children=False)}
        if event.event_id not in known[event.run_id]:
            store.append(event)
            known[event.run_id].add(event.event_id)

    return append
