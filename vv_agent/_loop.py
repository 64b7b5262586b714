"""Awaitables run from synchronous code: on the event loop of whoever awaits the run, else on one of our own, whose
daemon thread is started when first needed."""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from vv_agent.cancellation import CancellationToken
from vv_agent.errors import ConfigError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

log = logging.getLogger("vv_agent.tools")

_LOOK = 1.0
"""Seconds between looks at whether the loop of an awaited call was closed."""


class _Nowhere:
    """In place of a loop: the thread of our own loop is the one that waits."""


_home: ContextVar[asyncio.AbstractEventLoop | type[_Nowhere] | None] = ContextVar("vv_agent_loop", default=None)


@contextmanager
def awaited_on(loop: asyncio.AbstractEventLoop | None) -> Iterator[None]:
    """Run what is awaited in here on `loop`, which somebody awaits this work on; None: this thread waits for it, so it
    must run elsewhere."""
    blocked = loop is None and threading.current_thread() is _thread.thread
    token = _home.set(_Nowhere if blocked else loop)
    try:
        yield
    finally:
        _home.reset(token)


def run_async(awaitable: Awaitable[T], *, cancellation: CancellationToken | None = None) -> T:
    """Wait for `awaitable`, which runs in a copy of the caller's context variables on the loop of `awaited_on`, or on
    our own when there is none or it was closed.

    When `cancellation` fires, the awaitable is cancelled and `concurrent.futures.CancelledError` raised at once.
    Code that our own loop waits for cannot wait here (`ConfigError` `async_deadlock`): it must await.
    """
    import asyncio

    home = _home.get()
    if threading.current_thread() is _thread.thread or home is _Nowhere:
        if inspect.iscoroutine(awaitable):
            awaitable.close()
        raise ConfigError("async_deadlock", "asynchronous code cannot wait for other asynchronous code; await it")
    loop = home if isinstance(home, asyncio.AbstractEventLoop) and not home.is_closed() else _thread.loop()
    future = asyncio.run_coroutine_threadsafe(_awaited(awaitable), loop)
    detach = cancellation.on_cancel(future.cancel) if cancellation is not None else None
    try:
        while True:
            try:
                return future.result(_LOOK)
            except TimeoutError:
                if future.done():  # its own
                    raise
                if loop.is_closed():
                    raise RuntimeError("the event loop of the awaiting caller was closed") from None
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
