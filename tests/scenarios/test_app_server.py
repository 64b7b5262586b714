"""The App Server through its client: threads, turns, approvals, reconnecting, and whatever goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app_server import Served, refused, until
from vv_agent import RunConfig, function_tool
from vv_agent.app_server import SqlThreadStore
from vv_agent.app_server.host import DefaultAppServerHost
from vv_agent.checkpoint.config import CheckpointConfig
from vv_agent.checkpoint.store import open_store
from vv_agent.testing import call

GATE = threading.Event()


@function_tool(needs_approval=True, idempotency="supported")
def launch(pad: str) -> str:
    """Launch a rocket."""
    return f"launched from {pad}"


@function_tool(idempotency="supported")
def wait_for_gate() -> str:
    """Wait."""
    assert GATE.wait(30)
    return "open"


@pytest.fixture(autouse=True)
def _closed_gate() -> Iterator[None]:
    GATE.clear()
    yield
    GATE.set()


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Options of a server: threads in memory, or in a file with checkpointed turns."""
    if request.param == "memory":
        yield {}
        return
    store, threads = open_store(f"sqlite:///{tmp_path}/runs.db"), SqlThreadStore(f"sqlite:///{tmp_path}/threads.db")
    yield {"store": threads, "config": RunConfig(checkpoint_config=CheckpointConfig(store=store))}
    threads.close()
    store.close()


def methods(served: Served, thread_id: str | None = None) -> list[str]:
    return [
        m["method"]
        for m in served.wire.received()
        if "method" in m and thread_id in (None, m["params"].get("threadId"))
    ]


def items(snapshot: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [item for item in snapshot["items"] if item["type"] == kind]


# Turns.


def test_a_turn_is_told_as_it_happens_and_can_be_read_afterwards(place: dict[str, Any]) -> None:
    with Served(["Hello there."], **place) as served:
        thread_id = served.thread(cwd="/tmp", metadata={"who": "me"})
        done = served.run(thread_id)
        assert (done["status"], done["finalOutput"], done["completionReason"]) == (
            "completed", "Hello there.", "no_tool_finish",
        )  # fmt: skip
        snapshot = served.read(thread_id)
        (turn,) = snapshot["turns"]
        assert turn["result"] == {k: v for k, v in done.items() if k not in ("threadId", "turnId", "runId", "status")}
        assert snapshot["thread"]["status"] == "idle"
        assert [item["payload"] for item in items(snapshot, "userMessage")] == [{"text": "Go."}]
        assert items(snapshot, "agentMessage")[-1]["payload"] == {"text": "Hello there."}
        told = [m["params"] for m in served.messages if m.get("method") in ("item/completed", "item/started")]
        assert told == [item for item in snapshot["items"] if item["status"] != "inProgress"]


def test_the_next_turn_knows_what_was_said(place: dict[str, Any]) -> None:
    def remember(request: Any) -> str:
        return " / ".join(message.content for message in request.messages if message.role == "user")

    with Served([remember], **place) as served:
        thread_id = served.thread()
        served.run(thread_id, "My name is Ada.")
        assert served.run(thread_id, "What is my name?")["finalOutput"] == "My name is Ada. / What is my name?"


def test_one_turn_at_a_time(place: dict[str, Any]) -> None:
    with Served([call("wait_for_gate"), "Done."], [wait_for_gate], **place) as served:
        thread_id = served.thread()
        served.turn(thread_id)
        start = {"threadId": thread_id, "input": [{"type": "text", "text": "Me too."}]}
        assert refused(served.client.start_turn, start).rpc_code == -32602
        assert refused(served.client.archive_thread, {"threadId": thread_id}).rpc_code == -32602
        GATE.set()
        served.next("turn/completed", status="completed")


def test_a_second_interrupt_is_answered_too(place: dict[str, Any]) -> None:
    with Served([call("wait_for_gate"), "Done."], [wait_for_gate], **place) as served:
        thread_id = served.thread()
        turn_id = served.turn(thread_id)
        served.next("item/started", type="toolCall")
        other = {"threadId": thread_id, "expectedTurnId": "turn_99"}
        assert refused(served.client.interrupt_turn, other).rpc_code == -32031
        for _ in range(2):
            answer = served.client.interrupt_turn({"threadId": thread_id, "reason": "enough", "expectedTurnId": ""})
            assert answer == {"threadId": thread_id, "turnId": turn_id, "cancelled": True}
        GATE.set()
        done = served.next("turn/completed")
        assert (done["status"], done["completionReason"], done["error"]) == ("failed", "cancelled", "enough")
        assert refused(served.client.interrupt_turn, {"threadId": thread_id}).rpc_code == -32030


def test_follow_ups_run_in_order_and_only_after_a_completed_turn(place: dict[str, Any]) -> None:
    with Served([call("wait_for_gate"), "Done."], [wait_for_gate], **place) as served:
        thread_id = served.thread()
        first = served.turn(thread_id, "one")
        queued = [
            served.client.follow_up_turn({"threadId": thread_id, "input": [{"type": "text", "text": text}]})
            for text in ("two", "three")
        ]
        assert [(answer["turnId"], answer["queued"]) for answer in queued] == [(first, True)] * 2
        assert [turn["status"] for turn in served.read(thread_id)["turns"]] == ["running", "queued", "queued"]
        GATE.set()
        for _ in range(3):
            served.next("turn/completed", status="completed")
        snapshot = served.read(thread_id)
        assert [item["payload"]["text"] for item in items(snapshot, "userMessage")] == ["one", "two", "three"]
        assert [turn["turnId"] for turn in snapshot["turns"]] == [
            first,
            *(answer["followUpTurnId"] for answer in queued),
        ]


def test_a_follow_up_of_an_interrupted_turn_waits_for_one_that_completes() -> None:
    with Served([lambda request: "Done."], delay=0.0) as served:
        thread_id = served.thread()
        with Served(["Never."], delay=30.0) as slow:
            slow_thread = slow.thread()
            slow.turn(slow_thread)
            slow.client.follow_up_turn({"threadId": slow_thread, "input": [{"type": "text", "text": "later"}]})
            slow.client.interrupt_turn({"threadId": slow_thread})
            slow.next("turn/completed", status="failed")
            assert [turn["status"] for turn in slow.read(slow_thread)["turns"]] == ["failed", "queued"]
        served.run(thread_id)
        assert refused(served.client.follow_up_turn, {"threadId": thread_id, "input": [{}]}).rpc_code == -32030


def test_a_host_that_fails_leaves_no_turn() -> None:
    class Failing(DefaultAppServerHost):
        def build_run_config(self, request: Any) -> RunConfig:
            raise ValueError("no quota")

    with Served() as plain:
        agent = plain.agent
    with Served(host=Failing(agent)) as served:
        thread_id = served.thread()
        error = refused(served.client.start_turn, {"threadId": thread_id, "input": [{}]})
        assert (error.rpc_code, "no quota" in error.message) == (-32603, True)
        snapshot = served.read(thread_id)
        assert (snapshot["turns"], snapshot["thread"]["status"]) == ([], "idle")


def test_the_run_knows_thread_and_turn_and_the_host_where(tmp_path: Path) -> None:
    asked: list[Any] = []

    class Asked(DefaultAppServerHost):
        def resolve_agent(self, request: Any) -> Any:
            asked.append(request)
            return super().resolve_agent(request)

    @function_tool
    def show(context: Any) -> str:
        """Show."""
        return str(dict(context.metadata))

    with Served() as plain:
        agent = plain.agent
    with Served(host=Asked(agent, RunConfig(metadata={"a": 1}))) as served:
        thread_id = served.thread(agentKey="coder", cwd=str(tmp_path), metadata={"b": 2})
        served.run(thread_id, metadata={"c": 3})
    (request,) = asked
    assert (request.thread_id, request.agent_key, request.cwd, request.metadata) == (
        thread_id, "coder", str(tmp_path), {"b": 2},
    )  # fmt: skip


# Approvals.


def test_the_client_decides_by_answering_or_by_a_request(place: dict[str, Any]) -> None:
    steps = [call("launch", {"pad": "A"}), call("launch", {"pad": "B"}), "Done."]
    with Served(steps, [launch], **place) as served:
        thread_id = served.thread()
        turn_id = served.turn(thread_id)
        asked = served.next("approval/request")
        assert (asked["toolName"], asked["arguments"], asked["turnId"]) == ("launch", {"pad": "A"}, turn_id)
        assert asked["preview"] == "Approval required for tool launch."
        served.client.resolve_approval({"requestId": asked["requestId"], "decision": "allow", "reason": "go"})
        told = served.next("approval/resolved")
        assert (told["decision"], told["reason"], told["requestId"]) == ("allow", "go", asked["requestId"])
        again = served.next("approval/request")
        wrong = {"threadId": thread_id, "turnId": turn_id, "requestId": "approval_x", "decision": "deny"}
        assert refused(served.client.resolve_approval_request, wrong).rpc_code == -32602
        right = {**wrong, "requestId": again["requestId"]}
        assert served.client.resolve_approval_request(right) == {}
        assert refused(served.client.resolve_approval_request, right).rpc_code == -32602
        served.next("approval/resolved", decision="deny")
        served.next("turn/completed", status="completed")
        statuses = [
            item["status"] for item in items(served.read(thread_id), "toolCall") if item["status"] != "inProgress"
        ]
        assert statuses == ["started", "completed", "failed"]


def test_allow_session_is_told_as_such() -> None:
    steps = [call("launch", {"pad": "A"}), call("launch", {"pad": "B"}), "Done."]
    with Served(steps, [launch]) as served:
        served.turn(served.thread())
        asked = served.next("approval/request")
        served.client.send_response(asked["requestId"], {"decision": "allow_session"})
        assert served.next("approval/resolved")["decision"] == "allow_session"
        served.next("turn/completed", status="completed")
        assert methods(served).count("approval/request") == 1


def test_nobody_who_answers_is_a_timeout() -> None:
    with Served([call("launch", {"pad": "A"}), "Done."], [launch], approval_timeout=0.2) as served:
        served.turn(served.thread())
        served.next("approval/request")
        assert served.next("approval/resolved")["decision"] == "timeout"
        served.next("turn/completed", status="completed")


def test_interrupting_a_turn_resolves_what_it_asked(place: dict[str, Any]) -> None:
    with Served([call("launch", {"pad": "A"}), "Done."], [launch], **place) as served:
        thread_id = served.thread()
        turn_id = served.turn(thread_id)
        asked = served.next("approval/request")
        served.client.interrupt_turn({"threadId": thread_id})
        told = served.next("approval/resolved")
        assert (told["decision"], told["reason"]) == ("timeout", "turn interrupted")
        late = {"threadId": thread_id, "turnId": turn_id, "requestId": asked["requestId"], "decision": "allow"}
        assert refused(served.client.resolve_approval_request, late).rpc_code == -32602
        assert served.next("turn/completed")["completionReason"] == "cancelled"
        assert not [item for item in items(served.read(thread_id), "toolCall") if item["status"] == "started"]


def test_unsubscribing_the_owner_is_a_timeout_at_once(place: dict[str, Any]) -> None:
    with Served([call("launch", {"pad": "A"}), "Done."], [launch], **place) as served:
        thread_id = served.thread()
        served.turn(thread_id)
        served.next("approval/request")
        assert served.client.unsubscribe_thread({"threadId": thread_id})["closed"] is False
        until(lambda: served.read(thread_id)["thread"]["status"] == "idle", "the turn is over")
        approvals = items(served.read(thread_id), "approval")
        assert [item["payload"].get("action") for item in approvals] == [None, "timeout"]
