"""The HTTP client against a real server: what comes back, and what each failure is called."""

from __future__ import annotations

import pickle
import socket
import traceback
from collections.abc import Iterator
from types import MappingProxyType

import pytest

from tests.fake_openai import USAGE, FakeOpenAI
from tests.unit.llm.calling import KEY, Waits, model, request
from vv_agent.errors import ConfigError, LlmError, RetryLater
from vv_agent.llm import ModelSettings, RetrySettings, ToolChoice
from vv_agent.llm.base import Finish, ModelResponse, TextDelta, UsageReport, collect
from vv_agent.llm.openai_compatible import OpenAICompatibleModel
from vv_agent.llm.reference import ResolvedModelConfig
from vv_agent.messages import Message, ToolCall

ONCE = ModelSettings(retry=RetrySettings(max_attempts=1))
ADD, SUB = ToolCall("call_a", "add", '{"a": 1}'), ToolCall("call_b", "sub", '{"b": 2}')


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as fake:
        yield fake


def answer(server: FakeOpenAI, scenario: str, **fields: object) -> ModelResponse:
    return collect(model((server.url, scenario)).stream(request(**fields)))


def failure(server: FakeOpenAI, scenario: str, *, timeout: float = 10.0) -> tuple[LlmError, list[object]]:
    """The error of one try, and the parts that came before it."""
    parts: list[object] = []
    with pytest.raises(LlmError) as caught:
        collect(model((server.url, scenario), timeout=timeout).stream(request(settings=ONCE)), parts.append)
    return caught.value, parts


# --- answers


def test_text_streams_with_usage_and_finish_last(server: FakeOpenAI) -> None:
    parts = list(model((server.url, "stream")).stream(request()))
    assert parts == [TextDelta("Hello, "), TextDelta("wörld"), TextDelta(". 你好"), UsageReport(USAGE), Finish("stop")]


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("plain", ModelResponse("Hello, world.", usage=UsageReport(USAGE))),
        ("one_tool", (ToolCall("call_a", "add", '{"a": 1, "b": 2}'),)),
        ("two_sequential", (ADD, SUB)),
        ("two_interleaved", (ADD, SUB)),
        ("tools_without_index", (ADD, SUB)),
        ("tools_all_index_zero", (ADD, SUB)),
        ("tools_without_id", (ToolCall("call_4_1", "add", "{}"), ToolCall("call_4_2", "sub", "{}"))),
        ("bad_arguments", (ToolCall("call_a", "add", '{"a": 1, oops'),)),
        ("reasoning", ModelResponse("42", reasoning="Let me think.", usage=UsageReport(USAGE))),
        ("length", ModelResponse("This is cut", finish_reason="length", usage=UsageReport(USAGE))),
        ("empty_choices", ModelResponse("Hello")),
        ("cut_after_finish", ModelResponse("Hello")),
        ("silent_after_finish", ModelResponse("Hello")),
        ("slow", ModelResponse("".join(f"{number} " for number in range(20)))),
    ],
)
def test_what_a_provider_says_is_read(
    server: FakeOpenAI, scenario: str, expected: ModelResponse | tuple[ToolCall, ...]
) -> None:
    response = answer(server, scenario, turn=3)
    if isinstance(expected, tuple):
        expected = ModelResponse("", expected, finish_reason="tool_calls", usage=UsageReport(USAGE))
    assert response == expected
    assert len(server.requests) == 1


def test_complete_gives_the_whole_answer_and_shows_each_part(server: FakeOpenAI) -> None:
    seen: list[object] = []
    client = model((server.url, "stream"))
    response = client.complete(model="m", messages=[Message("user", "Hi")], tools=[], stream_callback=seen.append)
    assert response.content == "Hello, wörld. 你好"
    assert seen[0] == TextDelta("Hello, ")


# --- requests


def test_the_request_is_what_the_settings_say(server: FakeOpenAI) -> None:
    settings = ModelSettings(
        temperature=0,
        top_p=0.5,
        max_tokens=7,
        tool_choice=ToolChoice.named("add"),
        parallel_tool_calls=False,
        reasoning={"effort": "low"},
        timeout_seconds=5,
        extra_headers={"X-Team": "blue"},
        extra_body={"seed": 1},
        extra_args={"user": "u", "top_p": 0.25},
    )
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    answer(server, "stream", settings=settings, tools=[tool], idempotency_key="idem_1")
    (received,) = server.requests
    assert received.body == {
        "model": "stream",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "top_p": 0.25,
        "max_tokens": 7,
        "reasoning": {"effort": "low"},
        "tools": [tool],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "parallel_tool_calls": False,
        "seed": 1,
        "user": "u",
    }
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.headers["x-team"] == "blue"
    assert received.headers["idempotency-key"] == "idem_1"


def test_nothing_is_sent_that_was_not_set(server: FakeOpenAI) -> None:
    answer(server, "stream", settings=ModelSettings(tool_choice="required", parallel_tool_calls=True))
    (received,) = server.requests
    assert received.body.keys() == {"model", "messages", "stream", "stream_options"}
    assert "idempotency-key" not in received.headers


# --- failures


@pytest.mark.parametrize(
    ("scenario", "kind", "retryable", "definite"),
    [
        ("unauthorized", "authentication", False, True),
        ("context_too_long", "context_length", False, True),
        ("bad_request", "invalid_request", False, True),
        ("no_such_model", "invalid_request", False, True),
        ("rate_limit", "rate_limited", True, True),
        ("quota", "rate_limited", False, True),
        ("server_error", "provider_internal", True, False),
        ("html", "protocol", True, False),
        ("half_json", "protocol", True, False),
        ("no_choices", "protocol", True, False),
        ("error_in_stream", "provider_internal", True, False),
        ("error_with_200", "context_length", False, True),
        ("aborted", "network", True, False),
        ("dropped", "network", True, False),
    ],
)
def test_a_failure_before_any_part_has_a_kind(
    server: FakeOpenAI, scenario: str, kind: str, retryable: bool, definite: bool
) -> None:
    error, parts = failure(server, scenario)
    assert (error.kind, error.retryable, error.definite, parts) == (kind, retryable, definite, [])
    assert "'e1'" in error.message
    assert repr(scenario) in error.message


@pytest.mark.parametrize(
    ("scenario", "kind"),
    [
        ("cut_mid_text", "network"),
        ("cut_mid_tool_call", "network"),
        ("aborted_mid_stream", "network"),
        ("no_finish", "network"),
        ("half_json_event", "protocol"),
        ("error_after_text", "rate_limited"),
    ],
)
def test_a_failure_after_a_part_is_never_tried_again(server: FakeOpenAI, scenario: str, kind: str) -> None:
    waits = Waits()
    parts: list[object] = []
    with pytest.raises(LlmError) as caught:
        collect(model((server.url, scenario), (server.url, "stream"), waits=waits).stream(request()), parts.append)
    assert caught.value.kind == kind
    assert caught.value.retryable
    assert parts
    assert len(server.requests) == 1
    assert waits.seconds == []


@pytest.mark.parametrize("scenario", ["never_answers", "silent_mid_stream"])
def test_a_silent_provider_is_a_timeout(server: FakeOpenAI, scenario: str) -> None:
    error, _ = failure(server, scenario, timeout=0.2)
    assert (error.kind, error.retryable, error.definite) == ("timeout", True, False)


def test_the_timeout_of_the_settings_goes_first(server: FakeOpenAI) -> None:
    with pytest.raises(LlmError, match=r"no answer for 0\.2 s"):
        answer(server, "never_answers", settings=ONCE.merged(ModelSettings(timeout_seconds=0.2)))


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_refused_connection_is_definite(host: str) -> None:
    with pytest.raises(LlmError) as caught:
        list(model(f"http://{host}:{closed_port()}/v1").stream(request(settings=ONCE)))
    assert (caught.value.kind, caught.value.retryable, caught.value.definite) == ("network", True, True)
    assert host in caught.value.message


def test_an_unknown_host_is_definite() -> None:
    with pytest.raises(LlmError, match=r"cannot resolve no-such-host\.invalid") as caught:
        list(model("http://no-such-host.invalid/v1").stream(request(settings=ONCE)))
    assert caught.value.definite


def test_a_server_without_tls_is_a_failed_connect(server: FakeOpenAI) -> None:
    with pytest.raises(LlmError) as caught:
        list(model(server.url.replace("http:", "https:")).stream(request(settings=ONCE)))
    assert (caught.value.kind, caught.value.definite) == ("network", True)


@pytest.mark.parametrize("base", ["ftp://x/v1", "no url", ""])
def test_a_wrong_address_is_an_invalid_request(base: str) -> None:
    with pytest.raises(LlmError) as caught:
        list(model(base).stream(request()))
    assert (caught.value.kind, caught.value.definite) == ("invalid_request", True)


def test_a_model_without_endpoints_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no endpoint"):
        OpenAICompatibleModel(ResolvedModelConfig("b", "m", "m", "m"))


@pytest.mark.parametrize("value", ["line\nbreak-secret", "schlüssel-secret", "nul\0-secret"])
def test_no_error_text_holds_a_key_or_a_header(server: FakeOpenAI, value: str) -> None:
    errors = [failure(server, "unauthorized")[0], failure(server, "aborted")[0]]
    with pytest.raises(LlmError) as caught:
        answer(server, "stream", settings=ModelSettings(extra_headers={"X-Pass": value}))
    assert caught.value.kind == "invalid_request"
    for error in (*errors, caught.value):
        said = "".join(traceback.format_exception(error)) + repr(vars(error))
        assert KEY not in said
        assert "-secret" not in said.replace(KEY, "")
        assert error.__cause__ is None
        assert error.__context__ is None
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


# --- retries


def test_a_short_retry_after_is_waited_for(server: FakeOpenAI) -> None:
    waits = Waits()
    assert collect(model((server.url, "rate_limit_once"), waits=waits).stream(request())).content
    assert waits.seconds == [2.0]


def test_a_long_retry_after_is_for_the_caller(server: FakeOpenAI) -> None:
    waits = Waits()
    with pytest.raises(RetryLater) as caught:
        list(model((server.url, "rate_limit_long"), waits=waits).stream(request()))
    assert caught.value.retry_after == 30.0
    assert waits.seconds == []
    assert len(server.requests) == 1


@pytest.mark.parametrize(("scenario", "kind"), [("rate_limit", "rate_limited"), ("server_error", "provider_internal")])
def test_the_wait_doubles_and_the_tries_end(server: FakeOpenAI, scenario: str, kind: str) -> None:
    waits = Waits()
    with pytest.raises(LlmError) as caught:
        list(model((server.url, scenario), waits=waits).stream(request()))
    assert caught.value.kind == kind
    assert len(server.requests) == 3
    assert waits.seconds == [2.0, 4.0]


def test_the_settings_say_how_often_and_chance_shortens_the_wait(server: FakeOpenAI) -> None:
    waits = Waits(chance=1.0)
    settings = ModelSettings(retry=RetrySettings(max_attempts=2, backoff_seconds=1.0))
    with pytest.raises(LlmError):
        list(model((server.url, "server_error"), waits=waits).stream(request(settings=settings)))
    assert waits.seconds == [0.5]


def test_a_server_error_is_tried_again(server: FakeOpenAI) -> None:
    assert answer(server, "server_error_once").content
    assert len(server.requests) == 2


@pytest.mark.parametrize("scenario", ["unauthorized", "context_too_long", "bad_request", "no_such_model", "quota"])
def test_a_refusal_is_not_tried_again(server: FakeOpenAI, scenario: str) -> None:
    with pytest.raises(LlmError):
        answer(server, scenario)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "scenario", ["unauthorized", "no_such_model", "quota", "rate_limit", "rate_limit_long", "server_error", "dropped"]
)
def test_the_next_endpoint_serves_at_once(server: FakeOpenAI, scenario: str) -> None:
    waits = Waits()
    client = model((server.url, scenario), (server.url, "stream"), waits=waits)
    assert collect(client.stream(request())).content
    assert [item.model for item in server.requests] == [scenario, "stream"]
    assert waits.seconds == []


def test_a_dead_endpoint_is_passed_over(server: FakeOpenAI) -> None:
    client = model((f"http://127.0.0.1:{closed_port()}/v1", "m"), (server.url, "stream"))
    assert collect(client.stream(request())).content


@pytest.mark.parametrize("scenario", ["context_too_long", "bad_request"])
def test_a_bad_request_is_bad_at_every_endpoint(server: FakeOpenAI, scenario: str) -> None:
    with pytest.raises(LlmError):
        list(model((server.url, scenario), (server.url, "stream")).stream(request()))
    assert len(server.requests) == 1


def test_only_endpoints_that_may_recover_are_asked_again(server: FakeOpenAI) -> None:
    client = model((server.url, "unauthorized"), (server.url, "server_error"))
    with pytest.raises(LlmError) as caught:
        list(client.stream(request()))
    assert caught.value.kind == "provider_internal"
    assert [item.model for item in server.requests] == ["unauthorized", *["server_error"] * 3]


def test_an_outcome_once_lost_is_not_definite_any_more(server: FakeOpenAI) -> None:
    client = model((server.url, "dropped"), (server.url, "rate_limit"))
    with pytest.raises(LlmError) as caught:
        list(client.stream(request()))
    assert not caught.value.definite


# --- connections


def test_a_connection_is_kept_and_used_again(server: FakeOpenAI) -> None:
    for number in (1, 2, 3):
        answer(server, "stream")
        assert server.requests[-1].on_connection == number


def test_a_kept_connection_that_breaks_before_the_reply_is_replaced_at_once(server: FakeOpenAI) -> None:
    waits = Waits()
    client = model((server.url, "keep_alive_dropped"), waits=waits)
    for _ in range(2):
        assert collect(client.stream(request(settings=ONCE))).content
    assert [item.on_connection for item in server.requests] == [1, 2, 1]
    assert waits.seconds == []


def test_two_streams_of_one_thread_do_not_disturb_each_other(server: FakeOpenAI) -> None:
    client = model((server.url, "slow"))
    first, second = client.stream(request()), client.stream(request())
    assert next(first) == next(second) == TextDelta("0 ")
    assert collect(first).content == collect(second).content


def test_a_stream_that_is_left_early_gives_its_connection_up(server: FakeOpenAI) -> None:
    stream = model((server.url, "slow")).stream(request())
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert answer(server, "stream").content


def test_the_system_s_proxy_is_used_unless_the_host_is_excepted(
    server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url.removesuffix("/v1"))
    monkeypatch.setenv("no_proxy", "direct.invalid")
    assert collect(model(("http://models.invalid/v1", "stream")).stream(request())).content
    assert server.requests[0].path == "http://models.invalid/v1/chat/completions"
    with pytest.raises(LlmError, match=r"cannot resolve direct\.invalid"):
        list(model("http://direct.invalid/v1").stream(request(settings=ONCE)))
    monkeypatch.setenv("http_proxy", "socks5://user:password@127.0.0.1:1")
    with pytest.raises(LlmError, match="socks5 proxy") as caught:
        list(model(("http://models.invalid/v1", "stream")).stream(request()))
    assert "password" not in str(caught.value)


def test_a_request_that_is_not_json_is_refused(server: FakeOpenAI) -> None:
    with pytest.raises(LlmError, match="not a JSON request") as caught:
        answer(server, "stream", tools=[{"type": "function", "function": object()}])
    assert (caught.value.kind, caught.value.definite) == ("invalid_request", True)


def test_half_a_surrogate_pair_and_read_only_schemas_are_sent(server: FakeOpenAI) -> None:
    tool = MappingProxyType({"type": "function", "function": MappingProxyType({"name": "add"})})
    answer(server, "stream", messages=[Message("user", "x\ud83d")], tools=[tool])
    body = server.requests[0].body
    assert body["messages"][0]["content"] == "x?"
    assert body["tools"] == [{"type": "function", "function": {"name": "add"}}]
