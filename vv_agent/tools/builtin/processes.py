"""Commands of the shell: each a process group of its own, which dies with its worker; output is bounded as it comes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

from vv_agent.settings import environment_of_commands

MAX_CHARS = 50_000
"""Code points of a command's output that are kept: the first ones."""
_MAX_BYTES = 4 * MAX_CHARS
_GRACE = 0.5
"""Seconds between TERM and KILL."""
_LOOK = 0.1
"""Seconds between looks at a command that prints nothing."""
_MAX_ENDED = 64
"""Background commands that are over and whose output is still there for who asks."""

_GUARDED = """
trap : HUP INT TERM
(trap '' HUP INT TERM; read _ <"$0" || kill -s KILL -- -$$) </dev/null >/dev/null 2>&1 &
guard=$!
"$@"
status=$?
exec >/dev/null 2>&1
kill -9 $guard
wait $guard
exit $status
"""
"""The leader of the group. Its guard reads a pipe whose other end only the worker holds; when that is closed, by the
end of the worker, it kills the group with everything in it."""


class Command:
    """A command that runs. A thread of its own takes its output and watches its time, whether or not anybody waits.

    `status` is `running`, `completed` (exit code 0), `failed`, `timeout` or `stopped`; `exit_code` is None while it
    runs, and -9 when it was killed. `done` is set at its end.
    """

    def __init__(
        self, argv: Sequence[str], cwd: str, *, env: Mapping[str, str] | None = None, stdin: str = "",
        limit: float | None = None,
    ) -> None:  # fmt: skip
        """Start it; `OSError` or `ValueError` when it cannot be. `env` are variables besides those of the worker;
        `limit` is in seconds."""
        self.status = "running"
        self.exit_code: int | None = None
        self.done = threading.Event()
        self.began = time.monotonic()
        self.ended: float | None = None
        self._stopped: str | None = None
        self._limit = limit
        self._kept = bytearray()
        self._size = 0
        _watch_forks()
        reads, self._holds = os.pipe()
        _holding.add(self._holds)
        try:
            with tempfile.TemporaryFile() as given:
                given.write(stdin.encode("utf-8", "replace"))
                given.seek(0)
                self._process = subprocess.Popen(
                    ["sh", "-c", _GUARDED, f"/dev/fd/{reads}", *argv],
                    cwd=cwd, env={**environment_of_commands(), **(env or {})}, stdin=given, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, bufsize=0, start_new_session=True, pass_fds=(reads,),
                )  # fmt: skip
        except BaseException:
            self._let_go()
            raise
        finally:
            os.close(reads)
        try:
            threading.Thread(target=self._watch, name="vv-command", daemon=True).start()
        except RuntimeError as error:  # the machine has no more threads
            self._kill(signal.SIGKILL)
            self._watch()
            raise OSError(f"no thread could be started for it: {error}") from error

    @property
    def output(self) -> str:
        """What it has printed so far, as far as it is kept."""
        return bytes(self._kept).decode("utf-8", "replace")[:MAX_CHARS]

    @property
    def cut(self) -> bool:
        """Whether it printed more than is kept."""
        return self._size > len(self._kept) or len(self._kept.decode("utf-8", "replace")) > MAX_CHARS

    @property
    def elapsed(self) -> float:
        """Seconds it has been running, or ran."""
        return (self.ended or time.monotonic()) - self.began

    def limit(self, seconds: float) -> None:
        """Kill it when it has been running this long from now."""
        self._limit = self.elapsed + seconds

    def stop(self, status: str = "stopped") -> None:
        """Ask for its end; returns at once."""
        self._stopped = self._stopped or status

    def _watch(self) -> None:
        try:
            self._read_on()
        finally:
            self._kill(signal.SIGKILL)  # what it left behind, while its leader still holds the group's number
            code = self._process.wait()
            self._drain()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._let_go()
            self.ended = time.monotonic()
            self.exit_code = -9 if self._stopped else code
            self.status = self._stopped or ("failed" if code else "completed")
            self.done.set()

    def _read_on(self) -> None:
        """Take the output until the leader has ended or was killed."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        os.set_blocking(output, False)
        poll = select.poll()
        poll.register(output, select.POLLIN)
        open_, pause, deadline = True, 0.001, None
        while not self._over():
            if open_ and poll.poll(_LOOK * 1000):
                open_ = self._drain()
            elif not open_:  # it has closed its output, most likely because it is about to end
                time.sleep(pause)
                pause = min(2 * pause, _LOOK)
            if self._limit is not None and self.elapsed >= self._limit:
                self.stop("timeout")
            if self._stopped and deadline is None:
                self._kill(signal.SIGTERM)
                deadline = time.monotonic() + _GRACE
            if deadline is not None and time.monotonic() >= deadline:
                return

    def _drain(self) -> bool:
        """Read what is there into what is kept, or away; False at the end of the output."""
        assert self._process.stdout is not None
        buffer = bytearray(65_536)
        for _ in range(16):  # then the clock is looked at
            try:
                count = os.readv(self._process.stdout.fileno(), [buffer])
            except BlockingIOError:
                return True
            if count == 0:
                return False
            self._size += count
            self._kept += buffer[: min(count, _MAX_BYTES - len(self._kept))]
        return True

    def _over(self) -> bool:
        """Whether the leader has ended. It is not collected where that can be told without, so that the number of its
        group stays taken."""
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _kill(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _let_go(self) -> None:
        _holding.discard(self._holds)
        os.close(self._holds)


class Background:
    """The background commands of this process, by run and session id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commands: OrderedDict[tuple[str, str], Command] = OrderedDict()

    def add(self, run: str, session_id: str, command: Command) -> None:
        with self._lock:
            self._commands[run, session_id] = command
            ended = [name for name, kept in self._commands.items() if kept.done.is_set()]
            for name in ended[: max(0, len(ended) - _MAX_ENDED)]:
                del self._commands[name]

    def get(self, run: str, session_id: str) -> Command | None:
        with self._lock:
            return self._commands.get((run, session_id))

    def has_live(self, run: str) -> bool:
        """Whether a command of the run still runs here: then its next cycle should be done here."""
        return any(not command.done.is_set() for command in self._of(run))

    def end(self, run: str) -> None:
        """Stop what a run that ended has left running."""
        for command in self._of(run):
            command.stop()

    def forget(self) -> None:
        """After a fork: the commands are the parent's."""
        self.__init__()  # type: ignore[misc]

    def _of(self, run: str) -> list[Command]:
        with self._lock:
            return [command for (owner, _), command in self._commands.items() if owner == run]


background = Background()
_holding: set[int] = set()
"""The ends of the guards' pipes. A forked child closes its copies: else the guards would wait for its end too."""


@lru_cache(maxsize=1)
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    for held in tuple(_holding):
        with suppress(OSError):
            os.close(held)
    _holding.clear()
    background.forget()
