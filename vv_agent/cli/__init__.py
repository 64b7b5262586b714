"""The command line. `main` is the entry point of `vv-agent`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence

_OF_TYPER = ("--help", "-h", "--version", "--install-completion", "--show-completion")


def main() -> None:
    """Run the command line and exit; every error is a text on stderr that says what to do, never a traceback.

    Exit codes: 0 it went well, 1 it did not (usage, configuration, a failed run), 3 the run waits for a person, 130
    stopped by Ctrl-C. For app-server, usage and configuration are 2. (`python -X dev` shows where an unexpected error
    came from.)
    """
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
