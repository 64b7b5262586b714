"""An App Server for tests: in this process over a channel, or a real one; every message is checked against the schema
it exports, and the order of them by a checker that knows nothing of the server."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from tests.harness import until
from vv_agent import Agent, AppServer, DefaultAppServerHost, NoToolPolicy, RunConfig, Runner
from vv_agent.app_server import AppServerClient, ChannelTransport, SqlThreadStore
from vv_agent.app_server.schema import bundle
from vv_agent.testing import ScriptedProvider

TEXT = [{"type": "text", "text": "Go."}]
RESULTS = {
    "initialize": "InitializeResponse", "thread/start": "ThreadStartResponse", "thread/resume": "ThreadResumeResponse",
    "thread/read": "ThreadReadResponse", "thread/list": "ThreadListResponse", "thread/archive": "ThreadArchived",
    "thread/unsubscribe": "ThreadUnsubscribeResponse", "turn/start": "TurnStartResponse",
    "turn/resume": "TurnResumeResponse", "turn/interrupt": "TurnInterruptResponse", "turn/steer": "TurnQueuedResponse",
    "turn/followUp": "TurnQueuedResponse", "approval/resolve": "Nothing", "model/list": "ModelListResponse",
    "schema/export": "SchemaExportResponse",
}  # fmt: skip


@cache
def validator(name: str) -> Draft202012Validator:
    """Of one definition of the exported bundle."""
    return Draft202012Validator({**bundle(), "$ref": f"#/$defs/{name}"})


class Recorder:
    """A client's end of a transport: it writes down what passes, and validates what the server says."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.seen: list[tuple[str, dict[str, Any]]] = []
        """(">" sent or "<" received, message), in order."""
        self._asked: dict[Any, str] = {}
        self.invalid: list[str] = []

    def send(self, line: bytes) -> None:
        message = json.loads(line)
        if "method" in message and "id" in message:
            self._asked[message["id"]] = message["method"]
        self.seen.append((">", message))
        self._transport.send(line)

    def receive(self) -> bytes | None:
        line: bytes | None = self._transport.receive()
        if line is not None:
            message = json.loads(line)
            self.seen.append(("<", message))
            self._validate(message)
        return line

    def close(self) -> None:
        self._transport.close()

    def _validate(self, message: dict[str, Any]) -> None:
        if "method" in message:
            self._check("ServerRequest" if "id" in message else "ServerNotification", message)
        elif "result" in message:
            self._check(RESULTS[self._asked[message["id"]]], message["result"])
        self._check("JsonRpcMessage", message)

    def _check(self, name: str, value: Any) -> None:
        for error in validator(name).iter_errors(value):
            self.invalid.append(f"{name}: {error.message[:300]}")

    def received(self) -> list[dict[str, Any]]:
        return [message for way, message in self.seen if way == "<"]


class Served:
    """A server in this process, and its client."""

    def __init__(
        self, steps: Sequence[Any] = ("Done.",), tools: Sequence[Any] = (), *, store: SqlThreadStore | None = None,
        config: RunConfig | None = None, host: Any = None, delay: float = 0.0, provider: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        self.agent = Agent(
            name="assistant", instructions="Test.", tools=list(tools), no_tool_policy=NoToolPolicy.FINISH
        )
        runner = Runner(model_provider=provider or ScriptedProvider(list(steps), delay=delay))
        ours, theirs = ChannelTransport.pair()
        self.wire = Recorder(theirs)
        self.server = AppServer(
            host or DefaultAppServerHost(self.agent, config), store=store, transport=ours, runner=runner, **options
        )
        self._thread = self.server.start()
        self.client = AppServerClient(self.wire, timeout=30.0)
        self.messages: list[dict[str, Any]] = []
        """What `next_message` gave so far."""

    def hello(self) -> Served:
        self.client.initialize({"name": "test"})
        return self

    def thread(self, **params: Any) -> str:
        return str(self.client.start_thread(params)["threadId"])

    def turn(self, thread_id: str, text: str = "Go.", **params: Any) -> str:
        started = self.client.start_turn({
            "threadId": thread_id, "input": [{"type": "text", "text": text}], **params
        })  # fmt: skip
        return str(started["turnId"])

    def next(self, method: str, timeout: float = 20.0, **fields: Any) -> dict[str, Any]:
        """The parameters of the next message of a method with these fields; what came before is in `messages`."""
        while True:
            message = self.client.next_message(timeout=timeout)
            assert message is not None, f"no {method} came; there were {[m.get('method') for m in self.messages[-12:]]}"
            self.messages.append(message)
            params = message.get("params", {})
            if message.get("method") == method and all(params.get(name) == value for name, value in fields.items()):
                return dict(params)

    def run(self, thread_id: str, text: str = "Go.", **params: Any) -> dict[str, Any]:
        """A turn to its end: the parameters of turn/completed."""
        turn_id = self.turn(thread_id, text, **params)
        return self.next("turn/completed", turnId=turn_id)

    def read(self, thread_id: str, **params: Any) -> dict[str, Any]:
        return self.client.read_thread({"threadId": thread_id, **params})

    def close(self, *, check: bool = True) -> None:
        self.client.close()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the server does not end"
        assert self.wire.invalid == []
        if check:
            check_order(self.wire.seen)

    def __enter__(self) -> Served:
        return self.hello()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            self.close()
        else:
            self.server.stop()


def refused(call: Callable[..., Any], *args: Any) -> Any:
    """The error of a call that is refused."""
    from vv_agent.app_server import AppServerClientError

    try:
        call(*args)
    except AppServerClientError as error:
        return error
    raise AssertionError("the call was answered")


# The order of messages, from spec/30.


def check_order(seen: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """Every request has one answer; threads, turns, items and approvals are told in their order."""
    seen = list(seen)
    answered: dict[Any, int] = defaultdict(int)
    asked: dict[Any, dict[str, Any]] = {}
    told: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for way, message in seen:
        params = message.get("params") or {}
        if way == ">" and "method" in message and "id" in message:
            asked[message["id"]] = message
        elif way == "<" and "method" not in message and message.get("id") in asked:
            answered[message["id"]] += 1
            request, result = asked[message["id"]], message.get("result")
            if result is not None and "threadId" in result:
                told[result["threadId"]].append((f"= {request['method']}", result))
        elif way == "<" and "method" in message and "threadId" in params:
            told[params["threadId"]].append((message["method"], params))
    assert set(answered.values()) <= {1}, "a request has two answers"
    assert not [message for number, message in asked.items() if number not in answered], "a request has no answer"
    for thread_id, messages in told.items():
        _check_thread(thread_id, messages)


def _check_thread(thread_id: str, messages: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in messages if not name.startswith("= ") or name in _ORDERED]
    if "thread/started" in names:
        assert names.index("= thread/start") < names.index("thread/started"), thread_id
    _check_turns(thread_id, [(name, params) for name, params in messages if name in names])
    last = 0
    for name, params in messages:
        if name.startswith("item/") and "seq" in params:
            again = name == "item/toolCall/delta" and params["seq"] == last
            assert params["seq"] > last or again, f"{thread_id}: {name} {params['seq']} after {last}"
            last = params["seq"]
    resolved = [params["requestId"] for name, params in messages if name == "approval/resolved"]
    assert len(resolved) == len(set(resolved)), f"{thread_id}: an approval was resolved twice"


_ORDERED = ("= thread/start", "= turn/start", "= thread/archive", "= thread/unsubscribe")


def _check_turns(thread_id: str, messages: list[tuple[str, Any]]) -> None:
    running: str | None = None
    for at, (name, params) in enumerate(messages):
        before, after = messages[at - 1] if at else ("", {}), messages[at + 1] if at + 1 < len(messages) else ("", {})
        where = f"{thread_id}, message {at} ({name})"
        if name == "= turn/start":
            assert after[0] == "thread/status/changed", where
            assert after[1]["status"] == "running", where
        elif name == "turn/started":
            assert running is None, where
            assert before[0] == "thread/status/changed", where
            running = params["turnId"]
        elif name == "turn/completed":
            assert running == params["turnId"], where
            assert before[0] == "thread/status/changed", where
            assert before[1]["status"] == "idle", where
            running = None
        elif name.startswith("item/") or name == "approval/request":
            assert running == params["turnId"], where


# Real processes.


def command(*options: str) -> list[str]:
    """Of a server process on the scripted agent of `tests.app_server_process`."""
    return [sys.executable, "-m", "tests.app_server_process", *options]


__all__ = ["TEXT", "Recorder", "Served", "check_order", "command", "refused", "until", "validator"]
