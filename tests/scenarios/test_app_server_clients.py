"""The App Server and clients that come, go and lag: whoever left owns nothing, hears nothing and is not kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.app_server import until
from tests.scenarios.test_app_server import GATE, GO, Office, launch
from vv_agent import Agent, AppServer, NoToolPolicy, RunConfig, Runner
from vv_agent.app_server import AppServerClient, ChannelTransport, DefaultAppServerHost
from vv_agent.app_server.rpc import encode, request
from vv_agent.checkpoint.config import CheckpointConfig
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.testing import ScriptedProvider, call


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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
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
