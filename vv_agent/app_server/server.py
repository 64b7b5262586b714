"""The App Server: one transport, one processor, and their threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from vv_agent.app_server.host import AppServerHost
from vv_agent.app_server.outgoing import CAPACITY, PATIENCE, Connection, OutgoingRouter
from vv_agent.app_server.processor import APPROVAL_TIMEOUT, MessageProcessor
from vv_agent.app_server.rpc import RpcError
from vv_agent.app_server.runs import AppServerRunAdapter
from vv_agent.app_server.sql import SqlThreadStore
from vv_agent.app_server.transport import AppServerTransport, StdioJsonlTransport
from vv_agent.runner import Runner

log = logging.getLogger("vv_agent.app_server")
_FAREWELL = 5.0
"""Seconds a client has to read the last messages."""


class AppServer:
    """Serves one client over a transport (default: standard input and output).

    `store` keeps the threads (default: memory; `open_thread_store(place)` for others) and belongs to the caller.
    `approval_timeout` is in seconds, for runs whose config has none; `queue` bounds the messages that wait, and
    `patience` is how long that many may wait, in seconds of `clock`.

    Example:
        >>> from vv_agent import Agent, AppServer, DefaultAppServerHost, NoToolPolicy, Runner
        >>> from vv_agent.app_server import AppServerClient, ChannelTransport
        >>> from vv_agent.testing import ScriptedProvider
        >>> agent = Agent(name="assistant", instructions="Answer.", no_tool_policy=NoToolPolicy.FINISH)
        >>> ours, theirs = ChannelTransport.pair()
        >>> runner = Runner(model_provider=ScriptedProvider(["Hello."]))
        >>> AppServer(DefaultAppServerHost(agent), transport=ours, runner=runner).start()
        >>> client = AppServerClient(theirs)
        >>> client.initialize({"name": "example"})["protocolVersion"]
        'v1'
    """

    def __init__(
        self, host: AppServerHost, *, store: SqlThreadStore | None = None,
        transport: AppServerTransport | None = None, runner: Runner | None = None,
        approval_timeout: float = APPROVAL_TIMEOUT, queue: int = CAPACITY, patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._transport = transport or StdioJsonlTransport()
        self._router = OutgoingRouter(queue, clock=clock, patience=patience)
        self.processor = MessageProcessor(
            self._router, AppServerRunAdapter(runner or Runner(), host), store, capacity=queue,
            approval_timeout=approval_timeout,
        )  # fmt: skip
        self._router.too_slow = self._close
        self._client = self.processor.connect("client")
        self._written = threading.Event()
        self._left = threading.Event()
        self._stopped = False

    def start(self) -> threading.Thread:
        """`run_forever` in a thread of its own."""
        thread = threading.Thread(target=self.run_forever, name="vv-app-server", daemon=True)
        thread.start()
        return thread

    def run_forever(self) -> None:
        """Serve until the client has left and its turns are over. A turn that then waits for a decision is kept in
        its checkpoint, or ends."""
        for work in (self._read, self._write):
            threading.Thread(target=work, name="vv-app-server-io", daemon=True).start()
        self._left.wait()
        self.processor.leave(self._client)
        while not (self._stopped or self.processor.idle()):
            time.sleep(0.02)
        self.processor.close()
        self._written.wait(_FAREWELL)
        self._transport.close()

    def stop(self) -> None:
        """Wait for nothing any more."""
        self._stopped = True
        self._left.set()

    def _close(self, connection: Connection) -> None:
        self.processor.hang_up(connection)
        self._left.set()

    def _read(self) -> None:
        try:
            while not self._left.is_set():
                try:
                    line = self._transport.receive()
                except RpcError as error:
                    self._router.wait_for_room([self._client])
                    self._router.refuse(self._client, None, error)
                    continue
                if line is None:
                    break
                self.processor.process(self._client, line)
        except Exception:  # whatever broke the transport, its client says no more
            log.exception("the transport broke")
        finally:
            self._left.set()

    def _write(self) -> None:
        try:
            with suppress(OSError):  # the client reads no more
                while (line := self._router.receive(self._client)) is not None:
                    self._transport.send(line)
        finally:
            self._transport.close()
            self._written.set()
            self._close(self._client)
