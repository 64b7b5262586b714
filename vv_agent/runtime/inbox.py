"""Signals as the runtime reads them: a cancel, decisions on operations, answers, a wish to go on.

Order of meaning (DESIGN section 6.2): cancel, decisions, answers. A signal is consumed by the save that acts on it; one
that cannot act yet is kept in the head's body. A kind this version does not know means the process cannot serve the
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
    read: list[str] = field(default_factory=list)
    """Ids to be consumed by the next save."""

    def take(self, signals: Iterable[Signal]) -> None:
        """Read signals; one that was read already is skipped."""
        for signal in signals:
            if signal.id in self.read:
                continue
            if signal.kind not in KINDS:
                raise CannotServe(
                    "signal_unknown", f"signal {signal.kind!r} is not known to this version; upgrade this worker"
                )
            body = unpack(signal.body, f"signal {signal.id}") if signal.body else {}
            match signal.kind:
                case "cancel":
                    self.cancel = self.cancel or str(body.get("reason") or DEFAULT_REASON)
                case "reconcile":
                    self.decisions[body["operation_id"]] = body["decision"]
                case "answer":
                    self.answers.append(body["input"])
            self.read.append(signal.id)


def cancel_signal(signal_id: str, reason: str | None = None) -> Signal:
    return Signal(signal_id, "cancel", pack({"reason": reason or DEFAULT_REASON}))


def reconcile_signal(signal_id: str, operation_id: str, decision: Mapping[str, Any]) -> Signal:
    return Signal(signal_id, "reconcile", pack({"operation_id": operation_id, "decision": dict(decision)}))


def answer_signal(signal_id: str, text: str) -> Signal:
    return Signal(signal_id, "answer", pack({"input": text}))


def resume_signal(signal_id: str) -> Signal:
    return Signal(signal_id, "resume")
