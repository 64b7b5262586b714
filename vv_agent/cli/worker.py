"""`vv-agent worker`: one or several processes of threads, and their orderly stop."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from types import FrameType

from vv_agent import process
from vv_agent.errors import ConfigError
from vv_agent.settings import Settings, read_settings
from vv_agent.workers.local import LocalWorker

_log = logging.getLogger("vv_agent.worker")


def work(*, queues: tuple[str, ...], processes: int, threads: int | None, verbose: bool) -> None:
    """Serve queues until stopped; with more than one process, a parent that starts and replaces them."""
    settings = read_settings()
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, stream=sys.stderr,
        format="%(asctime)s %(process)d %(levelname)s %(message)s",
    )  # fmt: skip
    sys.path.insert(0, os.getcwd())  # code named by import path is looked for where the worker was started
    _check(settings, queues)
    if processes > 1:
        _Parent(processes).run()
        return
    _serve(settings, queues or (settings.queue,), threads or settings.concurrency)


def _check(settings: Settings, queues: tuple[str, ...]) -> None:
    """Refuse what would be a worker that serves nobody; warn of modules that are not here."""
    if settings.store.startswith("memory:"):
        raise ConfigError(
            "usage_invalid",
            "a worker shares its store with the processes that start runs, memory:// belongs to one process; "
            "set VV_AGENT_STORE to sqlite:///PATH, postgresql://... or redis://...",
        )
    if any(not queue.strip() for queue in queues):
        raise ConfigError("usage_invalid", "--queue needs the name of a queue; leave it out for the default one")
    for name in settings.imports:
        if not _is_there(name):
            _log.warning("VV_AGENT_IMPORTS names %r, which cannot be imported here; its runs cannot be served", name)


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _serve(settings: Settings, queues: tuple[str, ...], threads: int) -> None:
    store = process.store_at(settings.store)
    worker = LocalWorker(store, settings, queues=queues, threads=threads)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    if os.environ.get(_CHILD):
        _watch_parent(worker)
    sys.stderr.write(
        f"vv-agent worker: process {os.getpid()}, queues {', '.join(queues)}, {threads} threads, {store.url}\n"
    )
    worker.run()


_CHILD = "VV_AGENT_WORKER_CHILD"


def _watch_parent(worker: LocalWorker) -> None:
    """A child whose parent is gone stops."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        worker.stop()

    threading.Thread(target=watch, name="vv-parent", daemon=True).start()


class _Parent:
    """Starts worker processes and replaces those that die, more slowly the more often they do."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._stopping = threading.Event()

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        children: list[subprocess.Popen[bytes]] = []
        deaths = 0
        while not self._stopping.is_set():
            alive = [child for child in children if child.poll() is None]
            deaths += len(children) - len(alive)
            while len(alive) < self._count and not self._stopping.is_set():
                alive.append(subprocess.Popen(_child_command(), env={**os.environ, _CHILD: "1"}))
            children = alive
            self._stopping.wait(min(0.2 * (1 + deaths), 5.0) if deaths else 0.2)
        for child in children:
            child.send_signal(signal.SIGTERM)
        for child in children:
            child.wait()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._stopping.set()


def _child_command() -> list[str]:
    """This very command line, with one process."""
    words, skip = [], False
    for word in sys.argv[1:]:
        if skip:
            skip = False
        elif word == "--processes":
            skip = True
        elif not word.startswith("--processes="):
            words.append(word)
    return [sys.executable, "-m", "vv_agent.cli", *words]
