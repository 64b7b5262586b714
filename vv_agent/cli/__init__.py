"""The command line. `main` is the entry point of `vv-agent`."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, TextIO

_OF_TYPER = ("--help", "-h", "--version", "--install-completion", "--show-completion")


def main() -> None:
    """Run the command line and exit; every error is a text on stderr that says what to do, never a traceback.

    Exit codes: 0 it went well, 1 it did not (usage, configuration, a failed run), 3 the run waits for a person, 130
    stopped by Ctrl-C. For app-server, usage and configuration are 2. (`python -X dev` shows where an unexpected error
    came from.)
    """
    _open_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _Interrupted())
    try:
        code = _guarded()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is over: another one changes nothing
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = 130
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # threads that still follow a run need no farewell, and the shell does not wait for one


class _Interrupted:
    """Ctrl-C: the first one stops what is under way, which may take a while; the second one leaves at once, wherever
    the program is."""

    def __init__(self) -> None:
        self._again = False

    def __call__(self, *_: object) -> None:
        if self._again:
            with contextlib.suppress(OSError):
                os.write(2, b"\nvv-agent: stopped\n")
            os._exit(130)
        self._again = True
        raise KeyboardInterrupt


class _Deaf:
    """A stderr that nobody reads, or that can take no more: work does not end for it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def _open_streams() -> None:
    """Streams that were closed lead nowhere; a character that stdout does not have is escaped, and costs no result."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stderr = _Deaf(sys.stderr)


def _guarded() -> int:
    from vv_agent.errors import VVAgentError

    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
    except VVAgentError as error:
        code = _complain(str(error))
    except KeyboardInterrupt:
        code = _complain("stopped", 130)
    except BrokenPipeError:  # the reader of a pipe left; nothing more may be written, at exit neither
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        code = _complain(
            f"unexpected {type(error).__name__}: {error}; please report this with the command you gave, and what "
            "`vv-agent doctor` says"
        )
    return code


def _run(argv: Sequence[str]) -> int:
    """A command, or the direct task if the first word is one of its options."""
    if argv and argv[0].startswith("-") and argv[0] not in _OF_TYPER:
        from vv_agent.cli import arguments

        if not {"--help", "-h"} & set(argv):
            from vv_agent.cli.task import run_task

            return run_task(arguments.parse(argv))
        argv = ["--help"]
    from vv_agent.cli.app import app

    try:
        app(list(argv) or None, prog_name="vv-agent")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
        return 1 if code == 2 and "app-server" not in argv[:1] else code  # a wrong use is 1 here, but for that one
    return 0


def _complain(text: str, code: int = 1) -> int:
    sys.stderr.write(f"vv-agent: {text}\n")
    return code


__all__ = ["main"]
