"""The heart of the server: messages in, by connection; answers and notifications out, by the router."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from vv_agent.agent import Agent
from vv_agent.app_server import protocol as wire
from vv_agent.app_server import rpc
from vv_agent.app_server.approvals import Approvals
from vv_agent.app_server.host import AppServerHost, DefaultAppServerHost
from vv_agent.app_server.outgoing import CAPACITY, Connection, OutgoingRouter
from vv_agent.app_server.rpc import RequestId, RpcError
from vv_agent.app_server.runs import AppServerRunAdapter
from vv_agent.app_server.sql import MemoryThreadStore, SqlThreadStore
from vv_agent.app_server.threads import Threads
from vv_agent.app_server.turns import ActiveTurn, Turns
from vv_agent.config import RunConfig
from vv_agent.errors import StoreError, VVAgentError
from vv_agent.runner import Runner

log = logging.getLogger("vv_agent.app_server")
APPROVAL_TIMEOUT = 30.0
USER_AGENT = "vv-agent-app-server"
OVERLOAD = "Server overloaded; retry later."
_WORKERS = 8
_ROOM = 1.0
"""Seconds a message waits for room for its answer before it is refused as too much."""
Handler = Callable[[Connection, RequestId, Any], None]


class MessageProcessor:
    """Answers the requests of any number of connections. Requests about one thread are answered in their order, those
    about different threads side by side.

    Without a runtime (`runs` None) only `initialize` and `schema/export` work. `capacity` bounds the requests that
    wait, and each connection's outgoing messages.
    """

    def __init__(
        self, router: OutgoingRouter, runs: AppServerRunAdapter | None = None, store: SqlThreadStore | None = None, *,
        capacity: int = CAPACITY, approval_timeout: float = APPROVAL_TIMEOUT, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._router = router
        self._runs = runs
        self._capacity = capacity
        self._lanes = Lanes()
        self._approvals = Approvals(router)
        self._threads = Threads(store or MemoryThreadStore(), router, self._approvals, clock) if runs else None
        self._handlers: dict[str, Handler] = {"schema/export": self._export_schema}
        router.too_slow = self.hang_up
        if runs is not None and self._threads is not None:
            turns = Turns(self._threads, runs, router, self._approvals, approval_timeout=approval_timeout, clock=clock)
            threads = self._threads
            self._handlers |= {
                "thread/start": threads.start, "thread/resume": threads.resume, "thread/read": threads.read,
                "thread/list": threads.list, "thread/archive": threads.archive,
                "thread/unsubscribe": threads.unsubscribe, "turn/start": turns.start, "turn/resume": turns.resume,
                "turn/interrupt": turns.interrupt, "turn/steer": turns.steer, "turn/followUp": turns.follow_up,
                "approval/resolve": self._resolve_approval, "model/list": self._list_models,
            }  # fmt: skip
            turns.recover()

    @classmethod
    def with_host(
        cls, capacity: int, runner: Runner, host: AppServerHost, thread_store: SqlThreadStore | None = None,
        **options: Any,
    ) -> tuple[MessageProcessor, OutgoingRouter]:  # fmt: skip
        """A processor, and what gives its messages: `outgoing.receive(connection)`."""
        router = OutgoingRouter(capacity)
        return cls(router, AppServerRunAdapter(runner, host), thread_store, capacity=capacity, **options), router

    @classmethod
    def with_runtime(
        cls, capacity: int, runner: Runner, agent: Agent, thread_store: SqlThreadStore | None = None, *,
        run_config: RunConfig | None = None, **options: Any,
    ) -> tuple[MessageProcessor, OutgoingRouter]:  # fmt: skip
        """`with_host` for one fixed agent."""
        return cls.with_host(capacity, runner, DefaultAppServerHost(agent, run_config), thread_store, **options)

    # Connections.

    def connect(self, name: str) -> Connection:
        """Open a connection. It, or its name, is given to the other methods; a name that comes again is another
        connection, and the client of the one before is gone."""
        self.disconnect(name)
        return self._router.connect(name)

    def disconnect(self, connection: Connection | str) -> None:
        """The client is gone, and receives nothing any more. Its turns run on; what they ask is timed out, or waits if
        they are checkpointed."""
        if (found := self._router.find(connection)) is not None:
            self.hang_up(found)
            self._router.forget(found)

    def hang_up(self, connection: Connection) -> None:
        """Close a connection from here: what waits for its client can still be received."""
        self._router.close(connection)
        if self._threads is not None:
            self._threads.leave(connection)

    def leave(self, connection: Connection | str) -> None:
        """The client says no more; it still hears."""
        if (found := self._router.find(connection)) is not None:
            found.speaks = False
            if self._threads is not None:
                self._threads.leave(found)

    def process(self, connection: Connection | str, line: bytes | str) -> None:
        """Take a line from a connection. Its answer comes through the router, perhaps later."""
        found = self._router.find(connection)
        if found is not None and found.open and line.strip():
            self._take(found, line)

    def _take(self, connection: Connection, line: bytes | str) -> None:
        room = self._router.wait_for_room([connection], _ROOM)
        try:
            if len(line) > rpc.MAX_LINE:
                raise rpc.too_long()
            message = rpc.JsonRpcMessage.parse(line)
            if isinstance(message, rpc.Request):
                self._request(connection, message, room)
            elif not isinstance(message, rpc.Notification):
                self._router.answer(connection, message)
        except RpcError as error:
            self._router.refuse(connection, error.request_id, error)

    def idle(self) -> bool:
        """Nothing runs and no request waits, except runs that wait for a decision nobody here can make."""
        return not self._lanes.pending and all(turn.waits for turn in self._active())

    def close(self) -> None:
        """Take no more; runs that are not checkpointed are cancelled."""
        for connection in self._router.connections():
            self.hang_up(connection)
        for turn in self._active():
            if not turn.asking.durable:
                turn.handle.cancel("The server stopped.")
        self._lanes.close()
        if self._threads is not None:
            with suppress(StoreError):  # the next server finds what it can
                self._threads.write_ends()

    def _active(self) -> list[ActiveTurn]:
        return self._threads.active() if self._threads is not None else []

    # Requests.

    def _request(self, connection: Connection, message: rpc.Request, room: bool) -> None:
        try:
            params = self._checked(connection, message)
            if message.method == "initialize":
                self._initialize(connection, message.id, params)
                return
            lane = wire.METHODS[message.method].lane
            if lane == "connection":
                self._answer(connection, message, params)
                return
            name = f"thread {getattr(params, 'thread_id', '')}" if lane == "thread" else lane
            if not room or self._lanes.pending >= self._capacity:
                raise RpcError(rpc.OVERLOADED, OVERLOAD)
            self._lanes.put(name, lambda: self._answer(connection, message, params))
        except RpcError as error:
            error.request_id = message.id
            raise

    def _checked(self, connection: Connection, message: rpc.Request) -> wire.Part:
        if message.method == "initialize":
            if connection.initialized:
                raise RpcError(rpc.ALREADY_INITIALIZED, "the connection is initialized already")
        elif not connection.initialized:
            raise RpcError(rpc.NOT_INITIALIZED, "the connection is not initialized; send initialize first")
        params = rpc.read_params(message.method, message.params)
        if message.method not in self._handlers and message.method != "initialize":
            raise RpcError(rpc.INTERNAL_ERROR, "the server has no runtime")
        return params

    def _answer(self, connection: Connection, message: rpc.Request, params: wire.Part) -> None:
        try:
            if connection.heavy and not connection.wait_for_room(_ROOM):
                raise RpcError(rpc.OVERLOADED, OVERLOAD)
            self._handlers[message.method](connection, message.id, params)
        except RpcError as error:
            self._router.refuse(connection, message.id, error)
        except VVAgentError as error:
            self._router.refuse(connection, message.id, RpcError(rpc.INTERNAL_ERROR, str(error)))
        except Exception as error:  # the border: whatever it was, the request is answered and the server goes on
            log.exception("%s failed", message.method)
            what = f"{message.method} failed: {type(error).__name__}: {error}"
            self._router.refuse(connection, message.id, RpcError(rpc.INTERNAL_ERROR, what))

    def _initialize(self, connection: Connection, request_id: RequestId, params: wire.Part) -> None:
        assert isinstance(params, wire.InitializeParams)
        if params.capabilities is not None:
            connection.silent = frozenset(params.capabilities.opt_out_notification_methods)
        attached = self._threads is not None
        can = wire.ServerCapabilities(
            model_list=attached, thread_lifecycle=attached, notification_opt_out=True, schema_export=True,
            approval_resolve=attached,
        )  # fmt: skip
        connection.initialized = True
        self._router.respond(connection, request_id, wire.InitializeResponse(
            user_agent=USER_AGENT, protocol_version=wire.PROTOCOL_VERSION, capabilities=can
        ))  # fmt: skip

    def _resolve_approval(
        self, connection: Connection, request_id: RequestId, params: wire.ApprovalResolveParams
    ) -> None:
        self._approvals.resolve(connection, params)
        self._router.respond(connection, request_id, wire.Nothing())

    def _list_models(self, connection: Connection, request_id: RequestId, params: wire.ModelListParams) -> None:
        assert self._runs is not None
        try:
            models = list(self._runs.host.list_models(params))
        except Exception as error:
            raise RpcError(rpc.INTERNAL_ERROR, f"the host could not list models: {error}") from error
        self._router.respond(connection, request_id, wire.ModelListResponse(models=models))

    def _export_schema(self, connection: Connection, request_id: RequestId, params: wire.Nothing) -> None:
        from vv_agent.app_server.schema import json_schemas, typescript

        exported = wire.SchemaExportResponse(json_schema=json_schemas(), typescript=typescript())
        self._router.respond(connection, request_id, exported)


class Lanes:
    """Work in order within a lane; lanes side by side, on few threads."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="vv-request")
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self.pending = 0

    def put(self, lane: str, work: Callable[[], None]) -> None:
        """`RpcError` -32603 once it is closed."""
        with self._lock:
            if self._closed:
                raise RpcError(rpc.INTERNAL_ERROR, "the server stops")
            self.pending += 1
            if lane in self._waiting:
                self._waiting[lane].append(work)
                return
            self._waiting[lane] = deque([work])
            self._pool.submit(self._run, lane)

    def _run(self, lane: str) -> None:
        while True:
            with self._lock:
                if not self._waiting[lane]:
                    del self._waiting[lane]
                    return
                work = self._waiting[lane].popleft()
            try:
                work()
            finally:
                with self._lock:
                    self.pending -= 1

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)
