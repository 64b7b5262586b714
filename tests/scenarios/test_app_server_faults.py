"""The App Server among clumsy callers: wrong checkpoints, words and stores, its pipes, and a store that is
away for a moment."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.app_server import Served, refused, until
from tests.scenarios import module_of_a_shop as shop
from tests.scenarios.test_app_server import GATE, GO, Faulty, Office, launch, wait_for, wait_for_gate
from vv_agent import Agent, AppServer, ExecutionMode, NoToolPolicy, RunConfig, Runner
from vv_agent.app_server import (
    AppServerClient,
    ChannelTransport,
    DefaultAppServerHost,
    MemoryThreadStore,
    SqlThreadStore,
    StdioJsonlTransport,
)
from vv_agent.app_server.sql import TurnRecord
from vv_agent.checkpoint.config import CheckpointConfig
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.errors import StoreError
from vv_agent.process import store_at
from vv_agent.settings import Settings
from vv_agent.testing import call

AGENT = Agent(name="assistant", instructions="Test.", no_tool_policy=NoToolPolicy.FINISH)


@pytest.fixture(autouse=True)
def _closed_gate() -> Iterator[None]:
    GATE.clear()
    yield
    GATE.set()


def test_another_turn_s_checkpoint_is_not_a_turn_s() -> None:
    runs = MemoryStore()
    durable: list[bool] = []

    class Host(DefaultAppServerHost):
        def build_run_config(self, request: Any) -> RunConfig:
            return RunConfig(checkpoint_config=CheckpointConfig(store=runs)) if durable else RunConfig()

    with Served([lambda r: f"answer {r.messages[-1].content}"], host=Host(AGENT)) as served:
        mine, other = served.thread(), served.thread()
        plain = served.turn(mine, "mine")
        served.next("turn/completed")
        durable.append(True)
        key = served.run(other, "secret")["checkpoint"]["key"]
        params = {"threadId": mine, "turnId": plain, "checkpointKey": key}
        assert refused(served.client.resume_turn, params).rpc_code == -32602


def test_a_steer_without_words_is_a_wrong_parameter() -> None:
    with Served([call("wait_for_gate"), "Done."], [wait_for_gate]) as served:
        thread_id = served.thread()
        served.turn(thread_id)
        served.next("item/started", type="toolCall")
        params = {"threadId": thread_id, "input": [{"type": "text", "text": ""}]}
        assert refused(served.client.steer_turn, params).rpc_code == -32602
        GATE.set()


def test_an_input_that_does_not_block_is_read() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    file = os.fdopen(reading, "rb", buffering=0)
    transport = StdioJsonlTransport(file, io.BytesIO())
    threading.Timer(0.3, lambda: (os.write(writing, b"{}\n"), os.close(writing))).start()
    assert transport.receive() == b"{}"
    file.close()


def test_a_store_that_cannot_be_opened_is_a_wrong_command_line(tmp_path: Path) -> None:
    settings = tmp_path / "s.json"
    settings.write_text(json.dumps({
        "VERSION": "2", "endpoints": [{"id": "e", "api_base": "http://127.0.0.1:9/v1", "api_key": "k"}],
        "backends": {"openai": {"models": {"m": {"id": "m", "endpoints": [{"endpoint_id": "e", "model_id": "m"}]}}}},
    }))  # fmt: skip
    options = ["--listen", "stdio", "--settings", str(settings), "--backend", "openai", "--model", "m"]
    done = subprocess.run(
        [sys.executable, "-m", "vv_agent.cli", "app-server", *options, "--store", "mysql://x/y"],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, b""), done.stderr


class Breaking(MemoryThreadStore):
    """Its `put_turn` fails while `broken` says so."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: Callable[[TurnRecord], bool] = lambda record: False
        self.code = "store_unavailable"

    def put_turn(self, record: TurnRecord) -> None:
        if self.broken(record):
            raise StoreError(self.code, "the store is away")
        super().put_turn(record)


def test_a_turn_whose_run_id_the_store_did_not_take_goes_on_and_ends() -> None:
    store = Breaking()
    store.broken = lambda record: record.turn.run_id is not None and record.turn.status == "running"
    with Served(["Done."], store=store) as served:
        thread_id = served.thread()
        assert served.run(thread_id, "Go.")["finalOutput"] == "Done."
        (turn,) = served.read(thread_id)["turns"]
        assert (turn["status"], turn["runId"] is not None) == ("completed", True)


def test_a_passing_fault_of_the_thread_store_does_not_cancel_a_checkpointed_run() -> None:
    runs = MemoryStore()
    store = Breaking()
    config = RunConfig(checkpoint_config=CheckpointConfig(store=runs))
    office = Office([call("launch", {"pad": "A"}), "Launched."], [launch], config=config, store=store)
    first = office.client("first")
    thread_id = first.start_thread({})["threadId"]
    turn_id = first.start_turn({"threadId": thread_id, "input": GO})["turnId"]
    wait_for(first, "approval/request")
    first.close()
    office.processor.close()
    key = store.turn(turn_id).checkpoint_key
    faults = [1]
    store.broken = lambda record: bool(faults and faults.pop())
    office = Office([call("launch", {"pad": "A"}), "Launched."], [launch], config=config, store=store)
    second = office.client("second")
    second.resume_thread({"threadId": thread_id})
    asked = wait_for(second, "approval/request")
    second.resolve_approval({"requestId": asked["requestId"], "decision": "allow"})
    assert wait_for(second, "turn/completed")["finalOutput"] == "Launched."
    assert runs.look(key).head.status == "completed"
    second.close()
    office.processor.close()


def answers(served: Served) -> int:
    return sum("method" not in message for message in served.wire.received())


def test_an_unsubscription_that_the_store_did_not_take_has_one_answer() -> None:
    store = Faulty(lambda verb, given: "store_full" if verb == "put_thread" else None)
    with Served(store=store) as served:
        thread_id = served.thread()
        assert refused(served.client.unsubscribe_thread, {"threadId": thread_id}).rpc_code == -32603
        store.fault = lambda verb, given: None
        assert served.client.unsubscribe_thread({"threadId": thread_id})["closed"] is True
        assert answers(served) == 4


def test_a_replay_that_the_store_did_not_take_has_one_answer() -> None:
    store = Breaking()
    config = RunConfig(checkpoint_config=CheckpointConfig(store=MemoryStore()))
    with Served(store=store, config=config) as served:
        thread_id = served.thread()
        done = served.run(thread_id)
        record = store.turn(done["turnId"])
        assert record is not None
        store.put_turn(TurnRecord(record.turn.model_copy(update={"status": "interrupted"}), record.checkpoint_key))
        store.broken = lambda record: True
        params = {"threadId": thread_id, "turnId": done["turnId"], "checkpointKey": done["checkpoint"]["key"]}
        assert refused(served.client.resume_turn, params).rpc_code == -32603
        store.broken = lambda record: False
        assert served.client.resume_turn(params)["finalOutput"] == "Done."
        assert answers(served) == 5


def test_the_end_of_a_turn_that_the_store_did_not_take_is_written_before_the_thread_is_read() -> None:
    store = Breaking()
    store.code = "store_full"
    with Served(store=store) as served:
        thread_id = served.thread()
        store.broken = lambda record: record.turn.status == "completed"
        served.run(thread_id)
        until(served.server.processor.idle, "the turn is over")
        assert refused(served.read, thread_id).rpc_code == -32603
        store.broken = lambda record: False
        snapshot = served.read(thread_id)
        assert snapshot["thread"]["status"] == "idle"
        assert [turn["status"] for turn in snapshot["turns"]] == ["completed"]
        assert served.run(thread_id)["status"] == "completed"


def test_the_end_of_a_turn_that_the_store_did_not_take_is_written_when_the_server_stops() -> None:
    store = Breaking()
    store.code = "store_full"
    with Served(store=store) as served:
        thread_id = served.thread()
        store.broken = lambda record: record.turn.status == "completed"
        served.run(thread_id)
        until(served.server.processor.idle, "the turn is over")
        store.broken = lambda record: False
    assert store.last_status(thread_id) == "completed"
    assert store.thread(thread_id).status == "idle"  # type: ignore[union-attr]


def test_a_follow_up_begins_only_once_the_end_before_it_is_written() -> None:
    store = Breaking()
    with Served([call("wait_for_gate"), "Done."], [wait_for_gate], store=store) as served:
        thread_id = served.thread()
        turn_id = served.turn(thread_id)
        served.client.follow_up_turn({"threadId": thread_id, "input": GO})
        faults = [StoreError("store_full", "no room")]
        store.broken = lambda record: bool(record.turn.status == "completed" and faults and faults.pop())
        store.code = "store_full"
        GATE.set()
        served.next("turn/completed", turnId=turn_id)
        assert served.next("turn/completed", status="completed")["turnId"] != turn_id
        assert [turn["status"] for turn in served.read(thread_id)["turns"]] == ["completed", "completed"]


def test_an_item_to_begin_after_leaves_no_turn_out() -> None:
    with Served() as served:
        thread_id = served.thread()
        served.run(thread_id)
        served.run(thread_id)
        whole = served.read(thread_id)
        after = served.read(thread_id, afterItemId=whole["items"][-1]["itemId"])
        assert (after["items"], after["turns"]) == ([], whole["turns"])


@pytest.mark.parametrize("params", [{"threadId": "a\0b"}, {"afterSeq": 2**40}, {"afterItemId": "\0"}])
def test_what_a_store_cannot_look_for_is_a_wrong_parameter(params: dict[str, Any]) -> None:
    with Served() as served:
        given = {"threadId": served.thread(), **params}
        assert refused(served.client.read_thread, given).rpc_code == -32602


def test_an_interrupt_of_a_run_that_has_ended_does_not_say_that_it_was_cancelled() -> None:
    store = Faulty(lambda verb, given: None)
    with Served(store=store) as served:
        thread_id = served.thread()

        def fault(verb: str, given: Any) -> str | None:  # the run is over, its turn is not yet
            assert verb != "add_item" or given.payload != {"text": "Done."} or GATE.wait(30)
            return None

        store.fault = fault
        served.turn(thread_id)
        active = served.server.processor._active()[0]
        active.handle.result(30)
        threads = served.server.processor._threads
        assert threads is not None
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(refused, served.client.interrupt_turn, {"threadId": thread_id})
            until(lambda: threads._live[thread_id].holders or answer.done(), "the interrupt waits, or is answered")
            GATE.set()
            assert answer.result(30).rpc_code == -32030
        served.next("turn/completed", status="completed")


@pytest.mark.parametrize(
    "config", [RunConfig(execution_mode=ExecutionMode.DISTRIBUTED), RunConfig(checkpoint_key="pear")],
    ids=["distributed", "key"],
)  # fmt: skip
def test_a_turn_is_kept_where_its_runner_keeps_runs(config: RunConfig, tmp_path: Path) -> None:
    runs = f"sqlite:///{tmp_path}/runs.db"
    runner = Runner(model_provider=shop.models, workspace=tmp_path / "files", settings=Settings(store=runs))
    threads = SqlThreadStore(f"sqlite:///{tmp_path}/threads.db")
    ours, theirs = ChannelTransport.pair()
    server = AppServer(DefaultAppServerHost(shop.agent, config), store=threads, transport=ours, runner=runner)
    thread = server.start()
    client = AppServerClient(theirs, timeout=30)
    client.initialize({"name": "test"})
    thread_id = client.start_thread({})["threadId"]
    client.start_turn({"threadId": thread_id, "input": [{"type": "text", "text": "What is a pear?"}]})
    done = wait_for(client, "turn/completed")
    assert (done["status"], done["finalOutput"]) == ("completed", "A pear costs 2.50.")
    look = store_at(runs).look(done["checkpoint"]["key"])
    assert look is not None
    assert look.head.status == "completed"
    client.close()
    thread.join(30)
    threads.close()


class Deaf(MemoryStore):
    """A store of runs that does not take the first signals it is given."""

    def __init__(self, faults: int) -> None:
        super().__init__()
        self.faults = faults

    def post(self, key: str, signal: Any) -> Any:
        if self.faults:
            self.faults -= 1
            raise StoreError("store_full", "no room for a signal")
        return super().post(key, signal)


def test_an_answer_that_the_store_did_not_take_is_given_again() -> None:
    config = RunConfig(checkpoint_config=CheckpointConfig(store=Deaf(2)))
    with Served([call("launch", {"pad": "A"}), "Launched."], [launch], config=config) as served:
        served.turn(served.thread())
        asked = served.next("approval/request")
        served.client.resolve_approval({"requestId": asked["requestId"], "decision": "allow"})
        assert served.next("approval/resolved")["decision"] == "allow"
        assert served.next("turn/completed")["finalOutput"] == "Launched."


def test_a_timeout_that_the_store_did_not_take_comes_again() -> None:
    config = RunConfig(checkpoint_config=CheckpointConfig(store=Deaf(2)))
    steps = [call("launch", {"pad": "A"}), "Not launched."]
    with Served(steps, [launch], config=config, approval_timeout=0.05) as served:
        served.turn(served.thread())
        assert served.next("approval/resolved")["decision"] == "timeout"
        assert served.next("turn/completed")["finalOutput"] == "Not launched."


def test_an_answer_that_the_store_did_not_take_outlives_its_client() -> None:
    store = Deaf(1)
    config = RunConfig(checkpoint_config=CheckpointConfig(store=store))
    office = Office([call("launch", {"pad": "A"}), "Launched."], [launch], config=config)
    first, second = office.client("first"), office.client("second")
    thread_id = first.start_thread({})["threadId"]
    second.resume_thread({"threadId": thread_id})
    first.start_turn({"threadId": thread_id, "input": GO})
    asked = wait_for(first, "approval/request")
    first.resolve_approval({"requestId": asked["requestId"], "decision": "allow"})
    first.close()
    assert wait_for(second, "approval/resolved")["decision"] == "allow"
    assert wait_for(second, "turn/completed")["finalOutput"] == "Launched."
    second.close()
    office.processor.close()
