"""Interactive sessions: a conversation of many turns with one agent, each turn a run (or the next segment of one that
waits for its user).

A thin layer over the Runner: the history is a `Session`, a steer is the run's own signal, and follow-ups are turns that
wait in a queue of the session.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vv_agent._facade import FUNCTION, MAPPING, TEXT, Kind, check_kinds, having
from vv_agent.agent import Agent
from vv_agent.approvals import ApprovalDecision
from vv_agent.config import RunConfig
from vv_agent.errors import ConfigError, RunFinished, StoreError, VVAgentError
from vv_agent.events import RunEvent
from vv_agent.messages import Message
from vv_agent.result import RunResult
from vv_agent.results import AgentStatus
from vv_agent.run_handle import RunHandle
from vv_agent.runner import Runner
from vv_agent.runtime.inbox import said
from vv_agent.sessions.base import decode_item, encode_item
from vv_agent.sessions.memory import MemorySession

if TYPE_CHECKING:
    from vv_agent.sessions.base import Session

_NOT_WAITING = frozenset({"run_not_waiting", "run_finished", "checkpoint_not_found"})
"""Codes of a run that takes no answer any more."""


class AgentSessionEventGapError(VVAgentError):
    """A subscriber read too slowly: `missed` events were dropped. It may go on reading after them."""

    def __init__(self, missed: int) -> None:
        super().__init__(
            "session_event_gap", f"{missed} events were dropped; read faster, or subscribe with a larger capacity"
        )
        self.missed = missed


@dataclass(frozen=True, slots=True)
class AgentSessionEvent:
    """An event of a turn, with its number in the session from 1."""

    session_id: str
    number: int
    event: RunEvent


@dataclass(frozen=True, slots=True)
class AgentSessionOptions:
    """What a session is made of. `session` is where its history is kept (default: in this process)."""

    agent: Agent
    workspace: str | Path | None = None
    shared_state: Mapping[str, Any] = field(default_factory=dict)
    session_id: str | None = None
    session: Session | None = None


@dataclass(frozen=True, slots=True)
class AgentSessionState:
    """A snapshot of a session."""

    session_id: str
    running: bool
    closed: bool
    messages: tuple[Message, ...]
    shared_state: Mapping[str, Any]
    latest_run: RunResult | None
    steering: tuple[str, ...]
    follow_ups: tuple[str, ...]


class InteractiveAgentClient:
    """Makes sessions on a runner; `run_config` stands over the runner's default in each of their turns.

    Example:
        >>> from vv_agent import Agent, InteractiveAgentClient, NoToolPolicy, Runner
        >>> from vv_agent.testing import ScriptedProvider
        >>> client = InteractiveAgentClient(Runner(model_provider=ScriptedProvider(["Hello."])))
        >>> agent = Agent(name="greeter", instructions="Greet.", no_tool_policy=NoToolPolicy.FINISH)
        >>> with client.create_session(agent=agent) as session:
        ...     session.query("Hi")
        'Hello.'
    """

    def __init__(self, runner: Runner | None = None, *, run_config: RunConfig | None = None) -> None:
        given = {"runner": runner, "run_config": run_config}
        check_kinds("run_config_invalid", "InteractiveAgentClient", given, _CLIENT)
        self._runner = runner or Runner()
        self._config = run_config or RunConfig()
        checkpoint = self._config.checkpoint_config
        if self._config.checkpoint_key is not None or (checkpoint is not None and checkpoint.key is not None):
            raise ConfigError(
                "run_config_invalid", "each turn is a run with a key of its own; give a CheckpointConfig without a key"
            )

    def create_session(
        self,
        *,
        agent: Agent,
        workspace: str | Path | None = None,
        shared_state: Mapping[str, Any] | None = None,
        session_id: str | None = None,
        session: Session | None = None,
    ) -> AgentSession:
        """A session that is idle. `session_id_mismatch` when the id is not that of the storage."""
        if not isinstance(agent, Agent):
            raise ConfigError("run_config_invalid", f"agent of a session must be an Agent, not {agent!r}")
        given = {"shared_state": shared_state, "session": session, "session_id": session_id}
        check_kinds("session_invalid", "create_session", given, _SESSION)
        options = AgentSessionOptions(agent, workspace, shared_state or {}, session_id, session)
        return AgentSession(self._runner, options, self._config)


_CLIENT = {
    "runner": Kind("a Runner", lambda given: isinstance(given, Runner)),
    "run_config": Kind("RunConfig(...)", lambda given: isinstance(given, RunConfig)),
}
_SESSION = {
    "shared_state": MAPPING,
    "session": having("a Session, e.g. SqliteSession(path, id)", "session_id", "get_items", "add_items", "clear"),
    "session_id": TEXT,
}


class AgentSession:
    """A conversation. One turn at a time: `prompt`, `continue_run` and `query` block until it is over; the other
    methods may be called meanwhile, from any thread.

    Raised are `ConfigError` with code `message_empty`, `session_running`, `session_closed`, `session_not_running`,
    `session_no_prompt`, and what `Runner.run_sync` raises. It is a context manager that closes it.
    """

    def __init__(self, runner: Runner, options: AgentSessionOptions, run_config: RunConfig) -> None:
        given = options.session
        self.session_id = options.session_id or (given.session_id if given else f"session_{secrets.token_hex(16)}")
        if given is not None and given.session_id != self.session_id:
            raise ConfigError(
                "session_id_mismatch",
                f"session id {self.session_id!r} is not that of the storage, {given.session_id!r}; give one of them",
            )
        self._session: Session = given or MemorySession(self.session_id)
        self._runner, self._agent = runner, options.agent
        workspace = options.workspace if options.workspace is not None else run_config.workspace
        self._config = replace(run_config, session=self._session, workspace=workspace)
        self._shared_state: dict[str, Any] = deepcopy({**run_config.shared_state, **options.shared_state})
        self._lock = threading.RLock()
        self._running = self._closed = self._unwanted = False
        self._handle: RunHandle | None = None
        self._waiting: RunHandle | None = None
        """The run whose question the next turn answers."""
        self._latest: RunResult | None = None
        self._steers: deque[str] = deque()
        self._follow_ups: deque[str] = deque()
        self._over: set[str] = set()
        """Run ids of earlier turns: a handle that follows a run shows their events again."""
        self._subscribers: list[Callable[[AgentSessionEvent | None], object]] = []
        self._number = 0

    # Turns.

    def prompt(self, prompt: str, *, auto_follow_up: bool = True) -> RunResult:
        """Take a turn; then one for each follow-up, first come first served, as long as turns complete. The result is
        that of the last turn."""
        return self._take(lambda: said(prompt), auto_follow_up=auto_follow_up)

    def continue_run(self, prompt: str | None = None) -> RunResult:
        """Take one turn with this prompt, else with the oldest that is queued (steers first)."""
        return self._take(lambda: self._queued() if prompt is None else said(prompt), auto_follow_up=False)

    def query(self, prompt: str, *, require_completed: bool = True) -> str:
        """The text a turn ends with. Raises `run_not_completed` when it ended otherwise, unless that is allowed."""
        result = self.prompt(prompt)
        if require_completed and result.status is not AgentStatus.COMPLETED:
            raise VVAgentError(
                "run_not_completed",
                f"the turn of session {self.session_id!r} is {result.status}: {result.final_output}",
            )
        return str(result.final_output or "")

    def _take(self, first: Callable[[], str], *, auto_follow_up: bool) -> RunResult:
        with self._turns():
            result = self._turn(first())
            while auto_follow_up and result.status is AgentStatus.COMPLETED and (text := self._next_follow_up()):
                result = self._turn(text)
            return result

    def _next_follow_up(self) -> str | None:
        with self._lock:
            return self._follow_ups.popleft() if self._follow_ups and not self._closed else None

    @contextmanager
    def _turns(self) -> Iterator[None]:
        with self._lock:
            self._check_idle()
            self._running, self._unwanted = True, False
        try:
            yield
        finally:
            with self._lock:
                self._running, self._handle = False, None
            self._end_subscriptions()

    def _turn(self, text: str) -> RunResult:
        handle = self._begin(text)
        try:
            for event in handle.events():
                if event.run_id not in self._over:
                    self._publish(event)
            result = handle.result()
        finally:
            handle.leave("The turn was interrupted.")
        with self._lock:
            self._over |= {event.run_id for event in result.events}
            waits = result.status is AgentStatus.WAIT_USER
            self._handle, self._latest, self._waiting = None, result, handle if waits else None
            self._shared_state = deepcopy(dict(result.raw_result.shared_state))
        return result

    def _begin(self, text: str) -> RunHandle:
        """Start the turn, with the steers that came while nothing ran."""
        if self._waiting is not None and (answering := self._answer(self._waiting, text)) is not None:
            return answering
        config = replace(self._config, shared_state=deepcopy(self._shared_state))
        start = self._runner.prepare(self._agent, text, config, live=True)
        with self._lock:
            self._handle = start.handle
            self._send_steers(start.handle)
            unwanted, self._unwanted = self._closed or self._unwanted, False
        if unwanted:  # it was closed or cancelled while the turn was prepared
            start.handle.cancel()
        start.begin()
        return start.handle

    def _answer(self, waiting: RunHandle, text: str) -> RunHandle | None:
        """Go on with the run that waits; None when it waits no more: somebody else answered or cancelled it."""
        with self._lock:
            self._waiting = None
            try:
                self._send_steers(waiting)
                self._handle = waiting.resume(payload=text)
            except StoreError:  # it may not have got the answer
                self._waiting = waiting
                raise
            except VVAgentError as error:
                if error.code not in _NOT_WAITING:
                    raise
                return None
            return self._handle

    def _send_steers(self, handle: RunHandle) -> None:
        with suppress(RunFinished):
            while self._steers:
                handle.steer(self._steers[0])
                self._steers.popleft()

    def _queued(self) -> str:
        with self._lock:
            for waiting in (self._steers, self._follow_ups):
                if waiting:
                    return waiting.popleft()
        raise ConfigError("session_no_prompt", f"session {self.session_id!r} has no queued prompt; give one")

    # While a turn is under way.

    def steer(self, prompt: str) -> None:
        """Say something before the next model call of the turn, or of the next turn when none is under way."""
        said(prompt)
        with self._lock:
            self._check_open()
            if self._handle is not None:
                with suppress(RunFinished):
                    self._handle.steer(prompt)
                    return
            self._steers.append(prompt)

    def follow_up(self, prompt: str) -> None:
        """Queue a turn for after this one."""
        said(prompt)
        with self._lock:
            self._check_open()
            self._follow_ups.append(prompt)

    def clear_queues(self) -> None:
        """Forget steers that no run took yet, and follow-ups."""
        with self._lock:
            self._steers.clear()
            self._follow_ups.clear()

    def cancel(self) -> bool:
        """Cancel the turn under way; False when there is none, or it is being cancelled."""
        with self._lock:
            handle = self._handle
            if handle is None and self._running and not self._unwanted:  # it is being prepared
                self._unwanted = True
                return True
        return handle is not None and handle.cancel()

    def approve(self, request_id: str, decision: ApprovalDecision) -> None:
        """Decide on a tool call of the turn that waits."""
        handle = self._handle
        if handle is None:
            raise ConfigError("session_not_running", f"session {self.session_id!r} has no turn under way to approve in")
        handle.approve(request_id, decision)

    # Looking.

    @property
    def session(self) -> Session:
        """Where the history is kept."""
        return self._session

    @property
    def messages(self) -> list[Message]:
        """The history."""
        return list(self._session.get_items())

    @property
    def shared_state(self) -> dict[str, Any]:
        """A copy of the state the next turn begins with."""
        return deepcopy(self._shared_state)

    @property
    def latest_run(self) -> RunResult | None:
        """The result of the last turn."""
        return self._latest

    @property
    def running(self) -> bool:
        """Whether a turn is under way."""
        return self._running

    @property
    def closed(self) -> bool:
        """Whether the session was closed."""
        return self._closed

    @property
    def active_run_handle(self) -> RunHandle | None:
        """The handle of the turn under way."""
        return self._handle

    def state(self) -> AgentSessionState:
        """Everything at once."""
        with self._lock:
            return AgentSessionState(
                self.session_id, self._running, self._closed, tuple(self.messages), self.shared_state, self._latest,
                tuple(self._steers), tuple(self._follow_ups),
            )  # fmt: skip

    def subscribe(
        self, listener: Callable[[AgentSessionEvent], object] | None = None, *, capacity: int = 256
    ) -> AgentSessionSubscription:
        """Events from here on: given to the listener in the thread of the turn (its errors are its own), or read from
        the subscription, which keeps `capacity` of them."""
        check_kinds("session_invalid", "subscribe", {"listener": listener}, {"listener": FUNCTION})
        subscription = AgentSessionSubscription(self, listener, capacity)
        with self._lock:
            self._check_open()
            self._subscribers.append(subscription.put)
        return subscription

    # Changing.

    def replace_messages(self, messages: Sequence[Message]) -> None:
        """Write another history, also in the storage; only while no turn is under way.

        What cannot be stored is refused before the old one is touched (`session_item_invalid`); when the storage fails
        in between, the old one is written back.
        """
        if isinstance(messages, str) or not isinstance(messages, Sequence):
            raise ConfigError("session_item_invalid", f"a history is a list of Message, not {messages!r}")
        after = [decode_item(encode_item(message)) for message in messages]
        with self._lock:
            self._check_idle()
            before = self._session.get_items()
            self._session.clear()
            try:
                self._session.add_items(after)
            except BaseException:
                self._session.clear()
                self._session.add_items(before)
                raise
            self._waiting = None

    def replace_shared_state(self, shared_state: Mapping[str, Any]) -> None:
        """Begin the next turn with another state; only while no turn is under way."""
        if not isinstance(shared_state, Mapping):
            raise ConfigError("session_invalid", f"shared state must be a mapping, not {shared_state!r}")
        with self._lock:
            self._check_idle()
            self._shared_state, self._waiting = deepcopy(dict(shared_state)), None

    def close(self) -> None:
        """Cancel the turn under way and take no more. The storage keeps the history."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            handle = self._handle
        if handle is not None:
            handle.cancel("The session was closed.")
        self._end_subscriptions()

    def __enter__(self) -> AgentSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Details.

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError(
                "session_closed", f"session {self.session_id!r} is closed; create another one on its storage"
            )

    def _check_idle(self) -> None:
        self._check_open()
        if self._running:
            raise ConfigError("session_running", f"session {self.session_id!r} is already running; steer it, or wait")

    def _end_subscriptions(self) -> None:
        """Once the session is closed and its last turn is over."""
        with self._lock:
            over = self._subscribers if self._closed and not self._running else []
            self._subscribers = [tell for tell in self._subscribers if tell not in over]
        for tell in over:
            tell(None)

    def _publish(self, event: RunEvent) -> None:
        with self._lock:
            self._number += 1
            told = AgentSessionEvent(self.session_id, self._number, event)
            subscribers = tuple(self._subscribers)
        for tell in subscribers:
            tell(told)

    def unsubscribe(self, subscription: AgentSessionSubscription) -> None:
        """Tell a subscriber no more."""
        with self._lock:
            self._subscribers = [tell for tell in self._subscribers if tell != subscription.put]


class AgentSessionSubscription:
    """The events of a session since it was made: iterate it, or let its listener be called. `close` ends it."""

    def __init__(
        self, session: AgentSession, listener: Callable[[AgentSessionEvent], object] | None, capacity: int
    ) -> None:
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise ConfigError("session_capacity_invalid", f"capacity {capacity!r} must be a whole number above 0")
        self._session, self._listener, self._capacity = session, listener, capacity
        self._items: deque[AgentSessionEvent] = deque()
        self._more = threading.Condition()
        self._missed = 0
        self._over = False

    def put(self, event: AgentSessionEvent | None) -> None:
        """For the session."""
        if self._listener is not None:
            if event is not None:
                with suppress(Exception):
                    self._listener(event)
            return
        with self._more:
            if event is None:
                self._over = True
            elif len(self._items) == self._capacity:
                self._items.popleft()
                self._missed += 1
            if event is not None:
                self._items.append(event)
            self._more.notify_all()

    def get(self, timeout: float | None = None) -> AgentSessionEvent | None:
        """The next event; None once the session or the subscription is closed and everything was read. `TimeoutError`
        after `timeout` seconds, `AgentSessionEventGapError` when events were dropped."""
        with self._more:
            if not self._more.wait_for(lambda: self._items or self._over, timeout):
                raise TimeoutError(f"no event within {timeout:g} s")
            if self._missed:
                missed, self._missed = self._missed, 0
                raise AgentSessionEventGapError(missed)
            return self._items.popleft() if self._items else None

    def __iter__(self) -> Iterator[AgentSessionEvent]:
        while (event := self.get()) is not None:
            yield event

    def close(self) -> None:
        """No more events come."""
        self._session.unsubscribe(self)
        self.put(None)
