"""The App Server and clients that come, go and lag: whoever left owns nothing, hears nothing and is not kept."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.app_server import Served, refused, until
from tests.scenarios.test_app_server import GATE, GO, Office, launch, wait_for_gate
from vv_agent import Agent, AppServer, NoToolPolicy, RunConfig, Runner
from vv_agent.app_server import (
    AppServerClient,
    AsyncAppServerClient,
    ChannelTransport,
    DefaultAppServerHost,
    MessageProcessor,
    OutgoingRouter,
    StdioJsonlTransport,
)
from vv_agent.app_server.outgoing import WEIGHT, Connection
from vv_agent.app_server.rpc import MAX_LINE, encode, notification, request
from vv_agent.app_server.runs import AppServerRunAdapter
from vv_agent.checkpoint.config import CheckpointConfig
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.testing import FakeClock, ScriptedProvider, call


@pytest.fixture(autouse=True)
def _closed_gate() -> Iterator[None]:
    GATE.clear()
    yield
    GATE.set()


def a_gated_office(steps: list[Any], **options: Any) -> Office:
    """Its host decides about a turn once the gate is open."""
    office = Office(steps, [launch], **options)
    runs = office.processor._runs
    assert runs is not None
    resolve = runs.host.resolve_agent

    def wait(asked: Any) -> Agent:
        assert GATE.wait(30)
        return resolve(asked)

    runs.host.resolve_agent = wait  # type: ignore[method-assign]
    return office


def start_turn(office: Office, name: str, thread_id: str) -> None:
    """Send the request and do not wait for its answer."""
    office.processor.process(name, encode(request("turn", "turn/start", {"threadId": thread_id, "input": GO})))


def resolutions(office: Office, thread_id: str) -> list[Any]:
    assert office.processor._threads is not None
    page = office.processor._threads.store.page(thread_id, 0, 1_000)
    return [item.payload["reason"] for item in page.items if "action" in item.payload]


def hear(client: AppServerClient, method: str) -> dict[str, Any]:
    """The parameters of the next message of a method."""
    while (message := client.next_message(timeout=20)) is not None:
        if message.get("method") == method:
            return dict(message["params"])
    raise AssertionError(f"no {method} came")


def test_a_client_that_left_before_its_turn_began_neither_owns_nor_hears_it() -> None:
    office = a_gated_office([call("launch", {"pad": "A"}), "Not launched."])
    first = office.client("first")
    thread_id = first.start_thread({})["threadId"]
    start_turn(office, "first", thread_id)
    office.processor.disconnect("first")
    GATE.set()
    until(office.processor.idle, "the turn is over")
    assert resolutions(office, thread_id) == ["connection closed"]
    threads = office.processor._threads
    assert threads is not None
    until(lambda: not threads._live, "the thread is forgotten")
    office.processor.close()


def test_a_client_that_says_no_more_hears_that_nobody_can_be_asked() -> None:
    office = a_gated_office([call("launch", {"pad": "A"}), "Not launched."])
    first = office.client("first")
    thread_id = first.start_thread({})["threadId"]
    start_turn(office, "first", thread_id)
    office.processor.leave("first")
    GATE.set()
    assert hear(first, "approval/resolved")["reason"] == "connection closed"
    assert hear(first, "turn/completed")["finalOutput"] == "Not launched."
    office.processor.close()


def test_a_name_that_comes_again_gets_no_answers_of_the_connection_before() -> None:
    office = a_gated_office(["Done."])
    thread_id = office.client("name").start_thread({})["threadId"]
    start_turn(office, "name", thread_id)
    office.processor.disconnect("name")
    office.processor.connect("name")
    GATE.set()
    until(office.processor.idle, "the turn is over")
    assert office.outgoing.receive("name", 0) is None
    office.processor.close()


def test_connections_that_were_closed_are_not_kept() -> None:
    office = Office(["Done."])
    for number in range(3):
        office.processor.connect(f"client {number}")
        office.processor.process(f"client {number}", b"not JSON")
        office.processor.disconnect(f"client {number}")
    assert office.outgoing._boxes == {}
    office.processor.close()


def test_a_transport_that_breaks_in_any_way_ends_its_server() -> None:
    class Breaking(ChannelTransport):
        def receive(self) -> bytes | None:
            raise ValueError("the transport is broken")

    ours, _ = ChannelTransport.pair()
    agent = Agent(name="assistant", instructions="Test.", no_tool_policy=NoToolPolicy.FINISH)
    runner = Runner(model_provider=ScriptedProvider(["Done."]))
    transport = Breaking(ours._incoming, ours._outgoing)
    thread = AppServer(DefaultAppServerHost(agent), transport=transport, runner=runner).start()
    thread.join(20)
    assert not thread.is_alive()


def a_durable_office() -> Office:
    """Its turn asks twice."""
    steps = [call("launch", {"pad": "A"}), call("launch", {"pad": "B"}), "Done."]
    return Office(steps, [launch], config=RunConfig(checkpoint_config=CheckpointConfig(store=MemoryStore())))


def test_what_a_turn_asks_after_its_owner_unsubscribed_is_asked_of_who_still_hears_it() -> None:
    office = a_durable_office()
    first, second = office.client("first"), office.client("second")
    thread_id = first.start_thread({})["threadId"]
    second.resume_thread({"threadId": thread_id})
    first.start_turn({"threadId": thread_id, "input": GO})
    hear(first, "approval/request")
    first.unsubscribe_thread({"threadId": thread_id})
    assert hear(second, "approval/resolved")["decision"] == "timeout"
    asked = hear(second, "approval/request")
    assert asked["arguments"] == {"pad": "B"}
    second.resolve_approval({"requestId": asked["requestId"], "decision": "allow"})
    assert hear(second, "turn/completed")["finalOutput"] == "Done."
    first.close()
    second.close()
    office.processor.close()


def test_what_a_turn_asks_after_its_last_client_unsubscribed_times_out_at_once() -> None:
    office = a_durable_office()
    first = office.client("first")
    thread_id = first.start_thread({})["threadId"]
    first.start_turn({"threadId": thread_id, "input": GO})
    hear(first, "approval/request")
    first.unsubscribe_thread({"threadId": thread_id})
    until(lambda: len(resolutions(office, thread_id)) == 2, "both have timed out")
    assert first.read_thread({"threadId": thread_id})["items"]
    assert resolutions(office, thread_id) == ["connection closed"] * 2
    first.close()
    office.processor.close()


def test_an_open_approval_of_a_checkpointed_turn_is_asked_of_who_hears_it_when_its_owner_is_gone() -> None:
    office = a_durable_office()
    first, second = office.client("first"), office.client("second")
    thread_id = first.start_thread({})["threadId"]
    second.resume_thread({"threadId": thread_id})
    first.start_turn({"threadId": thread_id, "input": GO})
    asked = hear(first, "approval/request")
    first.close()
    assert hear(second, "approval/request") == asked
    second.unsubscribe_thread({"threadId": thread_id})
    until(office.processor.idle, "the turn is over")
    second.close()
    office.processor.close()


def test_a_client_reads_answers_longer_than_a_line_the_server_reads() -> None:
    with Served() as served:
        thread_id = served.thread()
        served.run(thread_id, "x" * 5_000_000)  # in the turn, and in its first item
        assert len(served.read(thread_id, afterItemId="item_unknown", limit=1)["items"]) == 1
        ours, theirs = ChannelTransport.pair()
        client = AppServerClient(theirs)
        long = notification("error/warning", {"message": "x" * MAX_LINE})
        ours.send(encode(long))
        assert client.next_message(timeout=20) == long
        client.close()


def test_a_line_that_is_too_long_is_refused_over_a_channel_too() -> None:
    office = Office(["Done."])
    office.processor.connect("client")
    office.processor.process("client", b'"' + b"x" * MAX_LINE + b'"')
    assert json.loads(office.outgoing.receive("client", 20) or b"")["error"]["code"] == -32700
    office.processor.close()


def test_a_client_reads_long_lines_of_a_server_it_started() -> None:
    say = f"import sys; sys.stdout.write('[' + ' ' * {2 * MAX_LINE} + ']\\n'); sys.stdin.read()"
    transport, child = StdioJsonlTransport.starting([sys.executable, "-c", say])
    assert transport.receive() == b"[" + b" " * 2 * MAX_LINE + b"]"
    transport.close()
    child.wait(20)
    assert child.stdout is not None
    child.stdout.close()


def test_a_client_that_cannot_read_a_line_does_not_wait_for_its_answer() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "wb") as server:
        client = AppServerClient(StdioJsonlTransport(reader, io.BytesIO()), timeout=20)
        server.write(b"[" + b" " * 2 * MAX_LINE + b"]\n")
        server.flush()
        assert refused(client.call, "thread/list").code == "app_server_closed"
        client.close()


def test_a_message_that_comes_after_a_cancelled_wait_is_not_lost() -> None:
    ours, theirs = ChannelTransport.pair()

    async def use() -> None:
        client = AsyncAppServerClient(theirs)
        for number in range(20):
            waiting = asyncio.create_task(client.next_message())
            await asyncio.sleep(0)  # it waits now
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            told = notification("error/warning", {"message": str(number)})
            ours.send(encode(told))
            assert await client.next_message(timeout=5) == told
        assert await client.next_message(timeout=0.01) is None
        await client.close()
        assert await client.next_message() is None

    asyncio.run(use())


# Clients that lag.


def test_a_queue_is_full_by_its_bytes_too() -> None:
    box = Connection("c", 128, clock=lambda: 0.0, patience=10.0, too_slow=lambda one: None)
    for _ in range(4):
        assert box.wait_for_room(0)
        box.put(b"x" * (WEIGHT // 4))
    assert not box.wait_for_room(0)
    box.get()
    assert box.wait_for_room(0)
    box.close()


def test_answers_that_nobody_reads_are_bounded_by_their_bytes() -> None:
    office = Office([lambda request: "Done."])
    owner = office.client("owner")
    thread_id = owner.start_thread({})["threadId"]
    owner.start_turn({"threadId": thread_id, "input": [{"type": "text", "text": "x" * 5_000_000}]})
    hear(owner, "turn/completed")
    slow = office.processor.connect("slow")
    office.processor.process(slow, encode(request(0, "initialize", {"clientInfo": {"name": "slow"}})))
    for number in range(1, 7):
        office.processor.process(slow, encode(request(number, "thread/read", {"threadId": thread_id})))
    until(office.processor.idle, "all are answered")
    assert sum(len(line) for _, line in slow._lines) < 3 * WEIGHT
    answers = [json.loads(slow.get(20) or b"") for _ in range(7)]
    assert sorted(one["id"] for one in answers) == list(range(7))
    assert {one["error"]["code"] for one in answers if "error" in one} == {-32001}
    owner.close()
    office.processor.close()


def test_a_reader_that_is_too_slow_is_hung_up_on_while_its_turn_goes_on() -> None:
    clock = FakeClock(0)
    ours, theirs = ChannelTransport.pair(capacity=1)
    agent = Agent(name="assistant", instructions="Test.", tools=[wait_for_gate], no_tool_policy=NoToolPolicy.FINISH)
    runner = Runner(model_provider=ScriptedProvider([call("wait_for_gate"), "Done."]))
    server = AppServer(
        DefaultAppServerHost(agent), transport=ours, runner=runner, queue=2, clock=lambda: clock.now / 1000
    )
    thread = server.start()
    client = AppServerClient(theirs)
    client.initialize({"name": "slow"})
    thread_id = client.start_thread({})["threadId"]
    client._backlog.extend([{}] * 10_000)  # it reads no more
    theirs.send(encode(request("turn", "turn/start", {"threadId": thread_id, "input": GO})))

    def closed() -> bool:
        clock.advance(1_000)
        return not server._client.open

    until(closed, "it is closed")
    client._backlog.clear()
    client.wake()
    heard = []
    while (message := client.next_message(timeout=20)) is not None:
        heard.append(message)
    assert client._ended
    assert heard[-1]["params"]["code"] == "slow_reader"
    assert server.processor._active()
    GATE.set()
    thread.join(20)
    assert not thread.is_alive()
    client.close()


@pytest.mark.parametrize(("capacity", "left"), [(128, True), (16, False)])
def test_a_client_that_does_not_read_does_not_hold_others_up(capacity: int, left: bool) -> None:
    router = OutgoingRouter(capacity, clock=lambda: 0.0)  # no time passes: nobody is too slow by the clock
    agent = Agent(name="assistant", instructions="Test.", no_tool_policy=NoToolPolicy.FINISH)
    runner = Runner(model_provider=ScriptedProvider(["x" * 8 * 500]))
    processor = MessageProcessor(router, AppServerRunAdapter.new(runner, agent), capacity=capacity)
    office = Office.of(processor, router)
    fast = office.client("fast")
    thread_id = fast.start_thread({})["threadId"]
    slow = processor.connect("slow")
    processor.process(slow, encode(request(0, "initialize", {"clientInfo": {"name": "slow"}})))
    processor.process(slow, encode(request(1, "thread/resume", {"threadId": thread_id})))
    until(processor.idle, "it hears the thread")
    fast.start_turn({"threadId": thread_id, "input": GO})
    assert hear(fast, "turn/completed")["status"] == "completed"
    if left:
        assert slow.open
        processor.hang_up(slow)
    until(lambda: not slow.open, "it is closed")
    lines = []
    while (line := slow.get(0)) is not None:
        lines.append(json.loads(line))
    assert lines[-1]["method"] == ("turn/completed" if left else "error/warning")
    fast.close()
    processor.close()
