"""Sockets that another thread can cut: the network backend below our HTTP client.

httpcore cannot be interrupted while it resolves, connects, shakes hands or waits for the first byte, and tells
nobody which socket a request uses before the reply's headers. So this backend ties each socket to the call that
uses it (`SocketHold`), and the hold also knows what the retry rules ask: whether the connection was fresh, whether
anything was sent, and whether any byte came back.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from typing import Any

import httpcore


class SocketHold:
    """One call's hold on the socket it uses. `cut` may come from any thread, at any moment, more than once."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may cancel in the thread that holds it
        self._socket: socket.socket | None = None
        self._answer: queue.SimpleQueue[Any] | None = None
        self._cut = False
        self.fresh = False
        """This call opened the connection itself."""
        self.sent = False
        """Bytes of the request may have reached the provider."""
        self.received = False
        """A byte of the reply has arrived."""
        self.patience: float | None = None
        """Upper limit in seconds for each further read, besides the client's own timeout."""

    def hold(self, sock: socket.socket) -> None:
        """From now on `cut` shuts this socket down; if it was cut already, `httpcore.ConnectError`."""
        with self._lock:
            self._socket = sock
            self._check()

    def listen(self, answer: queue.SimpleQueue[Any]) -> None:
        """From now on `cut` puts None into this queue."""
        with self._lock:
            self._answer = answer
            self._check()

    def cut(self) -> None:
        with self._lock:
            self._cut = True
            if self._answer is not None:
                self._answer.put(None)
            if self._socket is not None:
                # The plain socket's shutdown: SSLSocket's own would also drop the TLS state a reader is using.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _check(self) -> None:
        if self._cut:
            raise httpcore.ConnectError("the call was cut")


class CuttableBackend(httpcore.NetworkBackend):
    """A network backend for one call at a time; `current` is the hold of that call."""

    def __init__(self) -> None:
        self.current = SocketHold()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        call = self.current
        call.fresh = True
        deadline = None if timeout is None else time.monotonic() + timeout
        problem: OSError = OSError(f"no address for {host}")
        for family, kind, protocol, _, address in _addresses(host, port, deadline, call):
            sock = socket.socket(family, kind, protocol)
            try:
                call.hold(sock)
                for option in socket_options or ():
                    sock.setsockopt(*option)
                if local_address is not None:
                    sock.bind((local_address, 0))
                _connect(sock, address, deadline, call)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return CuttableStream(sock, self)
            except OSError as error:
                sock.close()
                problem = error
            except BaseException:
                sock.close()
                raise
        if isinstance(problem, TimeoutError):
            raise httpcore.ConnectTimeout(str(problem)) from problem
        raise httpcore.ConnectError(str(problem)) from problem


class CuttableStream(httpcore.NetworkStream):
    """A connected socket, plain or TLS."""

    def __init__(self, sock: socket.socket, backend: CuttableBackend) -> None:
        self._socket = sock
        self._backend = backend

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        call = self._backend.current
        limits = [seconds for seconds in (timeout, call.patience) if seconds is not None]
        try:
            self._socket.settimeout(min(limits, default=None))
            data = self._socket.recv(max_bytes)
        except TimeoutError as error:
            raise httpcore.ReadTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.ReadError(str(error)) from error
        call.received = call.received or bool(data)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        call = self._backend.current
        call.hold(self._socket)
        call.sent = True
        try:
            self._socket.settimeout(timeout)
            self._socket.sendall(buffer)
        except TimeoutError as error:
            raise httpcore.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error

    def close(self) -> None:
        self._socket.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        try:
            self._socket.settimeout(timeout)
            wrapped = ssl_context.wrap_socket(
                self._socket, server_hostname=server_hostname, do_handshake_on_connect=False
            )
            self._socket = wrapped
            self._backend.current.hold(wrapped)
            wrapped.do_handshake()
        except TimeoutError as error:
            self.close()
            raise httpcore.ConnectTimeout(str(error)) from error
        except OSError as error:
            self.close()
            raise httpcore.ConnectError(str(error)) from error
        except BaseException:
            self.close()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        match info:
            case "ssl_object":
                return self._socket if isinstance(self._socket, ssl.SSLSocket) else None
            case "socket":
                return self._socket
            case "is_readable":
                return self._is_readable()
        return None

    def _is_readable(self) -> bool:
        """Whether a read would return at once; on an idle connection that means the server has closed it."""
        if self._socket.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def __del__(self) -> None:
        # A client that is dropped (after a fork, at exit) closes its file descriptors without a warning.
        self._socket.close()


def _addresses(host: str, port: int, deadline: float | None, call: SocketHold) -> list[tuple[Any, ...]]:
    """Resolve in a helper thread: the system's resolver can block for half a minute and cannot be interrupted."""
    with contextlib.suppress(socket.gaierror):
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
    answer: queue.SimpleQueue[list[tuple[Any, ...]] | OSError | None] = queue.SimpleQueue()

    def resolve() -> None:
        try:
            answer.put(list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
        except OSError as error:
            answer.put(error)
        except UnicodeError:
            answer.put(OSError("the host name is not valid"))

    call.listen(answer)
    threading.Thread(target=resolve, name="vv-agent-resolve", daemon=True).start()
    try:
        found = answer.get(timeout=_left(deadline))
    except queue.Empty:
        raise httpcore.ConnectTimeout(f"resolving {host} took too long") from None
    if found is None:
        raise httpcore.ConnectError("the call was cut")
    if isinstance(found, OSError):
        raise httpcore.ConnectError(f"cannot resolve {host}: {found}") from found
    return found


def _connect(sock: socket.socket, address: Any, deadline: float | None, call: SocketHold) -> None:
    """Connect without blocking for long: a cut that comes just before the connect begins finds nothing to shut down."""
    sock.setblocking(False)
    number = sock.connect_ex(address)
    if number == errno.EINPROGRESS:
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        while not poll.poll(1000 * min(_left(deadline) or _LOOK_SECONDS, _LOOK_SECONDS)):
            call.hold(sock)
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError("connecting took too long")
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    call.hold(sock)
    if number:
        raise OSError(number, os.strerror(number))


_LOOK_SECONDS = 0.25


def _left(deadline: float | None) -> float | None:
    """Seconds until the deadline, never 0 (which would mean non-blocking)."""
    return None if deadline is None else max(0.001, deadline - time.monotonic())
