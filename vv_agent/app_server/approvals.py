"""Approvals: what the runs of turns wait for, sent to the client that owns the turn and answered once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import ValidationError

from vv_agent.app_server.outgoing import Connection, OutgoingRouter
from vv_agent.app_server.protocol import ApprovalDecision as Answer
from vv_agent.app_server.protocol import ApprovalRequestParams, ApprovalResolveParams
from vv_agent.app_server.rpc import INVALID_PARAMS, ErrorResponse, Response, RpcError
from vv_agent.approvals import ApprovalAction, ApprovalDecision
from vv_agent.errors import ConfigError, RunFinished, VVAgentError

log = logging.getLogger("vv_agent.app_server")
_AGAIN = 1.0
"""Seconds until a decision that the store did not take is tried again."""


@dataclass(eq=False)
class Asking:
    """Who may be asked about a turn: its owner, a connection, or nobody while it is gone.

    `durable`: the run waits also when nobody is there, unless its last owner left for good (`abandoned`). `timeout`:
    seconds for an answer; None: the run itself has a deadline.
    """

    durable: bool
    timeout: float | None
    approve: Callable[[str, ApprovalDecision], None]
    owner: Connection | None
    abandoned: bool = False
    open: dict[str, Pending] = field(default_factory=dict)


@dataclass(eq=False)
class Pending:
    """A request that waits; `asked` is the connection it was sent to, `decision` what the store has not taken yet."""

    params: ApprovalRequestParams
    asking: Asking
    asked: Connection | None = None
    decision: ApprovalDecision | None = None
    timer: threading.Timer | None = None
    deciding: threading.Lock = field(default_factory=threading.Lock)


class Approvals:
    """The open requests of all turns. Each is decided once; a later answer finds nothing."""

    def __init__(self, router: OutgoingRouter) -> None:
        self._router = router
        self._pending: dict[str, Pending] = {}
        self._lock = threading.Lock()

    def open(self, asking: Asking, params: ApprovalRequestParams) -> None:
        """A run waits for this. Without an owner, it waits only if it is durable and one may come back."""
        pending = Pending(params, asking)
        with self._lock:
            if params.request_id in self._pending:
                return
            self._pending[params.request_id] = asking.open[params.request_id] = pending
        if asking.owner is not None:
            self._ask(pending)
        elif asking.abandoned or not asking.durable:
            self._time_out(pending, "connection closed")

    def own(self, asking: Asking, connection: Connection) -> None:
        """A connection is there for a turn that nobody owns: it is asked what is open, unless it has left."""
        if asking.owner is None and connection.speaks:
            asking.owner, asking.abandoned = connection, False
            for pending in list(asking.open.values()):
                self._ask(pending)

    def leave(self, asking: Asking, *, for_good: bool) -> None:
        """The owner is gone. What a durable run asks stays open, unless the owner left `for_good`; what was decided
        is."""
        asking.owner, asking.abandoned = None, for_good
        for pending in [one for one in asking.open.values() if one.decision is None]:
            self._stop_asking(pending)
            if for_good or not asking.durable:
                self._time_out(pending, "connection closed")

    def resolve(self, connection: Connection, params: ApprovalResolveParams) -> None:
        """`approval/resolve`. `RpcError` -32602 unless it matches an open request of this connection."""
        pending = self._pending.get(params.request_id)
        wanted = (connection, params.thread_id, params.turn_id)
        if pending is None or (pending.asked, pending.params.thread_id, pending.params.turn_id) != wanted:
            raise _unknown(params.request_id)
        if not self._decide(pending, _decision(params)):
            raise _unknown(params.request_id)

    def settle(self, request_id: str) -> None:
        """It was decided, wherever that was."""
        with self._lock:
            pending = self._pending.pop(request_id, None)
        if pending is not None:
            pending.asking.open.pop(request_id, None)
            self._stop_asking(pending)

    def _ask(self, pending: Pending) -> None:
        connection, asking = pending.asking.owner, pending.asking
        if connection is None or pending.asked is connection or pending.decision is not None:
            return
        pending.asked = connection
        if asking.timeout is not None:
            _later(pending, asking.timeout, lambda: self._time_out(pending))
        name = pending.params.request_id
        self._router.request(
            connection, "approval/request", name, pending.params, lambda message: self._answered(pending, message)
        )

    def _stop_asking(self, pending: Pending) -> None:
        self._router.withdraw(pending.params.request_id)
        pending.asked = None
        if pending.timer is not None:
            pending.timer.cancel()

    def _answered(self, pending: Pending, message: Response | ErrorResponse) -> None:
        try:
            answer = Answer.from_wire(message.result if isinstance(message, Response) else None)
        except ValidationError:
            answer = Answer(decision="deny", reason="invalid approval response")
        self._tell(pending, _decision(answer))

    def _time_out(self, pending: Pending, reason: str | None = None) -> None:
        self._tell(pending, ApprovalDecision.timeout(reason))

    def _tell(self, pending: Pending, decision: ApprovalDecision) -> None:
        """Decide where nobody could be told of a fault: again until the store takes it, or somebody was faster."""
        pending.decision = decision
        try:
            self._decide(pending, decision)
        except VVAgentError as error:
            log.warning("the decision on approval %s is tried again: %s", pending.params.request_id, error)
            _later(pending, _AGAIN, lambda: self._tell(pending, decision))

    def _decide(self, pending: Pending, decision: ApprovalDecision) -> bool:
        """Tell the run, once; False if somebody was faster."""
        name = pending.params.request_id
        with pending.deciding:
            if self._pending.get(name) is not pending:
                return False
            taken = True
            try:
                pending.asking.approve(name, decision)
            except (ConfigError, RunFinished):  # decided elsewhere, or the run is over: it says so itself
                taken = False
            self.settle(name)
        return taken


def _later(pending: Pending, seconds: float, work: Callable[[], None]) -> None:
    if pending.timer is not None:
        pending.timer.cancel()
    pending.timer = threading.Timer(seconds, work)
    pending.timer.daemon = True
    pending.timer.start()


def _decision(answer: Answer) -> ApprovalDecision:
    action = ApprovalAction(answer.decision)
    return ApprovalDecision(action=action, reason=answer.reason or "", metadata=answer.metadata or {})


def _unknown(request_id: str) -> RpcError:
    return RpcError(INVALID_PARAMS, f"unknown approval request: {request_id[:200]}")
