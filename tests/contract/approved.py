"""A run that stands before an approval, its worker gone, and what somebody else then does with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.runs import KEY, TOOL, Host, Outcome, QueueProvider, asks
from vv_agent import ApprovalDecision, Runner, ToolContext, function_tool
from vv_agent.checkpoint.identity import idempotency_key
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.launch import open_approvals


class Approved:
    """`waiting` is the journal while the call waits, `decided` what it is when the decision is stored and nobody has gone
    on, `seen` the call's entry while the tool works; `keys` are the idempotency keys the tool was given, `key` the one
    it should be given."""

    key = idempotency_key(KEY, 1, 1)

    def __init__(self, folder: Path) -> None:
        self.decided: dict[str, Any] = {}
        self.seen: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

        @function_tool(name="write_record", needs_approval=True)
        def write_record(context: ToolContext) -> str:
            """Write a record."""
            self.seen.append(self.host.journal()[TOOL])
            self.keys.append(context.idempotency_key)
            return "written"

        self.store = MemoryStore()
        self.host = Host(self.store, folder, [write_record])
        first = self.host.run([asks()])
        assert first.ok.status == "wait_user", first
        self.request = first.event("approval_requested").request_id
        self.waiting = self.host.journal()
        self.shown = open_approvals(self.store, KEY)[self.request]

    def decide(self, decision: ApprovalDecision) -> Outcome:
        """Decide from outside, and have somebody else go on."""
        runner = Runner(model_provider=QueueProvider([]), workspace=self.host.folder)
        runner.attach(KEY, store=self.store).approve(self.request, decision)
        snapshot = self.store.load(KEY)
        assert snapshot is not None
        assert [signal.id for signal in snapshot.signals] == [self.request]
        self.decided = self.host.journal()
        return self.host.run(["done"])

    @staticmethod
    def told(outcome: Outcome) -> dict[str | None, str]:
        """What the model was told of each call."""
        return {message.tool_call_id: message.content for message in outcome.ok.messages if message.role == "tool"}
