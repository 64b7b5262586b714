"""A call can be cancelled at any moment of its life and ends within two seconds."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.fake_openai import FakeOpenAI
from tests.unit.llm.calling import Waits, model, request
from vv_agent.cancellation import CancellationToken
from vv_agent.errors import LlmError
from vv_agent.llm import ModelSettings, RetrySettings
from vv_agent.llm.base import Model, collect

LIMIT_SECONDS = 2.0
ONCE = ModelSettings(retry=RetrySettings(max_attempts=1))


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as fake:
        yield fake


def cancelled_when(client: Model, reached: Callable[[CancellationToken], object]) -> LlmError:
    """Call in a thread, cancel when `reached` returns, and give the error; fails if it takes more than the limit."""
    token = CancellationToken()
    errors: list[LlmError] = []

    def call() -> None:
        try:
            collect(client.stream(request(cancellation=token)), parts.append)
        except LlmError as error:
            errors.append(error)

    parts: list[object] = []
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    reached(token)
    begin = time.monotonic()
    token.cancel("enough")
    thread.join(LIMIT_SECONDS)
    assert not thread.is_alive(), f"still running {time.monotonic() - begin:.1f} s after the cancel"
    (error,) = errors
    assert error.kind == "cancelled"
    assert "enough" in error.message
    return error


@contextmanager
def mute_listener(backlog: int = 8) -> Iterator[tuple[socket.socket, int]]:
    """A port whose connections nobody accepts."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(backlog)
        yield listener, listener.getsockname()[1]


@contextmanager
def full_listener() -> Iterator[int]:
    """A port that answers no connect any more."""
    with mute_listener(0) as (_, port), ExitStack() as stack:
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            with suppress(BlockingIOError):
                filler.connect(("127.0.0.1", port))
        yield port


def until(condition: Callable[[], object], what: str, timeout: float = 10.0) -> None:
    """Wait for a condition that nothing announces (what the kernel holds)."""
    deadline, tick = time.monotonic() + timeout, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {timeout} s"
        tick.wait(0.005)


def test_before_the_call() -> None:
    with mute_listener() as (_, port):
        error = cancelled_before(model(f"http://127.0.0.1:{port}/v1"))
    assert error.definite


def cancelled_before(client: Model) -> LlmError:
    token = CancellationToken()
    token.cancel("enough")
    with pytest.raises(LlmError) as caught:
        list(client.stream(request(cancellation=token)))
    assert caught.value.kind == "cancelled"
    return caught.value


def test_while_the_name_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def stuck(host: str, *_: object, flags: int = 0, **__: object) -> list[object]:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror
        asked.set()
        go_on.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", stuck)
    error = cancelled_when(model("http://slow.invalid/v1"), lambda _: asked.wait(10))
    go_on.set()
    assert error.definite


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux to see and to make a stuck connect")
def test_while_connecting() -> None:
    """Linux leaves connects unanswered when the backlog is full."""
    with full_listener() as port:
        before = connecting(port)
        error = cancelled_when(
            model(f"http://127.0.0.1:{port}/v1"), lambda _: until(lambda: connecting(port) > before, "a connect")
        )
    assert error.definite


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux to make a stuck connect")
def test_a_connect_that_nobody_answers_ends_in_time() -> None:
    with full_listener() as port, pytest.raises(LlmError, match="cannot connect") as caught:
        list(model(f"http://127.0.0.1:{port}/v1", timeout=0.3).stream(request(settings=ONCE)))
    assert (caught.value.kind, caught.value.definite) == ("network", True)


def connecting(port: int) -> int:
    """Sockets of this machine in state SYN_SENT to a local port."""
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table]
    return sum(row[2].endswith(f":{port:04X}") and row[3] == "02" for row in rows[1:])


def test_during_the_tls_handshake() -> None:
    with mute_listener() as (listener, port):
        accepted: list[socket.socket] = []

        def client_hello(_: CancellationToken) -> None:
            accepted.append(listener.accept()[0])
            assert accepted[0].recv(1)

        error = cancelled_when(model(f"https://127.0.0.1:{port}/v1"), client_hello)
        accepted[0].close()
    assert error.definite


def test_while_waiting_for_the_first_byte(server: FakeOpenAI) -> None:
    error = cancelled_when(model((server.url, "never_answers")), lambda _: server.wait_for_requests(1))
    assert not error.definite


def test_while_waiting_on_a_connection_that_was_used_before(server: FakeOpenAI) -> None:
    client = model((server.url, "never_answers_second"))
    collect(client.stream(request()))
    cancelled_when(client, lambda _: server.wait_for_requests(2))
    assert server.requests[-1].on_connection == 2


@pytest.mark.parametrize("scenario", ["silent_mid_stream", "slow"])
def test_in_the_middle_of_the_stream(server: FakeOpenAI, scenario: str) -> None:
    token = CancellationToken()
    stream = model((server.url, scenario)).stream(request(cancellation=token))
    next(stream)
    timer = threading.Timer(0.05, token.cancel, ["enough"])
    timer.start()
    begin = time.monotonic()
    with pytest.raises(LlmError) as caught:
        list(stream)
    assert caught.value.kind == "cancelled"
    assert time.monotonic() - begin < LIMIT_SECONDS
    timer.join()


def test_between_two_tries(server: FakeOpenAI) -> None:
    with pytest.raises(LlmError) as caught:
        list(model((server.url, "rate_limit"), waits=Waits(cancel_at=1)).stream(request()))
    assert (caught.value.kind, caught.value.definite) == ("cancelled", True)
    assert len(server.requests) == 1


def test_a_cancelled_call_does_not_move_to_the_next_endpoint(server: FakeOpenAI) -> None:
    client = model((server.url, "never_answers"), (server.url, "stream"))
    cancelled_when(client, lambda _: server.wait_for_requests(1))
    assert len(server.requests) == 1


def test_calls_side_by_side_are_cancelled_one_by_one(server: FakeOpenAI) -> None:
    client, token = model((server.url, "silent_mid_stream")), CancellationToken()
    other = client.stream(request(cancellation=token))
    next(other)
    cancelled_when(model((server.url, "never_answers")), lambda _: server.wait_for_requests(2))
    assert not token.cancelled
    token.cancel()
    with pytest.raises(LlmError, match="cancelled"):
        next(other)
