"""Signals as the runtime reads them: a cancel, other limits, decisions on operations and approvals, answers, steers and
follow-ups, a wish to go on.

Order of meaning (DESIGN section 6.2): cancel, budget, decisions, answers, steers. A cancel, an answer, a decision and
other limits are consumed by the save that acts on them, or that finds nothing to act on; a wish to go on by the first
save after it was read; steers and follow-ups by the save that keeps them in the record. A kind this
version does not know means the process cannot serve the run; a body that cannot be read is put aside with a diagnostic,
so that it never hides the cancel behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vv_agent.approvals import ApprovalAction, ApprovalDecision
from vv_agent.budget import RunBudgetLimits
from vv_agent.checkpoint.reconciliation import ReconciliationDecision
from vv_agent.checkpoint.record import Signal
from vv_agent.errors import CannotServe, ConfigError, VVAgentError
from vv_agent.messages import Message
from vv_agent.runtime.approval import FAILED
from vv_agent.runtime.transcript import clean, pack, storable, unpack

KINDS = frozenset({"cancel", "reconcile", "answer", "resume", "budget", "approval", "child", "steer", "follow_up"})
DEFAULT_REASON = "Run was cancelled."


@dataclass(frozen=True, slots=True)
class Decided:
    """What an operator decided about an operation; `attempt` is the one that was looked at (None: whichever it is)."""

    decision: ReconciliationDecision
    attempt: int | None
    signal_id: str


@dataclass
class Words:
    """What was said to a run and has not entered its transcript yet: messages on the wire, oldest first."""

    steers: list[dict[str, Any]] = field(default_factory=list)
    follow_ups: list[dict[str, Any]] = field(default_factory=list)

    def stored(self) -> dict[str, list[dict[str, Any]]]:
        kept = {"steers": self.steers, "follow_ups": self.follow_ups}
        return {name: list(value) for name, value in kept.items() if value}


@dataclass
class Inbox:
    """The unread signals of a run, sorted by what they mean."""

    cancel: str | None = None
    decisions: dict[str, Decided] = field(default_factory=dict)
    """By operation id; each is used once."""
    consumed: list[str] = field(default_factory=list)
    """Ids that the next save consumes."""
    faults: list[str] = field(default_factory=list)
    """What could not be read, for people."""
    _unknown: dict[str, str] = field(default_factory=dict)
    """Id -> kind of signals this version does not know."""
    _seen: set[str] = field(default_factory=set)
    _cancels: list[str] = field(default_factory=list)
    _answers: dict[str, str] = field(default_factory=dict)
    _children: dict[str, dict[str, Any]] = field(default_factory=dict)
    _limits: dict[str, RunBudgetLimits] = field(default_factory=dict)
    _approvals: dict[str, dict[str, Any]] = field(default_factory=dict)
    _words: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)

    def accept_cancel(self) -> None:
        """The run ends as cancelled: only that save consumes the cancel. Until then it stays unread in the store, which
        refuses every save that would start an unsafe call or a child. What this version does not know is moot then."""
        self.consumed += [*self._cancels, *self._unknown]
        self._cancels, self._unknown = [], {}

    def take(self, signals: Iterable[Signal]) -> None:
        """Read signals; one that was read already is skipped."""
        for signal in signals:
            if signal.id in self._seen:
                continue
            self._seen.add(signal.id)
            if signal.kind not in KINDS:
                self._unknown[signal.id] = signal.kind
                continue
            try:
                self._read(signal)
            except (VVAgentError, LookupError, TypeError, ValueError, AttributeError) as error:
                self.faults.append(f"signal {signal.id!r} ({signal.kind}) cannot be read: {error!r}")
                if signal.kind != "cancel":
                    self.consumed.append(signal.id)

    def _read(self, signal: Signal) -> None:
        if signal.kind == "cancel":  # it counts, whatever its body says
            self.cancel = self.cancel or DEFAULT_REASON
            self._cancels.append(signal.id)
        body = unpack(signal.body, f"signal {signal.id}") if signal.body else {}
        match signal.kind:
            case "cancel" if self.cancel == DEFAULT_REASON:
                self.cancel = str(body.get("reason") or DEFAULT_REASON)
            case "reconcile":
                decision = ReconciliationDecision.parse(body["decision"])
                self._drop(body["operation_id"])  # the newest counts
                self.decisions[body["operation_id"]] = Decided(decision, body.get("attempt"), signal.id)
            case "resume":
                self.consumed.append(signal.id)
            case "answer":
                self._answers[signal.id] = str(body["input"])
            case "approval":
                if body["action"] not in (*ApprovalAction, FAILED):
                    raise ValueError(f"action {body['action']!r}")
                self._approvals[signal.id] = {**body, "at": signal.at}
            case "child":
                self._children[signal.id] = {name: body[name] for name in ("task_id", "key", "status")} | body
            case "steer" | "follow_up":
                self._words[signal.id] = signal.kind, Message.from_wire(body["message"]).to_wire()
            case "budget":
                self._limits[signal.id] = RunBudgetLimits.from_wire(body["limits"])

    # Each is taken when it is acted on, or known to change nothing; until then it is unread and wakes a run that parks.

    def take_answers(self) -> list[str]:
        answers, self._answers = self._answers, {}
        self.consumed += answers
        return list(answers.values())

    def take_approvals(self) -> dict[str, dict[str, Any]]:
        """Decisions by request id."""
        approvals, self._approvals = self._approvals, {}
        self.consumed += approvals
        return approvals

    def take_children(self) -> list[dict[str, Any]]:
        """What became of runs below, in the order of their ends."""
        children, self._children = self._children, {}
        self.consumed += children
        return list(children.values())

    @property
    def hears(self) -> bool:
        """Whether something was said that waits to be handed over."""
        return bool(self._words)

    def give_words(self, words: Words) -> None:
        """Hand over what was said; the next save consumes it."""
        for kind, message in self._words.values():
            (words.steers if kind == "steer" else words.follow_ups).append(message)
        self.consumed += self._words
        self._words = {}

    @property
    def raises(self) -> bool:
        """Whether other limits wait to be taken."""
        return bool(self._limits)

    def take_limits(self) -> RunBudgetLimits | None:
        """What the budget was raised to, by the newest signal."""
        limits, self._limits = self._limits, {}
        self.consumed += limits
        return list(limits.values())[-1] if limits else None

    def check(self) -> None:
        """Raise `CannotServe` if there is a signal this version does not know; a cancel goes first."""
        if self._unknown and self.cancel is None:
            kind = next(iter(self._unknown.values()))
            raise CannotServe("signal_unknown", f"signal {kind!r} is not known to this version; upgrade this worker")

    def decided(self, operation_id: str, attempt: int) -> ReconciliationDecision | None:
        """Take the decision about this attempt at an operation; one about an earlier attempt is dropped."""
        found = self._drop(operation_id)
        if found is None or found.attempt in (None, attempt):
            return found.decision if found else None
        self.faults.append(f"a decision about attempt {found.attempt} of {operation_id} came at attempt {attempt}")
        return None

    def drop_decisions(self, but: str | None) -> None:
        """What was decided changes nothing any more, but for one operation."""
        for operation_id in [name for name in self.decisions if name != but]:
            self._drop(operation_id)

    def _drop(self, operation_id: str) -> Decided | None:
        found = self.decisions.pop(operation_id, None)
        if found is not None:
            self.consumed.append(found.signal_id)
        return found


def cancel_signal(signal_id: str, reason: str | None = None) -> Signal:
    return Signal(signal_id, "cancel", pack({"reason": reason or DEFAULT_REASON}))


def reconcile_signal(
    signal_id: str, operation_id: str, decision: Mapping[str, Any], attempt: int | None = None
) -> Signal:
    """`attempt` is the one the person looked at: the decision counts for no other. Raises the decision's own error."""
    wire = ReconciliationDecision.parse(decision).to_wire()
    return Signal(signal_id, "reconcile", pack({"operation_id": operation_id, "decision": wire, "attempt": attempt}))


def answer_signal(signal_id: str, text: str) -> Signal:
    if not isinstance(text, str) or not text.strip():
        raise ConfigError("answer_invalid", f"an answer is a text that is not blank, not {text!r}")
    return Signal(signal_id, "answer", pack({"input": clean(text)}))


def steer_signal(signal_id: str, text: str) -> Signal:
    """A message that enters before the next model call. `message_empty` for a blank one."""
    return Signal(signal_id, "steer", _message(text))


def follow_up_signal(signal_id: str, text: str) -> Signal:
    """The input of another segment, once the run would have ended. `message_empty` for a blank one."""
    return Signal(signal_id, "follow_up", _message(text))


def said(text: str) -> str:
    """A text that says something; `message_empty` for any other."""
    if not isinstance(text, str) or not text.strip():
        raise ConfigError("message_empty", f"a run cannot be told {text!r}; give a text that says something")
    return clean(text)


def _message(text: str) -> bytes:
    return pack({"message": Message("user", said(text)).to_wire()})


def approval_signal(request_id: str, decision: ApprovalDecision, digest: str) -> Signal:
    """A decision on a request; `digest` says which arguments were shown."""
    body = {
        "action": decision.action.value, "reason": clean(decision.reason), "metadata": storable(decision.metadata),
        "digest": digest,
    }  # fmt: skip
    return Signal(request_id, "approval", pack(body))


def provider_failed_signal(request_id: str, message: str, digest: str) -> Signal:
    """Whoever was to decide could not: the run fails with this message."""
    return Signal(request_id, "approval", pack({"action": FAILED, "reason": clean(message), "digest": digest}))


def budget_signal(signal_id: str, limits: RunBudgetLimits) -> Signal:
    """The limits that hold from now on, all of them: what was used before counts."""
    return Signal(signal_id, "budget", pack({"limits": limits.to_wire()}))


def resume_signal(signal_id: str) -> Signal:
    return Signal(signal_id, "resume")
