"""Awaitables run from synchronous code: one event loop on a daemon thread per process, started when first needed."""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from vv_agent.cancellation import CancellationToken
from vv_agent.errors import ConfigError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

log = logging.getLogger("vv_agent.tools")


def run_async(awaitable: Awaitable[T], *, cancellation: CancellationToken | None = None) -> T:
    """Wait for `awaitable`, which runs on the loop thread in a copy of the caller's context variables.

    When `cancellation` fires, the awaitable is cancelled and `concurrent.futures.CancelledError` raised at once.
    Code that runs on the loop thread itself cannot wait here (`ConfigError` `async_deadlock`): it must await.
    """
    loop = _thread.loop()
    if threading.current_thread() is _thread.thread:
        if inspect.iscoroutine(awaitable):
            awaitable.close()
        raise ConfigError("async_deadlock", "asynchronous code cannot wait for other asynchronous code; await it")
    import asyncio

    future = asyncio.run_coroutine_threadsafe(_awaited(awaitable), loop)
    detach = cancellation.on_cancel(future.cancel) if cancellation is not None else None
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
    finally:
        if detach is not None:
            detach()


async def _awaited(awaitable: Awaitable[T]) -> T:
    """asyncio would let these two through the loop, which every other awaitable of the process needs, and the waiting
    thread could not tell them from an interrupt of its own."""
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"{type(error).__name__}: {error}".removesuffix(": ")) from error


class _LoopThread:
    """The loop and its thread; a forked child forgets them and starts its own."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inherited: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._watches_forks = False

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self.thread is None or not self.thread.is_alive():
                if not self._watches_forks:
                    os.register_at_fork(after_in_child=self._forget)
                    self._watches_forks = True
                import asyncio

                self._loop = asyncio.new_event_loop()
                self.thread = threading.Thread(target=_serve, args=(self._loop,), name="vv-agent-async", daemon=True)
                self.thread.start()
            return self._loop

    def _forget(self) -> None:
        # The parent's loop is kept, not closed: its descriptors are shared with the parent.
        self._inherited = self._loop
        self._loop = self.thread = None
        self._lock = threading.Lock()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop, also after a task or callback raised through it or stopped it: others still wait on it."""
    while not loop.is_closed():
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            log.warning("asynchronous code of a tool raised %s outside of its call; ignored", type(error).__name__)


_thread = _LoopThread()
