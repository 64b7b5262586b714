"""The publisher of live text, by itself."""

from __future__ import annotations

from vv_agent.checkpoint.memory import MemoryLive
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
