"""A real HTTP server that plays an OpenAI-compatible provider, well behaved or not.

The model's name in the request chooses the scenario (`SCENARIOS` lists them). In tests:

    with FakeOpenAI() as server:
        ... server.url ...            # http://127.0.0.1:PORT/v1
        server.requests               # what came in: path, headers, body, number of the request on its connection

By hand: `python -m tests.fake_openai PORT`.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 5,
    "total_tokens": 25,
    "prompt_tokens_details": {"cached_tokens": 12},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
SLOW_STEP_SECONDS = 0.05


@dataclass(frozen=True)
class Received:
    """One request as it came in. `on_connection` is 1 for the first request of its connection."""

    path: str
    headers: Mapping[str, str]
    body: Any
    on_connection: int
    raw: bytes = b""
    """The body as it came in."""

    @property
    def model(self) -> str:
        return str(self.body.get("model", "")) if isinstance(self.body, dict) else ""


class FakeOpenAI:
    """The server; `port=0` picks a free one. `released` set ends everything that hangs."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Received] = []
        self.released = threading.Event()
        self._arrived = threading.Condition()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.fake = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> FakeOpenAI:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve_forever(self) -> None:
        self._server.serve_forever()

    def record(self, received: Received) -> int:
        """Keep a request; gives how many its model has had, with this one."""
        with self._arrived:
            self.requests.append(received)
            self._arrived.notify_all()
            return Counter(item.model for item in self.requests)[received.model]

    def wait_for_requests(self, count: int, timeout: float = 10.0) -> None:
        """Wait until `count` requests have arrived."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.requests) >= count, timeout):
                raise AssertionError(f"{len(self.requests)} of {count} requests arrived in {timeout} s")


class Exchange:
    """What a scenario can do with one request. `nth` counts the requests for its model."""

    def __init__(self, handler: _Handler, received: Received, nth: int) -> None:
        self._handler = handler
        self.received = received
        self.nth = nth

    @property
    def tool_results(self) -> int:
        return sum(message["role"] == "tool" for message in self.received.body["messages"])

    def json(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        self.raw(status, "application/json", json.dumps(value), headers)

    def error(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        self.json(status, {"error": {"message": message, "type": "fake", "code": code}}, headers)

    def raw(self, status: int, kind: str, text: str, headers: Mapping[str, str] | None = None) -> None:
        data = text.encode()
        self._head(status, {"Content-Type": kind, "Content-Length": str(len(data)), **(headers or {})})
        self._handler.wfile.write(data)

    def begin(self) -> None:
        """Start an event stream."""
        self._head(200, {"Content-Type": "text/event-stream; charset=utf-8", "Transfer-Encoding": "chunked"})

    def send(self, *values: Any) -> None:
        """Send events: strings as they are, everything else as JSON."""
        for value in values:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            data = f"data: {text}\n\n".encode()
            self._handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def end(self) -> None:
        """End the stream as HTTP wants it; the connection stays."""
        self._handler.wfile.write(b"0\r\n\r\n")

    def stream(
        self, deltas: Iterable[dict[str, Any]], finish: str | None = "stop", usage: Mapping[str, Any] = USAGE
    ) -> None:
        """A whole answer: the deltas, the finish reason, the usage (if it was asked for), the end mark."""
        self.begin()
        self.send(*map(chunk, deltas))
        if finish is not None:
            self.send(chunk({}, finish))
        if (self.received.body.get("stream_options") or {}).get("include_usage"):
            self.send({"id": "c", "choices": [], "usage": dict(usage)})
        self.send("[DONE]")
        self.end()

    def hang(self) -> None:
        """Say nothing more until the server is closed."""
        self._handler.fake.released.wait()
        self.cut()

    def pause(self) -> None:
        self._handler.fake.released.wait(SLOW_STEP_SECONDS)

    def cut(self) -> None:
        """Close the connection in the middle of things."""
        self._handler.close_connection = True

    def reset(self) -> None:
        """Abort the connection (RST)."""
        self._handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._handler.connection.close()
        self._handler.close_connection = True

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self._handler.send_response(status)
        for name, value in headers.items():
            self._handler.send_header(name, value)
        self._handler.end_headers()


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def text(value: str) -> dict[str, Any]:
    return {"content": value}


def tool(
    index: int | None = None, call_id: str | None = None, name: str | None = None, arguments: str = ""
) -> dict[str, Any]:
    """A piece of a tool call."""
    piece: dict[str, Any] = {"function": {"arguments": arguments}}
    if index is not None:
        piece["index"] = index
    if call_id is not None:
        piece |= {"id": call_id, "type": "function"}
    if name is not None:
        piece["function"]["name"] = name
    return {"tool_calls": [piece]}


Scenario = Callable[[Exchange], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(play: Scenario) -> Scenario:
    """Register under the function's name."""
    SCENARIOS[play.__name__] = play
    return play


@scenario
def plain(x: Exchange) -> None:
    """One JSON reply, also when a stream was asked for."""
    message = {"role": "assistant", "content": "Hello, world."}
    x.json(200, {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE})


@scenario
def stream(x: Exchange) -> None:
    x.stream([{"role": "assistant", "content": ""}, text("Hello, "), text("wörld"), text(". 你好")])


@scenario
def one_tool(x: Exchange) -> None:
    """Calls `add` once, then answers."""
    if x.tool_results:
        x.stream([text("The sum is 3.")])
    else:
        x.stream(
            [tool(0, "call_a", "add", ""), tool(0, arguments='{"a": 1,'), tool(0, arguments=' "b": 2}')], "tool_calls"
        )


@scenario
def two_sequential(x: Exchange) -> None:
    """Two calls in one answer, one after the other."""
    pieces = [
        tool(0, "call_a", "add", '{"a"'),
        tool(0, arguments=": 1}"),
        tool(1, "call_b", "sub", '{"b"'),
        tool(1, arguments=": 2}"),
    ]
    x.stream(pieces if not x.tool_results else [text("done")], "tool_calls" if not x.tool_results else "stop")


@scenario
def two_interleaved(x: Exchange) -> None:
    x.stream(
        [
            tool(0, "call_a", "add", '{"a"'),
            tool(1, "call_b", "sub", '{"b"'),
            tool(0, arguments=": 1}"),
            tool(1, arguments=": 2}"),
        ],
        "tool_calls",
    )


@scenario
def tools_without_index(x: Exchange) -> None:
    x.stream(
        [
            tool(None, "call_a", "add", '{"a"'),
            tool(None, arguments=": 1}"),
            tool(None, "call_b", "sub", '{"b"'),
            tool(None, arguments=": 2}"),
        ],
        "tool_calls",
    )


@scenario
def tools_all_index_zero(x: Exchange) -> None:
    x.stream([tool(0, "call_a", "add", '{"a": 1}'), tool(0, "call_b", "sub", '{"b": 2}')], "tool_calls")


@scenario
def tools_without_id(x: Exchange) -> None:
    x.stream([tool(0, None, "add", "{}"), tool(1, None, "sub", "{}")], "tool_calls")


@scenario
def bad_arguments(x: Exchange) -> None:
    x.stream([tool(0, "call_a", "add", '{"a": 1, oops')], "tool_calls")


@scenario
def reasoning(x: Exchange) -> None:
    x.stream([{"reasoning_content": "Let me "}, {"reasoning": "think."}, text("42")])


@scenario
def length(x: Exchange) -> None:
    x.stream([text("This is cut")], "length")


@scenario
def unauthorized(x: Exchange) -> None:
    """401 whose text repeats the key that was sent, as some providers do."""
    x.error(401, "invalid_api_key", f"Incorrect API key: {x.received.headers.get('authorization')}")


@scenario
def context_too_long(x: Exchange) -> None:
    x.error(400, "context_length_exceeded", "This model's maximum context length is 8192 tokens.")


@scenario
def bad_request(x: Exchange) -> None:
    x.error(400, "invalid_value", "'temperature' is too high")


@scenario
def no_such_model(x: Exchange) -> None:
    x.error(404, "model_not_found", "The model does not exist")


@scenario
def rate_limit_once(x: Exchange) -> None:
    """429 with a Retry-After of 2 s, then the answer."""
    if x.nth == 1:
        x.error(429, "rate_limit_exceeded", "slow down", {"Retry-After": "2"})
    else:
        stream(x)


@scenario
def rate_limit(x: Exchange) -> None:
    """429 for ever, without a time."""
    x.error(429, "rate_limit_exceeded", "slow down")


@scenario
def rate_limit_long(x: Exchange) -> None:
    x.error(429, "rate_limit_exceeded", "come back later", {"Retry-After": "30"})


@scenario
def quota(x: Exchange) -> None:
    x.error(429, "insufficient_quota", "You exceeded your current quota")


@scenario
def server_error(x: Exchange) -> None:
    x.error(500, "server_error", "internal")


@scenario
def server_error_once(x: Exchange) -> None:
    server_error(x) if x.nth == 1 else stream(x)


@scenario
def slow(x: Exchange) -> None:
    """Many small steps."""
    x.begin()
    for number in range(20):
        x.send(chunk(text(f"{number} ")))
        x.pause()
    x.send(chunk({}, "stop"), "[DONE]")
    x.end()


@scenario
def silent_mid_stream(x: Exchange) -> None:
    x.begin()
    x.send(chunk(text("Hello")))
    x.hang()


@scenario
def silent_after_finish(x: Exchange) -> None:
    """The whole answer, the end mark, and then a connection that is left open in the middle of its reply."""
    x.begin()
    x.send(chunk(text("Hello")), chunk({}, "stop"), "[DONE]")
    x.hang()


@scenario
def cut_mid_text(x: Exchange) -> None:
    x.begin()
    x.send(chunk(text("Hello")), chunk(text(", wor")))
    x.cut()


@scenario
def cut_mid_tool_call(x: Exchange) -> None:
    x.begin()
    x.send(chunk(tool(0, "call_a", "add", '{"a": ')))
    x.cut()


@scenario
def cut_after_finish(x: Exchange) -> None:
    x.begin()
    x.send(chunk(text("Hello")), chunk({}, "stop"))
    x.cut()


@scenario
def no_finish(x: Exchange) -> None:
    """A stream that ends properly but never says why the model stopped."""
    x.stream([text("Hello")], None)


@scenario
def aborted(x: Exchange) -> None:
    """RST instead of a reply."""
    x.reset()


@scenario
def aborted_mid_stream(x: Exchange) -> None:
    x.begin()
    x.send(chunk(text("Hello")))
    x.reset()


@scenario
def html(x: Exchange) -> None:
    x.raw(200, "text/html", "<html><body>Please log in</body></html>")


@scenario
def half_json(x: Exchange) -> None:
    x.raw(200, "application/json", '{"id": "c", "choices": [{"mess')


@scenario
def half_json_event(x: Exchange) -> None:
    x.begin()
    x.send(chunk(text("Hello")), '{"choices": [{"del', "[DONE]")
    x.end()


@scenario
def error_in_stream(x: Exchange) -> None:
    x.begin()
    x.send({"error": {"message": "The engine is overloaded", "type": "server_error"}})
    x.end()


@scenario
def error_after_text(x: Exchange) -> None:
    x.begin()
    x.send(chunk(text("Hello")), {"error": {"message": "slow down", "code": "rate_limit_exceeded"}})
    x.end()


@scenario
def error_with_200(x: Exchange) -> None:
    x.json(200, {"error": {"message": "too many tokens for the context window", "code": 400}})


@scenario
def empty_choices(x: Exchange) -> None:
    """A chunk without choices before the answer (content filters send one)."""
    x.begin()
    x.send({"id": "c", "choices": []}, chunk(text("Hello")), chunk({}, "stop"), "[DONE]")
    x.end()


@scenario
def no_choices(x: Exchange) -> None:
    x.begin()
    x.send({"id": "c", "choices": []}, "[DONE]")
    x.end()


@scenario
def never_answers(x: Exchange) -> None:
    x.hang()


@scenario
def never_answers_second(x: Exchange) -> None:
    """Answers the first request of a connection; says nothing to the second."""
    stream(x) if x.received.on_connection == 1 else x.hang()


@scenario
def keep_alive_dropped(x: Exchange) -> None:
    """Answers the first request of a connection and closes it when the second has come in."""
    stream(x) if x.received.on_connection == 1 else x.cut()


@scenario
def dropped(x: Exchange) -> None:
    """Closes every connection without a reply."""
    x.cut()


@scenario
def writes(x: Exchange) -> None:
    """Writes a file, then says so."""
    if x.received.body["messages"][-1]["role"] == "tool":
        x.stream([text("It is "), text("written.")])
        return
    x.stream([tool(0, f"call_{x.nth}", "write_file", '{"path": "out.txt", "content": "apple"}')], "tool_calls")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    fake: FakeOpenAI

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error here."""
        if not isinstance(sys.exc_info()[1], OSError | ValueError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server
    _count = 0

    @property
    def fake(self) -> FakeOpenAI:
        return self.server.fake

    def do_POST(self) -> None:
        self._count += 1
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            body = json.loads(data)
        except ValueError:
            body = data.decode("utf-8", "replace")
        headers = {name.lower(): value for name, value in self.headers.items()}
        received = Received(self.path, headers, body, self._count, data)
        exchange = Exchange(self, received, self.fake.record(received))
        play = SCENARIOS.get(received.model)
        if not self.path.endswith("/v1/chat/completions") or play is None:
            exchange.error(404, "model_not_found", f"no scenario {received.model!r}; there are {', '.join(SCENARIOS)}")
            return
        play(exchange)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        return


if __name__ == "__main__":
    by_hand = FakeOpenAI(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(by_hand.url, flush=True)
    by_hand.serve_forever()
