"""Connections: a bounded queue for each of what goes out, and the requests of the server that wait for an answer."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from vv_agent.app_server.protocol import NOTIFICATIONS, SERVER_REQUESTS, Part, Warned
from vv_agent.app_server.rpc import (
    INVALID_PARAMS,
    ErrorResponse,
    Response,
    RpcError,
    encode,
    error_response,
    notification,
    request,
    response,
)

log = logging.getLogger("vv_agent.app_server")
CAPACITY = 128
"""Messages that may wait for one connection."""
WEIGHT = 16 * 1024 * 1024
"""Bytes of them."""
PATIENCE = 10.0
"""Seconds that a message may wait in a full queue before the connection is closed: a client that reads steadily is not
too slow because much is said."""
_HOLD = 0.5
"""Seconds that a connection whose queue is full holds others up."""
_MOST, _HEAVIEST = 8, 4
"""How many times its capacity, and WEIGHT, may wait for one that is not waited for."""
Answered = Callable[[Response | ErrorResponse], None]


class Connection:
    """A client, with the queue of what it is told. Putting never blocks; whoever makes much waits for room before.

    One that is closed is told nothing any more; a name that comes again is another connection.
    """

    def __init__(
        self, name: str, capacity: int, *,
        clock: Callable[[], float], patience: float, too_slow: Callable[[Connection], object],
    ) -> None:  # fmt: skip
        self.name = name
        self.initialized = False
        self.speaks = True
        """False once the client has left: it can answer nothing that it would be asked."""
        self.silent: frozenset[str] = frozenset()
        """Notifications the client does not want."""
        self._capacity = capacity
        self._clock = clock
        self._patience = patience
        self._too_slow = too_slow
        self._lines: deque[tuple[float, bytes]] = deque()
        """With the time each was put."""
        self._bytes = 0
        self._held = 0.0
        """How long it held others up since its queue was full."""
        self._changed = threading.Condition()
        self._watched = False
        self._lost = False
        """More was to wait than may: it is about to be closed."""
        self._closed = False

    @property
    def open(self) -> bool:
        return not self._closed

    @property
    def over(self) -> bool:
        """It is closed, and everything was given out."""
        return self._closed and not self._lines

    @property
    def heavy(self) -> bool:
        """What waits for it has as many bytes as may wait."""
        return self._bytes >= WEIGHT

    def put(self, line: bytes) -> None:
        with self._changed:
            if self._closed or self._lost:
                return
            self._lost = len(self._lines) >= _MOST * self._capacity or self._bytes >= _HEAVIEST * WEIGHT
            if not self._lost:
                self._lines.append((self._clock(), line))
                self._bytes += len(line)
            if not self._has_room() and not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, name="vv-slow-reader", daemon=True).start()
            self._changed.notify_all()

    def get(self, timeout: float | None = None) -> bytes | None:
        """The next line; None when closed and empty, or after `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._lines), timeout)
            line = self._lines.popleft()[1] if self._lines else None
            if line is not None:
                self._bytes -= len(line)
            if self._has_caught_up():
                self._held = 0.0
            self._changed.notify_all()
            return line

    def wait_for_room(self, timeout: float | None = None) -> bool:
        """Until a message has room; False if it has none after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(self._has_room, timeout)

    def hold_up(self) -> None:
        """Wait for room as one of several: not for long, until it has caught up."""
        began = time.monotonic()
        self.wait_for_room(max(0.0, _HOLD - self._held))
        self._held += time.monotonic() - began

    def _has_room(self) -> bool:
        return self._closed or (len(self._lines) < self._capacity and self._bytes < WEIGHT)

    def _has_caught_up(self) -> bool:
        return self._closed or (len(self._lines) < self._capacity / 2 and self._bytes < WEIGHT / 2)

    def close(self, last: bytes | None = None) -> None:
        """Take no more. What waits is still given out; with `last`, only that."""
        self.speaks = False
        with self._changed:
            if self._closed:
                return
            if last is not None:
                self._lines.clear()
                self._lines.append((self._clock(), last))
                self._bytes = len(last)
            self._closed = True
            self._changed.notify_all()

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lost or self._has_caught_up(), 0.05)
                if self._closed or (self._has_caught_up() and not self._lost):
                    self._watched = False
                    return
                waited = self._clock() - self._lines[0][0] if self._lines else 0.0
                text = f"{len(self._lines)} messages of {self._bytes} bytes waited for {waited:.0f} s"
            if self._lost or waited >= self._patience:
                self.close(encode(notification("error/warning", Warned(message=text, code="slow_reader").to_wire())))
                log.warning("a client reads too slowly: %s; its connection is closed, its turns go on", text)
                self._too_slow(self)
                return


class OutgoingRouter:
    """Takes what the server says to its connections. `receive` gives a connection's messages, in order."""

    def __init__(
        self, capacity: int = CAPACITY, *, clock: Callable[[], float] = time.monotonic, patience: float = PATIENCE
    ) -> None:
        self.too_slow: Callable[[Connection], object] = lambda connection: None
        """Told of a connection that was closed because it read too slowly."""
        self._capacity = capacity
        self._clock = clock
        self._patience = patience
        self._boxes: dict[str, Connection] = {}
        self._pending: dict[str, tuple[Connection, Answered]] = {}
        self._lock = threading.Lock()

    def connect(self, name: str) -> Connection:
        """Open a connection; one of this name is found no more."""
        connection = Connection(
            name, self._capacity, clock=self._clock, patience=self._patience, too_slow=self.too_slow
        )
        with self._lock:
            self._boxes[name] = connection
        return connection

    def find(self, connection: Connection | str) -> Connection | None:
        """The connection of a name."""
        return self._boxes.get(connection) if isinstance(connection, str) else connection

    def connections(self) -> list[Connection]:
        with self._lock:
            return list(self._boxes.values())

    def close(self, connection: Connection) -> None:
        """Tell it no more; what waits can be received. The requests it was to answer are dropped."""
        connection.close()
        with self._lock:
            self._pending = {name: one for name, one in self._pending.items() if one[0] is not connection}

    def forget(self, connection: Connection) -> None:
        """Nobody receives its messages any more."""
        with self._lock:
            if self._boxes.get(connection.name) is connection:
                del self._boxes[connection.name]

    def receive(self, connection: Connection | str, timeout: float | None = None) -> bytes | None:
        """The next line for a connection; None when it is closed and has no more, or after `timeout` seconds."""
        found = self.find(connection)
        line = None if found is None else found.get(timeout)
        if found is not None and found.over:
            self.forget(found)
        return line

    def wait_for_room(self, connections: Iterable[Connection], timeout: float | None = None) -> bool:
        return all(connection.wait_for_room(timeout) for connection in connections)

    def wait_for_readers(self, connections: Collection[Connection]) -> None:
        """Until a message has room. One of several that does not read holds the others up for a moment only."""
        for connection in connections:
            if len(connections) == 1:
                connection.wait_for_room()
            else:
                connection.hold_up()

    def respond(self, connection: Connection, request_id: int | str, result: Part) -> None:
        connection.put(encode(response(request_id, result.to_wire())))

    def refuse(self, connection: Connection, request_id: int | str | None, error: RpcError) -> None:
        connection.put(encode(error_response(error, request_id)))

    def notify(self, connections: Iterable[Connection], method: str, params: Part | Mapping[str, Any]) -> None:
        """Tell connections, unless they do not want to hear it."""
        assert method in NOTIFICATIONS
        line = encode(notification(method, params.to_wire() if isinstance(params, Part) else dict(params)))
        for connection in list(connections):
            if method not in connection.silent:
                connection.put(line)

    def request(
        self, connection: Connection | str, method: str, request_id: str, params: Part, answered: Answered
    ) -> None:
        """Ask the client; `answered` is called in the thread that reads. `RpcError` while this id waits already."""
        assert method in SERVER_REQUESTS
        if (found := self.find(connection)) is None:
            return
        with self._lock:
            if request_id in self._pending:
                raise RpcError(INVALID_PARAMS, f"server request {request_id!r} waits for an answer already")
            self._pending[request_id] = (found, answered)
        found.put(encode(request(request_id, method, params.to_wire())))

    def answer(self, connection: Connection, message: Response | ErrorResponse) -> None:
        """A client's answer; one that nobody waits for is dropped."""
        with self._lock:
            pending = self._pending.get(message.id) if isinstance(message.id, str) else None
            if pending is None or pending[0] is not connection:
                return
            del self._pending[str(message.id)]
        pending[1](message)

    def withdraw(self, request_id: str) -> None:
        """Wait for that answer no longer."""
        with self._lock:
            self._pending.pop(request_id, None)
