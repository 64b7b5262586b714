"""Clients of an App Server: one that blocks, and the same for `await`."""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Concatenate, ParamSpec, Self, TypeAlias

from pydantic import BaseModel

from vv_agent.app_server.rpc import (
    ErrorResponse,
    JsonRpcMessage,
    RequestId,
    Response,
    RpcError,
    encode,
    notification,
    request,
    response,
)
from vv_agent.app_server.transport import AppServerTransport, StdioJsonlTransport
from vv_agent.errors import VVAgentError
from vv_agent.following import in_thread

P = ParamSpec("P")
Params: TypeAlias = BaseModel | Mapping[str, Any]
_MOST = 10_000
"""Messages the backlog takes before reading stops until somebody takes one, or asks for something."""


class AppServerClientError(VVAgentError):
    """A request came to nothing: `app_server_refused` (with the server's `rpc_code` and `data`), `app_server_closed`,
    `app_server_timeout`."""

    def __init__(self, code: str, message: str, *, rpc_code: int | None = None, data: Any = None) -> None:
        super().__init__(code, message)
        self.rpc_code = rpc_code
        self.data = data


class AppServerClient:
    """Speaks to a server over a transport. Parameters are mappings in the words of the wire, or models of `protocol`;
    results are plain JSON objects.

    While one call waits for its answer, every other message is kept, in order, for `next_message`. May be used from
    several threads. `timeout` is that of a call in seconds; None waits as long as it takes.
    """

    def __init__(self, transport: AppServerTransport, *, timeout: float | None = None) -> None:
        self._transport = transport
        self._timeout = timeout
        self._numbers = itertools.count(1)
        self._backlog: deque[dict[str, Any]] = deque()
        self._answers: dict[RequestId, Response | ErrorResponse | None] = {}
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._ended = False
        self._child: subprocess.Popen[bytes] | None = None
        threading.Thread(target=self._read, name="vv-app-client", daemon=True).start()

    @classmethod
    def starting(cls, command: Sequence[str], *, timeout: float | None = None) -> Self:
        """Start a server as a child process and speak to it; `close` ends it."""
        transport, child = StdioJsonlTransport.starting(command)
        client = cls(transport, timeout=timeout)
        client._child = child
        return client

    def initialize(self, info: Params) -> dict[str, Any]:
        """Say hello, with a `clientInfo` such as {"name": "editor"}, or all of the parameters."""
        given = _wire(info)
        answer = self.call("initialize", given if "clientInfo" in given else {"clientInfo": given})
        self._send(notification("initialized"))
        return answer

    def start_thread(self, params: Params) -> dict[str, Any]:
        return self.call("thread/start", params)

    def resume_thread(self, params: Params) -> dict[str, Any]:
        return self.call("thread/resume", params)

    def read_thread(self, params: Params) -> dict[str, Any]:
        return self.call("thread/read", params)

    def list_threads(self, params: Params | None = None) -> dict[str, Any]:
        return self.call("thread/list", params)

    def archive_thread(self, params: Params) -> dict[str, Any]:
        return self.call("thread/archive", params)

    def unsubscribe_thread(self, params: Params) -> dict[str, Any]:
        return self.call("thread/unsubscribe", params)

    def start_turn(self, params: Params) -> dict[str, Any]:
        return self.call("turn/start", params)

    def interrupt_turn(self, params: Params) -> dict[str, Any]:
        return self.call("turn/interrupt", params)

    def resume_turn(self, params: Params) -> dict[str, Any]:
        return self.call("turn/resume", params)

    def steer_turn(self, params: Params) -> dict[str, Any]:
        return self.call("turn/steer", params)

    def follow_up_turn(self, params: Params) -> dict[str, Any]:
        return self.call("turn/followUp", params)

    def resolve_approval_request(self, params: Params) -> dict[str, Any]:
        """Decide by a request of one's own (`approval/resolve`)."""
        return self.call("approval/resolve", params)

    def list_models(self, params: Params | None = None) -> dict[str, Any]:
        return self.call("model/list", params)

    def export_schema(self) -> dict[str, Any]:
        return self.call("schema/export")

    def resolve_approval(self, params: Params) -> None:
        """Decide by answering the server's request: `requestId`, `decision`, and perhaps `reason` and `metadata`."""
        answer = _wire(params)
        request_id = answer.pop("requestId")
        self.send_response(request_id, {k: v for k, v in answer.items() if k not in ("threadId", "turnId")})

    def send_response(self, request_id: RequestId, result: Any) -> None:
        """Answer a request of the server."""
        self._send(response(request_id, result))

    def next_message(self, *, timeout: float | None = None) -> dict[str, Any] | None:
        """The next notification or request of the server; None after `timeout` seconds, or when it is gone."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or bool(self._backlog), timeout)
            message = self._backlog.popleft() if self._backlog else None
            self._changed.notify_all()
            return message

    def wait_for_message(self, timeout: float | None, given_up: threading.Event) -> bool:
        """Wait as `next_message`, or until it was given up and `wake` was called; True if there is one to take."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or bool(self._backlog) or given_up.is_set(), timeout)
            return bool(self._backlog)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Hang up. A server that was started here is given ten seconds to end."""
        self._transport.close()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._child is not None:
            try:
                self._child.wait(10.0)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()

    def call(self, method: str, params: Params | None = None) -> dict[str, Any]:
        """Any request; `AppServerClientError` when it is refused or gets no answer."""
        number = next(self._numbers)
        with self._changed:
            self._answers[number] = None
            self._changed.notify_all()
        try:
            self._send(request(number, method, None if params is None else _wire(params)))
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._answers[number] is not None, self._timeout)
                answer, ended = self._answers[number], self._ended
        finally:
            with self._changed:
                del self._answers[number]
        if isinstance(answer, ErrorResponse):
            error = answer.error
            raise AppServerClientError(
                "app_server_refused", f"{method}: {error.message}", rpc_code=error.code, data=error.data
            )
        if answer is None:
            why = "is gone" if ended else "gave no answer in time"
            raise AppServerClientError(
                "app_server_closed" if ended else "app_server_timeout", f"{method}: the server {why}"
            )
        result: dict[str, Any] = answer.result
        return result

    def _send(self, message: dict[str, Any]) -> None:
        try:
            with self._sending:
                self._transport.send(encode(message))
        except OSError as error:
            raise AppServerClientError("app_server_closed", f"the server is gone: {error}") from error

    def _read(self) -> None:
        while not self._ended:
            try:
                line = self._transport.receive()
            except RpcError:  # a line was skipped: whoever waits for it would do so for ever
                line = None
            try:
                message = None if line is None else JsonRpcMessage.parse(line)
            except RpcError:  # not of this protocol
                continue
            with self._changed:
                if message is None:
                    self._ended = True
                elif not isinstance(message, Response | ErrorResponse) or message.id not in self._answers:
                    self._keep(message)
                else:
                    self._answers[message.id] = message
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._ended or bool(self._answers) or len(self._backlog) < _MOST)

    def _keep(self, message: Any) -> None:
        wire = message.to_wire()
        if not isinstance(message, Response | ErrorResponse) and wire.get("params") is None:
            wire.pop("params", None)
        self._backlog.append(wire)


def _wire(params: Params) -> dict[str, Any]:
    return params.model_dump(mode="json", by_alias=True) if isinstance(params, BaseModel) else dict(params)


def _awaitable(method: Callable[Concatenate[AppServerClient, P], Any]) -> Any:
    async def call(self: AsyncAppServerClient, *args: P.args, **options: P.kwargs) -> Any:
        return await in_thread(lambda: method(self.blocking, *args, **options))

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


class AsyncAppServerClient:
    """The same methods for `await`, on a blocking client. Calls may wait side by side."""

    def __init__(self, transport: AppServerTransport, *, timeout: float | None = None) -> None:
        self.blocking = AppServerClient(transport, timeout=timeout)

    initialize = _awaitable(AppServerClient.initialize)
    start_thread = _awaitable(AppServerClient.start_thread)
    resume_thread = _awaitable(AppServerClient.resume_thread)
    read_thread = _awaitable(AppServerClient.read_thread)
    list_threads = _awaitable(AppServerClient.list_threads)
    archive_thread = _awaitable(AppServerClient.archive_thread)
    unsubscribe_thread = _awaitable(AppServerClient.unsubscribe_thread)
    start_turn = _awaitable(AppServerClient.start_turn)
    interrupt_turn = _awaitable(AppServerClient.interrupt_turn)
    resume_turn = _awaitable(AppServerClient.resume_turn)
    steer_turn = _awaitable(AppServerClient.steer_turn)
    follow_up_turn = _awaitable(AppServerClient.follow_up_turn)
    resolve_approval_request = _awaitable(AppServerClient.resolve_approval_request)
    list_models = _awaitable(AppServerClient.list_models)
    export_schema = _awaitable(AppServerClient.export_schema)
    resolve_approval = _awaitable(AppServerClient.resolve_approval)
    send_response = _awaitable(AppServerClient.send_response)
    close = _awaitable(AppServerClient.close)
    call = _awaitable(AppServerClient.call)

    async def next_message(self, *, timeout: float | None = None) -> dict[str, Any] | None:
        """As that of the blocking client. A wait that is cancelled takes no message."""
        end = None if timeout is None else time.monotonic() + timeout
        given_up = threading.Event()
        try:
            there = True
            while there:
                left = None if end is None else max(0.0, end - time.monotonic())
                there = await in_thread(partial(self.blocking.wait_for_message, left, given_up))
                if (message := self.blocking.next_message(timeout=0)) is not None:
                    return message
        finally:
            given_up.set()
            self.blocking.wake()
        return None
