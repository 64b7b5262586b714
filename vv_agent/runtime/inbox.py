"""Signals as the runtime reads them: a cancel, decisions on operations, answers, a wish to go on.

Order of meaning (DESIGN section 6.2): cancel, decisions, answers. A signal is consumed by the save that acts on it, or
that finds nothing to act on. A kind this version does not know means the process cannot serve the
run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vv_agent.checkpoint.record import Signal
from vv_agent.errors import CannotServe
from vv_agent.runtime.transcript import pack, unpack

KINDS = frozenset({"cancel", "reconcile", "answer", "resume"})
DEFAULT_REASON = "Run was cancelled."


@dataclass
class Inbox:
    """The unread signals of a run, sorted by what they mean."""

    cancel: str | None = None
    decisions: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Operation id -> reconciliation decision (wire form)."""
    answers: list[str] = field(default_factory=list)
    consumed: list[str] = field(default_factory=list)
    """Ids that the next save consumes."""
    _seen: set[str] = field(default_factory=set)
    _cancels: list[str] = field(default_factory=list)

    def accept_cancel(self) -> None:
        """The run ends as cancelled: only that save consumes the cancel. Until then it stays unread in the store, which
        refuses every save that would start an unsafe call or a child."""
        self.consumed += self._cancels
        self._cancels = []

    def take(self, signals: Iterable[Signal]) -> None:
        """Read signals; one that was read already is skipped."""
        for signal in signals:
            if signal.id in self._seen:
                continue
            if signal.kind not in KINDS:
                raise CannotServe(
                    "signal_unknown", f"signal {signal.kind!r} is not known to this version; upgrade this worker"
                )
            body = unpack(signal.body, f"signal {signal.id}") if signal.body else {}
            match signal.kind:
                case "cancel":
                    self.cancel = self.cancel or str(body.get("reason") or DEFAULT_REASON)
                    self._cancels.append(signal.id)
                case "reconcile":
                    self.decisions[body["operation_id"]] = body["decision"]
                case "answer":
                    self.answers.append(body["input"])
            self._seen.add(signal.id)
            if signal.kind != "cancel":
                self.consumed.append(signal.id)


def cancel_signal(signal_id: str, reason: str | None = None) -> Signal:
    return Signal(signal_id, "cancel", pack({"reason": reason or DEFAULT_REASON}))


def reconcile_signal(signal_id: str, operation_id: str, decision: Mapping[str, Any]) -> Signal:
    return Signal(signal_id, "reconcile", pack({"operation_id": operation_id, "decision": dict(decision)}))


def answer_signal(signal_id: str, text: str) -> Signal:
    return Signal(signal_id, "answer", pack({"input": text}))


def resume_signal(signal_id: str) -> Signal:
    return Signal(signal_id, "resume")
