"""The desk that has the approvals of a run decided."""

from __future__ import annotations

from typing import Any, cast

from vv_agent.events import ApprovalRequestedEvent, make_event
from vv_agent.following import Desk


class Handle:
    """Of a run that is over when the test says so."""

    def when_over(self, call: Any) -> None:
        self.end = call

    def is_open(self, name: str) -> bool:
        return False


def asked(name: str) -> ApprovalRequestedEvent:
    event = make_event(
        "approval_requested", event_id=f"e-{name}", run_id="r", trace_id="t", created_at=1.0, request_id=name,
        tool_call_id="c", tool_name="launch", message="launch", metadata={"arguments": {}},
    )  # fmt: skip
    assert isinstance(event, ApprovalRequestedEvent)
    return event


def test_a_request_that_is_seen_while_the_run_ends_does_not_disturb_the_end() -> None:
    discarded: list[str] = []

    class Broker:
        def discard(self, name: str) -> None:
            discarded.append(name)
            desk.see(asked(f"{name} again"))

    handle = Handle()
    desk = Desk(None, cast(Any, Broker()), cast(Any, handle), past=True)
    for name in ("one", "two"):
        desk.see(asked(name))
    handle.end()
    assert sorted(discarded) == ["one", "two"]
