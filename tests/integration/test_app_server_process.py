"""The App Server as a process: other languages, floods of nonsense, slow readers, long days, and SIGKILL."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import node
from tests.app_server import Recorder, check_order, command, until
from vv_agent.app_server import AppServerClient, StdioJsonlTransport
from vv_agent.app_server.rpc import encode, request
from vv_agent.app_server.schema import write_typescript

HERE = Path(__file__).resolve().parents[1]
GO = [{"type": "text", "text": "Go."}]


class Process:
    """A server process and its client; standard error goes to a file."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.log = (folder / f"log{time.monotonic_ns()}").open("wb")
        self.child = subprocess.Popen(
            command(*options), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, cwd=HERE.parent
        )
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.transport = StdioJsonlTransport(self.child.stdout, self.child.stdin)

    def said(self) -> bytes:
        return Path(self.log.name).read_bytes()

    def client(self) -> AppServerClient:
        self.wire = Recorder(self.transport)
        client = AppServerClient(self.wire, timeout=60)
        client.initialize({"name": "test"})
        return client

    def end(self) -> None:
        self.transport.close()
        assert self.child.wait(60) == 0
        self.gone()

    def kill(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        self.child.wait(20)
        self.gone()

    def gone(self) -> None:
        self.log.close()
        for pipe in (self.child.stdin, self.child.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Starts server processes that are gone after the test."""
    processes: list[Process] = []

    def start(*options: str) -> Process:
        processes.append(Process(tmp_path, *options))
        return processes[-1]

    yield start
    for process in processes:
        if process.child.poll() is None:
            process.kill()
        process.gone()


def finish(client: AppServerClient, timeout: float = 60) -> dict[str, Any]:
    while (message := client.next_message(timeout=timeout)) is not None:
        if message["method"] == "turn/completed":
            return dict(message["params"])
    raise AssertionError("no turn was completed")


# Other languages.


@pytest.mark.server("node")
def test_the_generated_types_compile_strictly(tmp_path: Path) -> None:
    if (why := node.missing()) is not None:
        pytest.skip(why)
    paths = write_typescript(tmp_path / "all")
    node.compiled(tmp_path / "all", "--noEmit")
    (tmp_path / "one").mkdir()
    shutil.copy(paths[0], tmp_path / "one")
    node.compiled(tmp_path / "one", "--noEmit")


@pytest.mark.server("node")
def test_a_client_in_typescript_runs_a_turn_with_an_approval(tmp_path: Path) -> None:
    if (why := node.missing()) is not None:
        pytest.skip(why)
    write_typescript(tmp_path)
    shutil.copy(HERE / "app_server_client.ts", tmp_path)
    (tmp_path / "node.d.ts").write_text(_NODE_TYPES)
    node.compiled(tmp_path, "--outDir", str(tmp_path / "out"))
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(
        ["node", str(tmp_path / "out" / "app_server_client.js"), *command("--script", "launch")],
        capture_output=True, text=True, timeout=60, check=False, env=environment, cwd=HERE.parent,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "v1", "running", "approval allow: launch from A", "tool completed", "turn completed: Launched.",
    ], done.stderr  # fmt: skip
    assert "this is not of the protocol" in done.stderr


_NODE_TYPES = """
declare module "node:child_process" {
  export function spawn(command: string, args: string[], options: object): {
    stdin: { write(text: string): void; end(): void }; stdout: object;
  };
}
declare module "node:readline" {
  export function createInterface(options: object): { on(event: "line", heard: (line: string) => void): void };
}
declare const process: { argv: string[] };
declare const console: { log(text: string): void };
"""
"""What the client uses of node; its own types are a package more."""


# The command line.


def test_a_line_on_standard_input_is_enough() -> None:
    lines = [
        request(1, "initialize", {"clientInfo": {"name": "pipe"}}), request(2, "thread/start"),
        request(3, "turn/start", {"threadId": "thread_1", "input": GO}),
    ]  # fmt: skip
    text = b"".join(encode(line) + b"\n" for line in lines)
    done = subprocess.run(command(), input=text, capture_output=True, timeout=60, check=True, cwd=HERE.parent)
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert messages[-1]["params"]["finalOutput"] == "You said: Go."
    assert [message["id"] for message in messages if "id" in message] == [1, 2, 3]


# Nonsense.


def nonsense(rng: random.Random, number: int) -> tuple[bytes, Any, Any]:
    """A line, the id of its answer, and the code of it (0: a result; None: no answer)."""
    good = {"jsonrpc": "2.0", "id": number, "method": "thread/list", "params": {}}
    text = json.dumps(good)
    odd = rng.choice([None, True, 1.5, [], {}, -0.0, 2**70])
    return rng.choice([
        lambda: (text[: rng.randrange(1, len(text))].encode(), None, -32700),
        lambda: (bytes(rng.choices([*range(1, 10), *range(11, 256)], k=rng.randrange(1, 60))) + b"\xff", None, -32700),
        lambda: (b"[" * rng.choice([300, 5_000, 200_000]), None, -32700),
        lambda: (b"[" * 250 + b"]" * 250, None, -32600),
        lambda: (json.dumps({**good, "id": odd}).encode(), None, -32600),
        lambda: (json.dumps({**good, "extra": 1}).encode(), number, -32600),
        lambda: (json.dumps({**good, "jsonrpc": rng.choice(["1.0", 2, None])}).encode(), number, -32600),
        lambda: (json.dumps({**good, "method": rng.choice([1, None, [], {}])}).encode(), number, -32600),
        lambda: (json.dumps({"jsonrpc": "2.0", "id": number}).encode(), number, -32600),
        lambda: (json.dumps(rng.choice([[], [good], 1, "x", None, True])).encode(), None, -32600),
        lambda: (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"thread/list"}', None, -32700),
        lambda: (json.dumps({**good, "params": {"limit": float("nan")}}).encode(), None, -32700),
        lambda: (json.dumps({**good, "params": {"limit": 10**400}}).encode(), number, -32600),
        lambda: (json.dumps({**good, "method": rng.choice(["x", "", "thread/", "initialized"])}).encode(), number, -32601),
        lambda: (json.dumps({**good, "params": rng.choice([[], 1, "x", {"a": 1}, {"limit": "3"}])}).encode(), number, -32602),
        lambda: (
            json.dumps({**good, "method": "turn/start", "params": {"threadId": rng.choice([1, None, "thread_1"]), "input": "x"}}).encode(),
            number, -32602,
        ),
        lambda: (json.dumps({**good, "method": "thread/read", "params": {"threadId": "\ud800" * 3}}).encode(), number, -32600),
        lambda: (json.dumps({"jsonrpc": "2.0", "method": rng.choice(["x", "thread/list"])}).encode(), None, None),
        lambda: (json.dumps({"jsonrpc": "2.0", "id": rng.choice([1, "x"]), "result": odd if odd != 2**70 else 1}).encode(), None, None),
        lambda: (rng.choice([b"", b"   ", b"\t"]), None, None),
        lambda: (text.encode(), number, 0),
    ])()  # fmt: skip


def test_twenty_thousand_lines_of_nonsense(started: Any) -> None:
    process, rng = started(), random.Random(8)
    process.transport.send(encode(request("hello", "initialize", {"clientInfo": {"name": "fuzz"}})))
    assert json.loads(process.transport.receive())["id"] == "hello"
    lines = [nonsense(rng, number) for number in range(20_000)]
    for at in (100, 7_000, 19_000):
        lines[at] = (b'{"jsonrpc": "2.0", "id": 5, "method": "' + b"x" * 10_000_000 + b'"}', None, -32700)

    def write() -> None:
        for line, _, _ in lines:
            process.transport.send(line)
        process.transport.send(encode(request("end", "thread/list")))

    threading.Thread(target=write, daemon=True).start()
    by_id: dict[Any, int] = {}
    without: Counter[int] = Counter()
    while (answer := json.loads(process.transport.receive()))["id"] != "end":
        code = answer["error"]["code"] if "error" in answer else 0
        if answer["id"] is None:
            without[code] += 1
        else:
            assert answer["id"] not in by_id
            by_id[answer["id"]] = code
    wanted = {number: code for _, number, code in lines if number is not None}
    wrong = {
        n: (code, by_id.get(n), lines[n][0][:200]) for n, code in wanted.items() if by_id.get(n) not in (code, -32001)
    }
    assert not wrong
    assert by_id.keys() <= wanted.keys()
    assert without == Counter(code for _, number, code in lines if number is None and code is not None)
    assert psutil.Process(process.child.pid).memory_info().rss < 400 * 2**20
    process.end()


# A client that reads slowly.


@pytest.mark.slow
def test_a_client_that_reads_a_kilobyte_a_second_is_closed(started: Any, tmp_path: Path) -> None:
    store = str(tmp_path / "threads.db")
    process = started("--script", "long", "--store", store)
    for number, (method, params) in enumerate([
        ("initialize", {"clientInfo": {"name": "slow"}}), ("thread/start", {}),
        ("turn/start", {"threadId": "thread_1", "input": GO}),
    ]):  # fmt: skip
        process.transport.send(encode(request(number, method, params)))
    out, rss, heard = process.child.stdout, 0, bytearray()
    end = time.monotonic() + 120
    while b"slow_reader" not in heard:
        assert time.monotonic() < end
        closed = b"reads too slowly" in process.said()
        if not closed:
            time.sleep(1.0)  # the client is what is slow here
            rss = max(rss, psutil.Process(process.child.pid).memory_info().rss)
        heard += os.read(out.fileno(), 65_536 if closed else 1024)
    assert b"slow_reader" in heard
    assert len(heard) < 600_000
    assert rss < 300 * 2**20
    assert process.child.wait(60) == 0  # its turn is over, nobody listens
    seen = [json.loads(line) for line in bytes(heard).splitlines() if line.endswith(b"}")]
    last = max(m["params"]["seq"] for m in seen if "seq" in m.get("params", {}))
    again = started("--script", "long", "--store", store)
    client = again.client()
    after, items, turns = last, [], []
    while after is not None:
        page = client.read_thread({"threadId": "thread_1", "afterSeq": after})
        items += page["items"]
        turns += page["turns"]
        after = page.get("nextAfterSeq")
    assert [item["seq"] for item in items] == list(range(last + 1, last + 1 + len(items)))
    assert items[-1]["payload"] == {"text": "word " * 4_000}
    assert [turn["status"] for turn in turns] == ["completed"]
    again.end()


# A long day.


def a_day(started: Any, turns: int, threads: int, measured_from: int) -> None:
    process = started("--script", "tool")
    client = process.client()
    rss: dict[int, int] = {}
    server = psutil.Process(process.child.pid)
    ids = [client.start_thread({})["threadId"] for _ in range(threads)]
    done = 0

    def start(thread_id: str) -> None:
        client.start_turn({"threadId": thread_id, "input": GO})

    left = dict.fromkeys(ids, turns // threads)
    for thread_id in ids:
        start(thread_id)
    while done < turns:
        message = client.next_message(timeout=60)
        assert message is not None
        if message["method"] == "turn/completed":
            assert message["params"]["status"] == "completed"
            done += 1
            if done in (measured_from, turns):
                rss[done] = server.memory_info().rss
            thread_id = message["params"]["threadId"]
            left[thread_id] -= 1
            if left[thread_id]:
                start(thread_id)
    growth = (rss[turns] - rss[measured_from]) / 2**20
    print(f"RSS {rss[measured_from] / 2**20:.0f} MB after {measured_from} turns, {growth:+.1f} MB after {turns}")
    process.end()
    assert process.wire.invalid == []
    check_order(process.wire.seen)
    assert sum(m.get("method") == "turn/completed" for m in process.wire.received()) == turns
    assert growth < 50


def test_a_hundred_turns_on_twenty_threads(started: Any) -> None:
    a_day(started, 100, 20, 20)


@pytest.mark.slow
def test_a_thousand_turns_on_twenty_threads(started: Any) -> None:
    a_day(started, 1_000, 20, 100)


# SIGKILL.


def test_a_turn_goes_on_when_a_killed_server_is_started_again(started: Any, tmp_path: Path) -> None:
    store = str(tmp_path / "threads.db")
    process = started("--script", "slow", "--store", store)
    client = process.client()
    thread_id = client.start_thread({})["threadId"]
    turn_id, began = client.start_turn({"threadId": thread_id, "input": GO})["turnId"], time.monotonic()
    until(lambda: time.monotonic() - began >= 1.0, "the turn is one second old")
    process.kill()
    again = started("--script", "slow", "--store", store)
    client = again.client()
    snapshot = client.resume_thread({"threadId": thread_id})
    if snapshot["turns"][0]["status"] == "running":
        assert snapshot["thread"]["status"] == "running"
        assert finish(client)["finalOutput"] == "Done."
    snapshot = client.read_thread({"threadId": thread_id})
    (turn,) = snapshot["turns"]
    assert (turn["turnId"], turn["status"], turn["result"]["finalOutput"]) == (turn_id, "completed", "Done.")
    assert snapshot["thread"]["status"] == "idle"
    shown = [item["type"] for item in snapshot["items"] if item["status"] == "completed"]
    assert shown == ["userMessage", "toolCall", "toolCall", "toolCall", "agentMessage"]
    assert len({item["itemId"] for item in snapshot["items"]}) == len(snapshot["items"])
    again.end()


def test_an_approval_is_asked_again_when_a_killed_server_is_started_again(started: Any, tmp_path: Path) -> None:
    store = str(tmp_path / "threads.db")
    process = started("--script", "launch", "--store", store)
    client = process.client()
    thread_id = client.start_thread({})["threadId"]
    client.start_turn({"threadId": thread_id, "input": GO})
    while (message := client.next_message(timeout=30)) is not None and message["method"] != "approval/request":
        pass
    process.kill()
    again = started("--script", "launch", "--store", store)
    client = again.client()
    client.resume_thread({"threadId": thread_id})
    while (asked := client.next_message(timeout=30)) is not None and asked["method"] != "approval/request":
        pass
    assert asked == message
    client.resolve_approval({"requestId": asked["params"]["requestId"], "decision": "allow"})
    assert finish(client)["finalOutput"] == "Launched."
    again.end()


def test_a_killed_turn_that_was_not_checkpointed_is_over(started: Any, tmp_path: Path) -> None:
    """The same without a checkpoint: nothing runs, and nothing says so."""
    from vv_agent.app_server import SqlThreadStore
    from vv_agent.app_server.protocol import AppTurn
    from vv_agent.app_server.sql import TurnRecord

    store = SqlThreadStore(f"sqlite:///{tmp_path}/threads.db")
    thread = store.new_thread("default", None, {}, 1.0)
    turn = AppTurn(
        turn_id=store.new_turn_id(), thread_id=thread.thread_id, run_id=None, status="running", started_at=1.0,
        completed_at=None, input=GO,
    )  # fmt: skip
    store.put_turn(TurnRecord(turn))
    store.put_thread(thread.model_copy(update={"status": "running"}))
    store.close()
    process = started("--store", str(tmp_path / "threads.db"))
    snapshot = process.client().read_thread({"threadId": thread.thread_id})
    assert snapshot["thread"]["status"] == "idle"
    (left,) = snapshot["turns"]
    assert (left["status"], left["result"]["error"]) == ("interrupted", "the server stopped before the turn ended")
    process.end()
