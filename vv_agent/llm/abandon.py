"""Calls that cannot be interrupted: they run in a thread of their own and are left behind when cancelled."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from vv_agent.cancellation import CancellationToken
from vv_agent.errors import LlmError

T = TypeVar("T")


def run_abandonable(
    produce: Callable[[Callable[[T], None]], None], cancellation: CancellationToken, where: str
) -> Iterator[T]:
    """Iterate over what `produce(put)` puts; its exception is raised here, without its traceback.

    A cancel ends the iteration at once with `LlmError` (cancelled, outcome lost), and so does leaving it early. The
    thread that is left behind ends at its next `put`, or when its call does.
    """
    news: queue.SimpleQueue[_News[T]] = queue.SimpleQueue()
    left = threading.Event()

    def put(item: T) -> None:
        if left.is_set():
            raise _LeftBehind
        news.put(_News([item]))

    def run() -> None:
        try:
            produce(put)
        except Exception as error:
            news.put(_News([], error))
        else:
            news.put(_News([], done=True))

    if cancellation.cancelled:
        raise LlmError("cancelled", f"{where}: {cancellation.reason}", definite=True)
    detach = cancellation.on_cancel(lambda: news.put(_News([], done=True)))
    threading.Thread(target=run, name="vv-agent-llm", daemon=True).start()
    try:
        while True:
            latest = news.get()
            if cancellation.cancelled:
                raise LlmError("cancelled", f"{where}: {cancellation.reason}")
            if latest.error is not None:
                raise latest.error
            yield from latest.items
            if latest.done:
                return
    finally:
        left.set()
        detach()


@dataclass(frozen=True, slots=True)
class _News(Generic[T]):
    items: list[T]
    error: Exception | None = None
    done: bool = False


class _LeftBehind(Exception):
    """Nobody waits for this call any more."""
