"""How lines of JSON travel: over standard input and output, or through a channel of this process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Protocol

from vv_agent.app_server.rpc import MAX_LINE, too_long

_CHUNK = 65_536


class AppServerTransport(Protocol):
    """One connection. One thread receives, another one sends."""

    def receive(self) -> bytes | None:
        """The next line, without its end; None at the end. `RpcError` for one that is too long to be kept: it is
        skipped."""
        ...

    def send(self, line: bytes) -> None:
        """Write a line, at once; may block while the reader is slow. `OSError` when nobody reads any more."""
        ...

    def close(self) -> None: ...


class StdioJsonlTransport:
    """Lines over two binary files; by default standard input and output.

    `longest` is that of a line that is received, in bytes; None: any. A client should set no limit.

    `taking_over` is for a process that is a server: from then on only the transport has its standard input and output.
    What a tool prints goes to standard error, and a child process reads nothing.
    """

    def __init__(
        self, reader: IO[bytes] | None = None, writer: IO[bytes] | None = None, *, longest: int | None = MAX_LINE
    ) -> None:
        self._longest = longest
        self._reader = reader or sys.stdin.buffer
        self._writer = writer or sys.stdout.buffer
        for file in (self._reader, self._writer):
            with suppress(OSError, ValueError):  # whoever shares it may have set it otherwise; some are no files
                os.set_blocking(file.fileno(), True)
        self._rest = bytearray()
        self._ended = False

    @classmethod
    def taking_over(cls) -> StdioJsonlTransport:
        sys.stdout.flush()
        reader, writer = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        return cls(os.fdopen(reader, "rb", buffering=0), os.fdopen(writer, "wb", buffering=0))

    @classmethod
    def starting(cls, command: Sequence[str]) -> tuple[StdioJsonlTransport, subprocess.Popen[bytes]]:
        """Start a server and talk to it; its standard error is this process's."""
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdin is not None
        assert child.stdout is not None
        return cls(child.stdout, child.stdin, longest=None), child

    def receive(self) -> bytes | None:
        seen = dropped = 0
        while True:
            end = self._rest.find(b"\n", seen)
            if end >= 0 or (self._ended and self._rest):
                line = bytes(self._rest[:end] if end >= 0 else self._rest)
                del self._rest[: end + 1 if end >= 0 else len(line)]
                if dropped:
                    raise too_long()
                return line
            if self._ended:
                if dropped:
                    raise too_long()
                return None
            seen = len(self._rest)
            if self._longest is not None and seen > self._longest:
                dropped += seen
                seen = 0
                self._rest.clear()
            chunk = self._read()
            self._ended = not chunk
            self._rest += chunk

    def _read(self) -> bytes:
        try:
            read = getattr(self._reader, "read1", self._reader.read)
            chunk: bytes = read(_CHUNK)
        except (OSError, ValueError):  # closed here, or by the system
            return b""
        return chunk

    def send(self, line: bytes) -> None:
        view = memoryview(line + b"\n")
        try:
            while view:
                view = view[self._writer.write(view) :]
            self._writer.flush()
        except ValueError as error:
            raise BrokenPipeError(str(error)) from error

    def close(self) -> None:
        try:
            self._writer.close()
        except (OSError, ValueError):  # nobody reads any more
            return


class ChannelTransport:
    """One end of a channel in this process; `pair()` gives both. An end that does not receive makes the other one
    wait once `capacity` lines are on their way."""

    def __init__(self, incoming: _Line, outgoing: _Line) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    @classmethod
    def pair(cls, capacity: int = 128) -> tuple[ChannelTransport, ChannelTransport]:
        there, back = _Line(capacity), _Line(capacity)
        return cls(there, back), cls(back, there)

    def receive(self) -> bytes | None:
        return self._incoming.get()

    def send(self, line: bytes) -> None:
        self._outgoing.put(line)

    def close(self) -> None:
        self._incoming.close()
        self._outgoing.close()


class _Line:
    """A bounded queue of lines in one direction."""

    def __init__(self, capacity: int) -> None:
        self._lines: deque[bytes] = deque()
        self._capacity = capacity
        self._changed = threading.Condition()
        self._closed = False

    def put(self, line: bytes) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._lines) < self._capacity)
            if self._closed:
                raise BrokenPipeError("the channel is closed")
            self._lines.append(line)
            self._changed.notify_all()

    def get(self) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._lines))
            line = self._lines.popleft() if self._lines else None
            self._changed.notify_all()
            return line

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
