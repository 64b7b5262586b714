"""The publisher of live text, by itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from vv_agent.checkpoint.memory import MemoryLive
from vv_agent.checkpoint.sql import SqlStore
from vv_agent.runtime.feed import LivePublisher


def test_closing_sends_what_is_there_and_nothing_later() -> None:
    live = MemoryLive()
    before = live.last()
    publisher = LivePublisher(live)
    publisher.publish("k", b"last words")
    publisher.close()
    publisher.publish("k", b"too late")
    assert [body for _, body in live.read(["k"], before)[1]] == [b"last words"]
    publisher.close()


class FailsFirst(MemoryLive):
    """Breaks the promise never to raise, once."""

    failed = False

    def publish(self, items: Sequence[tuple[str, bytes]]) -> None:
        if not self.failed:
            self.failed = True
            raise RuntimeError("the channel is gone")
        super().publish(items)


def test_a_channel_that_raises_costs_its_batch_and_not_the_thread() -> None:
    live = FailsFirst()
    before = live.last()
    publisher = LivePublisher(live)
    publisher.publish("k", b"lost")
    publisher.hurry()
    end = time.monotonic() + 5
    while not live.failed and time.monotonic() < end:
        time.sleep(0.01)
    publisher.publish("k", b"carried")
    publisher.close()
    assert [body for _, body in live.read(["k"], before)[1]] == [b"carried"]


def test_the_sql_channel_raises_nothing(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/runs.db")
    store.live.publish([("k", "not bytes")])  # type: ignore[list-item]  # SQLAlchemy's StatementError, none of the driver's
    store.live.publish([("k", b"bytes")])
    assert store.live.read(["k"], 0)[1] == [("k", b"bytes")]
    assert store.live.read(["k"], object())[1] == []
    store.close()
