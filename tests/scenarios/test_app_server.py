"""The App Server through its client: threads, turns, approvals, reconnecting, and whatever goes wrong."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.app_server import Served, refused, until
from vv_agent import Agent, AppServer, NoToolPolicy, RunConfig, Runner, function_tool
from vv_agent.app_server import (
    AppServerClient,
    AsyncAppServerClient,
    ChannelTransport,
    DefaultAppServerHost,
    MemoryThreadStore,
    MessageProcessor,
    OutgoingRouter,
    SqlThreadStore,
)
from vv_agent.app_server.processor import Lanes
from vv_agent.app_server.protocol import AppTurn
from vv_agent.app_server.rpc import RpcError, encode, request
from vv_agent.app_server.sql import TurnRecord
from vv_agent.checkpoint.config import CheckpointConfig
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.store import open_store
from vv_agent.errors import StoreError
from vv_agent.testing import FakeClock, ScriptedProvider, call, calls

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


@function_tool
def hold() -> str:
    """Wait, with an effect that must not be had twice."""
    assert GATE.wait(30)
    return "held"


@function_tool(idempotency="supported")
def look(n: int) -> str:
    """Look."""
    return f"nothing at {n}"


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


def test_a_steer_is_read_before_the_next_model_call_and_skips_what_was_not_begun(place: dict[str, Any]) -> None:
    def heard(request: Any) -> str:
        skipped = [message.content for message in request.messages if message.role == "tool"][-1]
        return f"{request.messages[-1].content} {skipped}"

    steps = [calls(("hold", {}), ("hold", {})), heard]
    with Served(steps, [hold], **place) as served:
        thread_id = served.thread()
        turn_id = served.turn(thread_id)
        served.next("item/started", type="toolCall")
        words = {
            "threadId": thread_id,
            "expectedTurnId": turn_id,
            "input": [{"type": "text", "text": "The other one."}],
        }
        assert served.client.steer_turn(words) == {"threadId": thread_id, "turnId": turn_id, "queued": True}
        wrong = {**words, "expectedTurnId": "turn_99"}
        assert refused(served.client.steer_turn, wrong).rpc_code == -32031
        GATE.set()
        said = served.next("turn/completed")["finalOutput"]
        assert said.startswith("The other one.")
        assert "Tool skipped due to queued steering message." in said
        began = [item for item in items(served.read(thread_id), "toolCall") if item["status"] == "started"]
        assert len(began) == 1
        assert refused(served.client.steer_turn, words).rpc_code == -32030


def test_what_an_agent_below_asks_is_asked_of_the_client(place: dict[str, Any]) -> None:
    below = Agent(
        name="pilot", instructions="Fly.", tools=[launch], no_tool_policy=NoToolPolicy.FINISH,
    )  # fmt: skip

    def play(request: Any) -> Any:
        if "Fly." in str(request.messages[0].content):
            return call("launch", {"pad": "A"}) if request.turn == 0 else "flown"
        return call("fly", {"task_description": "now"}) if request.turn == 0 else "Done."

    with Served([play] * 4, [below.as_tool(name="fly", description="Fly.")], **place) as served:
        thread_id = served.thread()
        served.turn(thread_id)
        asked = served.next("approval/request")
        assert (asked["toolName"], asked["arguments"]) == ("launch", {"pad": "A"})
        served.client.resolve_approval({"requestId": asked["requestId"], "decision": "allow"})
        served.next("approval/resolved", decision="allow")
        assert served.next("turn/completed")["finalOutput"] == "Done."
        kinds = [item["type"] for item in served.read(thread_id)["items"] if item["status"] == "completed"]
        assert kinds == ["userMessage", "approval", "toolCall", "agentMessage"]


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


# Coming back.


class Office:
    """One processor with several clients, as a service has it."""

    def __init__(self, steps: Sequence[Any], tools: Sequence[Any] = (), **options: Any) -> None:
        agent = Agent(name="assistant", instructions="Test.", tools=list(tools), no_tool_policy=NoToolPolicy.FINISH)
        config, store = options.pop("config", None), options.pop("store", None)
        runner = Runner(model_provider=ScriptedProvider(list(steps)))
        self.processor, self.outgoing = MessageProcessor.with_runtime(
            128, runner, agent, store, run_config=config, **options
        )

    @classmethod
    def of(cls, processor: MessageProcessor, outgoing: OutgoingRouter) -> Office:
        office = cls.__new__(cls)
        office.processor, office.outgoing = processor, outgoing
        return office

    def client(self, name: str) -> AppServerClient:
        self.processor.connect(name)
        client = AppServerClient(Desk(self, name), timeout=30)
        client.initialize({"name": name})
        return client


class Desk:
    """The transport of one client of an office."""

    def __init__(self, office: Office, name: str) -> None:
        self._office = office
        self._name = name

    def receive(self) -> bytes | None:
        return self._office.outgoing.receive(self._name)

    def send(self, line: bytes) -> None:
        self._office.processor.process(self._name, line)

    def close(self) -> None:
        self._office.processor.disconnect(self._name)


def wait_for(client: AppServerClient, method: str) -> dict[str, Any]:
    while (message := client.next_message(timeout=20)) is not None:
        if message["method"] == method:
            return dict(message["params"])
    raise AssertionError(f"no {method} came")


GO = [{"type": "text", "text": "Go."}]


def test_an_open_approval_outlives_its_client_when_the_turn_is_checkpointed(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    config = RunConfig(checkpoint_config=CheckpointConfig(store=store))
    office = Office([call("launch", {"pad": "A"}), "Launched."], [launch], config=config, approval_timeout=5.0)
    first = office.client("first")
    thread_id = first.start_thread({})["threadId"]
    first.start_turn({"threadId": thread_id, "input": GO})
    asked = wait_for(first, "approval/request")
    first.close()
    second = office.client("second")
    snapshot = second.resume_thread({"threadId": thread_id, "afterSeq": 0})
    assert [item["payload"]["requestId"] for item in items(snapshot, "approval")] == [asked["requestId"]]
    again = wait_for(second, "approval/request")
    assert again == asked
    second.resolve_approval({"requestId": asked["requestId"], "decision": "allow"})
    assert wait_for(second, "turn/completed")["finalOutput"] == "Launched."
    second.close()
    office.processor.close()
    store.close()


def test_an_open_approval_of_a_turn_in_memory_times_out_with_its_client() -> None:
    office = Office([call("launch", {"pad": "A"}), "Not launched."], [launch])
    first = office.client("first")
    thread_id = first.start_thread({})["threadId"]
    first.start_turn({"threadId": thread_id, "input": GO})
    wait_for(first, "approval/request")
    second = office.client("second")
    second.resume_thread({"threadId": thread_id})
    first.close()
    assert wait_for(second, "approval/resolved")["decision"] == "timeout"
    assert wait_for(second, "turn/completed")["finalOutput"] == "Not launched."
    second.close()
    office.processor.close()


def test_only_the_client_that_was_asked_may_decide() -> None:
    office = Office([call("launch", {"pad": "A"}), "Done."], [launch])
    owner, other = office.client("owner"), office.client("other")
    thread_id = owner.start_thread({})["threadId"]
    turn_id = owner.start_turn({"threadId": thread_id, "input": GO})["turnId"]
    other.resume_thread({"threadId": thread_id})
    asked = wait_for(owner, "approval/request")
    params = {"threadId": thread_id, "turnId": turn_id, "requestId": asked["requestId"], "decision": "allow"}
    assert refused(other.resolve_approval_request, params).rpc_code == -32602
    other.resolve_approval({"requestId": asked["requestId"], "decision": "deny"})  # nobody asked it
    assert owner.resolve_approval_request(params) == {}
    assert wait_for(other, "approval/resolved")["decision"] == "allow"
    wait_for(other, "turn/completed")
    for client in (owner, other):
        client.close()
    office.processor.close()


def come_and_go(rounds: int) -> None:
    """In each round a client resumes the thread while its turn completes: the answer is in the snapshot or in what
    follows it, and what it has seen by `afterSeq` is not told again."""
    office = Office([lambda request: f"answer {request.messages[-1].content}"])
    last, found, thread_id = 0, {"snapshot": 0, "feed": 0}, ""
    owner = office.client("owner")
    for number in range(rounds):
        if number % 50 == 0:  # a turn is sent all that was said before
            thread_id, last = owner.start_thread({})["threadId"], 0
        visitor = office.client(f"visitor {number}")
        owner.start_turn({"threadId": thread_id, "input": [{"type": "text", "text": str(number)}]})
        if number % 3:
            wait_for(owner, "item/agentMessage/delta" if number % 3 == 1 else "item/completed")
        snapshot = visitor.resume_thread({"threadId": thread_id, "afterSeq": last})
        assert all(item["seq"] > last for item in snapshot["items"])
        if f"answer {number}" in [item["payload"].get("text") for item in items(snapshot, "agentMessage")]:
            found["snapshot"] += 1
        else:
            found["feed"] += 1
            told = wait_for(visitor, "item/completed")
            while told["payload"].get("text") != f"answer {number}":
                told = wait_for(visitor, "item/completed")
            assert told["seq"] > snapshot["lastSeq"]
        if not [turn for turn in snapshot["turns"] if turn["status"] == "completed"]:
            assert wait_for(visitor, "turn/completed")["finalOutput"] == f"answer {number}"
        visitor.close()
        wait_for(owner, "turn/completed")
        last = owner.read_thread({"threadId": thread_id, "limit": 1, "afterSeq": last})["lastSeq"]
    print(found)
    assert found["feed"]
    owner.close()
    office.processor.close()


def test_who_resumes_while_a_turn_completes_misses_nothing() -> None:
    come_and_go(60)


@pytest.mark.slow
def test_who_resumes_a_thousand_times_while_a_turn_completes_misses_nothing() -> None:
    come_and_go(1_000)


def test_what_was_missed_is_read_in_pages() -> None:
    with Served([*(call("look", {"n": n}) for n in range(5)), "Done."], [look]) as served:
        thread_id = served.thread()
        served.run(thread_id)
        whole = served.read(thread_id)
        assert "nextAfterSeq" not in whole
        pages, after = [], 0
        while after is not None:
            pages.append(served.read(thread_id, afterSeq=after, limit=3))
            after = pages[-1].get("nextAfterSeq")
        assert [item for page in pages for item in page["items"]] == whole["items"]
        assert [turn for page in pages for turn in page["turns"]] == whole["turns"]
        middle = whole["items"][4]
        assert served.read(thread_id, afterItemId=middle["itemId"])["items"] == whole["items"][5:]
        assert served.read(thread_id, afterItemId="item_unknown")["items"] == whole["items"]


def test_silenced_notifications_do_not_come() -> None:
    ours = Served(["Hello there."])
    silenced = ["item/agentMessage/delta", "thread/status/changed", "approval/request"]
    ours.client.initialize({"clientInfo": {"name": "x"}, "capabilities": {"optOutNotificationMethods": silenced}})
    ours.run(ours.thread())
    assert not set(silenced) & set(methods(ours))
    ours.close(check=False)


def test_threads_are_listed_archived_closed_and_opened_again() -> None:
    with Served() as served:
        one, two = served.thread(), served.thread(agentKey="b")
        listed = served.client.list_threads()["threads"]
        assert [thread["threadId"] for thread in listed] == [two, one]
        assert served.client.archive_thread({"threadId": one}) == {"threadId": one, "archived": True}
        until(lambda: methods(served, one)[-2:] == ["thread/archived", "thread/status/changed"], "it is archived")
        assert refused(served.client.start_turn, {"threadId": one, "input": GO}).rpc_code == -32021
        assert refused(served.client.start_turn, {"threadId": "nope", "input": GO}).rpc_code == -32020
        assert served.read(one)["thread"]["archivedAt"] is not None
        assert [t["threadId"] for t in served.client.list_threads({})["threads"]] == [two]
        assert len(served.client.list_threads({"includeArchived": True})["threads"]) == 2
        assert [t["threadId"] for t in served.client.list_threads({"archived": True})["threads"]] == [one]
        page = served.client.list_threads({"includeArchived": True, "limit": 1})
        assert (page["threads"][0]["threadId"], page["nextOffset"]) == (two, 1)
        left = served.client.unsubscribe_thread({"threadId": two})
        assert left == {"threadId": two, "subscribed": False, "closed": True}
        until(lambda: methods(served, two)[-2:] == ["thread/closed", "thread/status/changed"], "it is closed")
        assert served.read(two)["thread"]["status"] == "closed"
        assert served.client.resume_thread({"threadId": two})["thread"]["status"] == "idle"
        assert served.run(two)["status"] == "completed"


def test_models_are_those_of_the_host() -> None:
    models = [{"id": "m", "provider": "p", "supportsTools": True}, {"id": "n", "provider": "q", "supportsTools": False}]
    with Served() as plain:
        agent = plain.agent
    with Served(host=DefaultAppServerHost(agent, None, models)) as served:
        assert served.client.list_models({"provider": "p"})["models"] == models[:1]
        assert served.client.list_models()["models"] == models


def test_wrong_requests_are_told_what_is_wrong() -> None:
    with Served() as served:
        assert refused(served.client.initialize, {"name": "again"}).rpc_code == -32011
        unknown = refused(served.client.call, "thread/fork", {})
        assert (unknown.rpc_code, unknown.data) == (-32601, {"method": "thread/fork"})
        assert refused(served.client.call, "turn/resume", {"threadId": "a"}).rpc_code == -32602
        assert refused(served.client.call, "schema/export", {"a": 1}).rpc_code == -32602


def test_without_a_runtime_only_the_schema_is_there() -> None:
    router = OutgoingRouter()
    processor = MessageProcessor(router)
    processor.connect("c")

    def ask(number: int, method: str, params: Any) -> Any:
        processor.process("c", encode(request(number, method, params)))
        return json.loads(router.receive("c", 20) or b"")

    hello = ask(1, "initialize", {"clientInfo": {"name": "x"}})
    assert hello["result"]["capabilities"]["threadLifecycle"] is False
    assert ask(2, "thread/start", {})["error"]["code"] == -32603
    assert "AppItem" in ask(3, "schema/export", {})["result"]["jsonSchema"]
    processor.close()


def test_too_many_requests_are_refused() -> None:
    class Slow(DefaultAppServerHost):
        def list_models(self, request: Any) -> Any:
            assert GATE.wait(30)
            return []

    with Served() as plain:
        agent = plain.agent
    processor, router = MessageProcessor.with_host(4, Runner(), Slow(agent))
    processor.connect("c")
    for number in range(6):
        method, params = ("model/list", {}) if number else ("initialize", {"clientInfo": {"name": "x"}})
        processor.process("c", encode(request(number, method, params)))
    assert json.loads(router.receive("c", 20) or b"")["id"] == 0
    over = json.loads(router.receive("c", 20) or b"")
    assert (over["id"], over["error"]) == (5, {"code": -32001, "message": "Server overloaded; retry later."})
    GATE.set()
    assert [json.loads(router.receive("c", 20) or b"")["id"] for _ in range(4)] == [1, 2, 3, 4]
    processor.close()


def test_the_client_can_be_awaited() -> None:
    ours, theirs = ChannelTransport.pair()
    with Served() as plain:
        agent = plain.agent
    server = AppServer(
        DefaultAppServerHost(agent), transport=ours, runner=Runner(model_provider=ScriptedProvider(["Hello."]))
    )
    thread = server.start()

    async def use() -> Any:
        client = AsyncAppServerClient(theirs, timeout=20)
        await client.initialize({"name": "x"})
        started = await asyncio.gather(*(client.start_thread({}) for _ in range(3)))
        await client.start_turn({"threadId": started[0]["threadId"], "input": GO})
        while (message := await client.next_message(timeout=20)) is not None:
            if message["method"] == "turn/completed":
                break
        await client.close()
        return message

    assert asyncio.run(use())["params"]["finalOutput"] == "Hello."
    thread.join(20)


# Restarts.


def test_threads_outlive_the_server(tmp_path: Path) -> None:
    def heard(request: Any) -> str:
        return " / ".join(message.content for message in request.messages if message.role == "user")

    url = f"sqlite:///{tmp_path}/threads.db"
    store = SqlThreadStore(url)
    with pytest.raises(StoreError) as busy:
        SqlThreadStore(url)
    assert busy.value.code == "store_in_use"
    with Served([heard], store=store) as served:
        thread_id = served.thread()
        served.run(thread_id, "one")
        before = served.read(thread_id)
    store.close()
    store = SqlThreadStore(url)
    with Served([heard], store=store) as served:
        assert served.read(thread_id) == before
        assert served.thread() == "thread_2"
        assert served.run(thread_id, "two")["finalOutput"] == "one / two"
    store.close()


def test_a_store_of_something_else_is_refused(tmp_path: Path) -> None:
    from vv_agent.sessions.sql import SqliteSessionStore

    SqliteSessionStore(tmp_path / "sessions.db")
    with pytest.raises(StoreError) as refusal:
        SqlThreadStore(f"sqlite:///{tmp_path}/sessions.db")
    assert refusal.value.code == "store_incompatible"


# A reader that is too slow.


def test_a_reader_that_is_too_slow_is_closed_and_misses_nothing_later() -> None:
    clock = FakeClock(0)
    store = MemoryThreadStore()
    ours, theirs = ChannelTransport.pair(capacity=1)
    with Served() as plain:
        agent = plain.agent
    runner = Runner(model_provider=ScriptedProvider(["x" * 8 * 500]))
    server = AppServer(
        DefaultAppServerHost(agent), store=store, transport=ours, runner=runner, clock=lambda: clock.now / 1000
    )
    thread = server.start()
    for number, (method, params) in enumerate(
        [
            ("initialize", {"clientInfo": {"name": "slow"}}), ("thread/start", {}),
            ("turn/start", {"threadId": "thread_1", "input": GO}),
        ]
    ):  # fmt: skip
        theirs.send(encode(request(number, method, params)))
        if method != "turn/start":
            assert theirs.receive()
    outbox = server.processor._router._boxes["client"]
    until(lambda: outbox._watched, "the queue is full")
    assert store.turns_of("running")
    clock.advance(10_000)
    until(lambda: outbox._closed, "it is closed")
    lines = []
    while (line := theirs.receive()) is not None:
        lines.append(json.loads(line))
    assert lines[-1]["params"]["code"] == "slow_reader"
    assert len(lines) < 10
    thread.join(20)
    assert not thread.is_alive()
    page = store.page("thread_1", lines[-2].get("params", {}).get("seq", 0), 10_000)
    assert page.items[-1].payload == {"text": "x" * 8 * 500}
    assert [turn.status for turn in page.turns] == ["completed"]
    store.close()


@pytest.mark.parametrize("how", ["no checkpoint", "no settings", "host"])
def test_a_turn_that_cannot_be_taken_up_is_interrupted(how: str) -> None:
    class Failing(DefaultAppServerHost):
        def resolve_agent(self, request: Any) -> Any:
            raise ValueError("not today")

    store = MemoryThreadStore()
    thread = store.new_thread("default", None, {}, 1.0)
    turn = AppTurn(
        turn_id=store.new_turn_id(), thread_id=thread.thread_id, run_id=None, status="running", started_at=1.0,
        completed_at=None, input=GO,
    )  # fmt: skip
    store.put_turn(TurnRecord(turn, "gone"))
    config = None if how == "no settings" else RunConfig(checkpoint_config=CheckpointConfig(store=MemoryStore()))
    host = Failing(Agent(name="a", instructions="b"), config) if how == "host" else None
    with Served(store=store, config=config, host=host) as served:
        (left,) = served.read(thread.thread_id)["turns"]
        assert left["status"] == "interrupted"
        assert left["result"]["error"].startswith("the server stopped before the turn ended: ")
        assert left["completedAt"] is not None
    store.close()


def test_a_follow_up_that_waited_for_a_completed_turn_begins_with_the_next_server(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    store = SqlThreadStore(url)
    with Served(store=store) as served:
        thread_id = served.thread()
        served.run(thread_id)
    queued = AppTurn(
        turn_id=store.new_turn_id(), thread_id=thread_id, run_id=None, status="queued", started_at=1.0,
        completed_at=None, input=GO,
    )  # fmt: skip
    store.put_turn(TurnRecord(queued))
    store.close()
    store = SqlThreadStore(url)
    with Served(["Later."], store=store) as served:
        until(lambda: store.turns_of("completed")[-1].turn.turn_id == queued.turn_id, "the follow-up has run")
        assert served.read(thread_id)["turns"][-1]["result"]["finalOutput"] == "Later."
    store.close()


def test_a_follow_up_that_cannot_begin_is_failed_and_told() -> None:
    refusals: list[str] = []

    class Fussy(DefaultAppServerHost):
        def resolve_agent(self, request: Any) -> Any:
            if refusals:
                raise ValueError(refusals[0])
            return super().resolve_agent(request)

    agent = Agent(name="a", instructions="b", tools=[wait_for_gate], no_tool_policy=NoToolPolicy.FINISH)
    with Served([call("wait_for_gate"), "Done."], host=Fussy(agent)) as served:
        thread_id = served.thread()
        served.turn(thread_id)
        served.client.follow_up_turn({"threadId": thread_id, "input": GO})
        refusals.append("no quota")
        GATE.set()
        served.next("turn/completed", status="completed")
        assert "no quota" in served.next("error/warning", code="follow_up")["message"]
        assert [turn["status"] for turn in served.read(thread_id)["turns"]] == ["completed", "failed"]


class Faulty(MemoryThreadStore):
    """Raises where `fault` says so, by the verb and what it is given."""

    def __init__(self, fault: Callable[[str, Any], str | None]) -> None:
        self.fault: Callable[[str, Any], str | None] = lambda verb, given: None
        super().__init__()
        self.fault = fault

    def _check(self, verb: str, given: Any) -> None:
        if (code := self.fault(verb, given)) is not None:
            raise StoreError(code, f"{verb} failed")

    def add_item(self, item: Any) -> Any:
        self._check("add_item", item)
        return super().add_item(item)

    def put_thread(self, thread: Any) -> None:
        self._check("put_thread", thread)
        super().put_thread(thread)

    def turns_of(self, status: str, thread_id: str | None = None) -> Any:
        self._check("turns_of", status)
        return super().turns_of(status, thread_id)


def test_a_store_that_takes_no_items_does_not_keep_an_approval_from_its_client() -> None:
    store = Faulty(lambda verb, given: "store_full" if verb == "add_item" else None)
    with Served([call("launch", {"pad": "A"}), "Done."], [launch], store=store) as served:
        thread_id = served.thread()
        turn_id = served.turn(thread_id)
        asked = served.next("approval/request")
        served.client.resolve_approval_request(
            {"threadId": thread_id, "turnId": turn_id, "requestId": asked["requestId"], "decision": "allow"}
        )
        assert served.next("turn/completed")["finalOutput"] == "Done."
        assert methods(served).count("error/warning") == 1


def test_an_item_is_tried_again_while_the_store_does_not_answer() -> None:
    faults = ["store_unavailable"] * 2
    store = Faulty(lambda verb, given: faults.pop() if verb == "add_item" and faults else None)
    with Served(store=store) as served:
        thread_id = served.thread()
        served.run(thread_id)
        assert not faults
        assert served.read(thread_id)["items"][0]["type"] == "userMessage"
        assert "error/warning" not in methods(served)


def test_a_turn_is_over_though_its_follow_ups_cannot_be_read() -> None:
    faults: list[str] = []
    store = Faulty(lambda verb, given: faults.pop() if (verb, given) == ("turns_of", "queued") and faults else None)
    with Served(store=store) as served:
        thread_id = served.thread()
        faults.append("store_corrupt")
        served.run(thread_id)
        served.next("error/warning", code="event_stream")
        until(served.server.processor.idle, "the turn is over")
        assert served.run(thread_id)["finalOutput"] == "Done."


def test_a_turn_whose_thread_cannot_be_marked_is_answered_once_and_followed() -> None:
    def fault(verb: str, given: Any) -> str | None:
        return "store_full" if verb == "put_thread" and given.status == "running" else None

    with Served(store=Faulty(fault)) as served:
        assert served.run(served.thread())["finalOutput"] == "Done."


def test_a_thread_that_nobody_needs_is_not_kept() -> None:
    with Served(["One.", "Two."]) as served:
        threads = served.server.processor._threads
        assert threads is not None
        first, second = served.thread(), served.thread()
        served.run(first)
        served.client.unsubscribe_thread({"threadId": first})
        until(lambda: list(threads._live) == [second], "the first thread is forgotten")
        served.read(first)
        until(lambda: list(threads._live) == [second], "a thread that was read is forgotten")
    assert list(threads._live) == []


def test_a_request_after_the_end_is_refused() -> None:
    lanes = Lanes()
    lanes.close()
    with pytest.raises(RpcError, match="the server stops"):
        lanes.put("thread t", lambda: None)
    assert lanes.pending == 0
