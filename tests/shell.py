"""Commands as a person or a script gives them: as processes with pipes, or in a terminal of their own."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.fake_openai import SCENARIOS

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-m", "vv_agent.cli"]
PATIENCE = 60.0


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str = ""

    def json(self) -> Any:
        return json.loads(self.stdout)


class Shell:
    """Gives commands in a folder whose store and settings file are its own."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("VV_AGENT_", "NO_COLOR"))}
        self.env = {**clean, "PYTHONPATH": str(ROOT), "TERM": "xterm", **environment}

    @property
    def url(self) -> str:
        """The store that commands here use by default."""
        return f"sqlite:///{self.folder}/.vv-agent/runs.db"

    def __call__(self, *words: str, **environment: str) -> Done:
        with self.start(*words, **environment) as running:
            return running.finish()

    def start(self, *words: str, **environment: str) -> Running:
        """Begin a command with pipes."""
        return Running([*COMMAND, *words], self.folder, {**self.env, **environment})

    def terminal(self, *words: str, **environment: str) -> Terminal:
        """Begin a command in a terminal."""
        return Terminal([*COMMAND, *words], self.folder, {**self.env, **environment})

    def write_settings(self, url: str) -> None:
        """A settings file whose models are the scenarios of the fake provider."""
        models = {
            name: {
                "id": name,
                "endpoints": [{"endpoint_id": "fake", "model_id": name}],
                "function_call_available": True,
            }
            for name in SCENARIOS
        }
        endpoint = {"id": "fake", "api_base": url, "api_key": "sk-very-secret"}
        settings = {"VERSION": "2", "backends": {"local": {"models": models}}, "endpoints": [endpoint]}
        (self.folder / "local_settings.json").write_text(json.dumps(settings))

    @staticmethod
    def until(condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"not within {PATIENCE:g} s: {what}"
            time.sleep(0.05)


class Running:
    """A command under way, with pipes."""

    def __init__(self, command: list[str], folder: Path, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip

    def finish(self) -> Done:
        stdout, stderr = self.process.communicate(timeout=PATIENCE)
        return Done(self.process.returncode, stdout, stderr)

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        if not self.process.stdout.closed:  # type: ignore[union-attr]
            self.process.communicate()


_IN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """A command under way in a terminal of 40 rows and 140 columns. What it shows is `text`, both streams together."""

    def __init__(self, command: list[str], folder: Path, env: dict[str, str]) -> None:
        self._own, other = os.openpty()
        termios.tcsetwinsize(other, (40, 140))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _IN_TERMINAL, *command], cwd=folder, env=env, stdin=other, stdout=other, stderr=other,
            start_new_session=True,
        )  # fmt: skip
        os.close(other)
        self.raw = ""

    @property
    def text(self) -> str:
        """What is shown, without colours."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.raw.replace("\r\n", "\n"))

    def expect(self, text: str) -> None:
        """Read until this is shown."""
        end = time.monotonic() + PATIENCE
        while text not in self.text:
            assert time.monotonic() < end, f"{text!r} is not shown within {PATIENCE:g} s:\n{self.text}"
            assert self._read(0.1), f"ended without showing {text!r}:\n{self.text}"

    def type(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.type("\x03")

    def finish(self) -> Done:
        """Read to the end; stdout is all that was shown."""
        end = time.monotonic() + PATIENCE
        while self._read(0.1):
            assert time.monotonic() < end, f"still running:\n{self.text}"
        self.process.wait(10)
        return Done(self.process.returncode, self.text)

    def _read(self, timeout: float) -> bool:
        """Read what is there; False when the command has ended and all is read."""
        poll = select.poll()  # `select` takes no descriptor above 1,023, and a process with many tests has them
        poll.register(self._own, select.POLLIN)
        if not poll.poll(timeout * 1_000):
            return self.process.poll() is None
        try:
            chunk = os.read(self._own, 65_536)
        except OSError:  # nobody has the other end any more
            return False
        self.raw += chunk.decode("utf-8", "replace")
        return bool(chunk)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._own)
