"""The vv-llm transport: its guards on a stand-in package, and once on the real one."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fake_openai import USAGE, FakeOpenAI
from tests.unit.llm.calling import KEY, Waits, request
from vv_agent.cancellation import CancellationToken
from vv_agent.errors import ConfigError, LlmError, RetryLater
from vv_agent.llm import LlmSettings, ModelRef, ModelSettings, RetrySettings, VvLlmModelProvider
from vv_agent.llm.base import ModelResponse, UsageReport, collect
from vv_agent.llm.vv_llm import VvLlmPackageModel
from vv_agent.messages import Message, ToolCall

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def settings(url: str = "http://127.0.0.1:9/v1", *, tools: bool = True, **entry: Any) -> LlmSettings:
    bindings = [{"endpoint_id": "e1", "model_id": "stream"}]
    models = {
        name: {"id": name, "endpoints": [{**bindings[0], "model_id": name}], "function_call_available": tools, **entry}
        for name in ("stream", "two_sequential", "html", "server_error", "never_answers", "unauthorized", "length")
    }
    endpoints = [{"id": "e1", "api_base": url, "api_key": KEY}]
    return LlmSettings.from_mapping(
        {"VERSION": "2", "backends": {"openai": {"models": models}}, "endpoints": endpoints}
    )


class FakePackage:
    """Plays chunks; `said` keeps the arguments of each call."""

    def __init__(self, play: Callable[[], Iterator[dict[str, Any]]]) -> None:
        self._play = play
        self.said: list[dict[str, Any]] = []

    def open(self, backend: str, model: str, endpoint_id: str, settings: dict[str, Any]) -> Any:
        assert (backend, endpoint_id, settings["endpoints"][0]["api_key"]) == ("openai", "e1", KEY)
        return self

    def create_completion(self, **arguments: Any) -> Iterator[Any]:
        self.said.append(arguments)
        arguments["messages"].append("what the package adds")
        for chunk in self._play():
            yield SimpleNamespace(model_dump=lambda exclude_none, chunk=chunk: json.loads(json.dumps(chunk)))

    def classify(self, error: Exception) -> Any:
        return SimpleNamespace(**{"kind": "unknown", "status_code": None, "retry_after": None, **vars(error)})


def model(package: FakePackage, waits: Waits | None = None, **entry: Any) -> VvLlmPackageModel:
    known = settings(**entry)
    waiting = (waits or Waits()).waiting
    return VvLlmPackageModel(
        known.resolve("openai", "stream"), known, timeout_seconds=9.0, package=package, waiting=waiting
    )


def piece(call_id: str | None, arguments: str, name: str | None = None) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "id": call_id, "function": {"name": name, "arguments": arguments}}]}


def failing(error: Exception) -> Callable[[], Iterator[dict[str, Any]]]:
    def play() -> Iterator[dict[str, Any]]:
        raise error
        yield {}

    return play


class SdkError(Exception):
    def __init__(self, text: str, **seen: Any) -> None:
        super().__init__(text)
        self.__dict__.update(seen)


def test_the_package_is_called_with_its_guards_up() -> None:
    package = FakePackage(lambda: iter([{"content": "Hi"}, {"usage": USAGE}]))
    messages = [Message("user", "Hi")]
    wanted = ModelSettings(temperature=0, reasoning={"effort": "low"}, extra_body={"seed": 1}, extra_args={"user": "u"})
    asked = request(messages=messages, tools=[TOOL], settings=wanted, idempotency_key="idem_1")
    assert collect(model(package).stream(asked)) == ModelResponse("Hi", usage=UsageReport(USAGE))
    (said,) = package.said
    assert said.pop("messages")[0] == {"role": "user", "content": "Hi"}
    assert messages == [Message("user", "Hi")]
    assert said == {
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 8192,
        "skip_cutoff": True,
        "timeout": 9.0,
        "temperature": 0,
        "tools": [TOOL],
        "parallel_tool_calls": False,
        "extra_headers": {"Idempotency-Key": "idem_1"},
        "extra_body": {"seed": 1, "reasoning": {"effort": "low"}},
        "user": "u",
    }


def test_max_tokens_is_the_settings_then_the_capability() -> None:
    package = FakePackage(lambda: iter([{"content": "Hi"}]))
    client = model(package, max_output_tokens=77)
    collect(client.stream(request()))
    collect(client.stream(request(settings=ModelSettings(max_tokens=5))))
    assert [said["max_tokens"] for said in package.said] == [77, 5]


def test_tool_calls_are_told_apart_by_their_ids() -> None:
    chunks = [piece("a", '{"x"', "add"), piece(None, ": 1}"), piece("b", "{}", "sub")]
    response = collect(model(FakePackage(lambda: iter(chunks))).stream(request(tools=[TOOL])))
    assert response.tool_calls == (ToolCall("a", "add", '{"x": 1}'), ToolCall("b", "sub", "{}"))
    assert response.finish_reason == "tool_calls"


@pytest.mark.parametrize("chunks", [[], [{"content": ""}], [piece("a", '{"x": ', "add")]])
def test_an_answer_that_shows_it_was_cut_is_a_network_failure(chunks: list[dict[str, Any]]) -> None:
    once = ModelSettings(retry=RetrySettings(max_attempts=1))
    with pytest.raises(LlmError) as caught:
        collect(model(FakePackage(lambda: iter(chunks))).stream(request(tools=[TOOL], settings=once)))
    assert (caught.value.kind, caught.value.retryable) == (("network", True) if chunks else ("protocol", True))


@pytest.mark.parametrize(
    ("error", "kind", "retryable", "definite", "tries"),
    [
        (SdkError(f"bad key {KEY}", kind="authentication", status_code=401), "authentication", False, True, 1),
        (SdkError("full", kind="context_length", status_code=400), "context_length", False, True, 1),
        (SdkError("wait", kind="rate_limited", status_code=429), "rate_limited", True, True, 3),
        (SdkError("oops"), "provider_internal", True, False, 3),
        (SdkError("lost", kind="network"), "network", True, False, 3),
        (json.JSONDecodeError("bad", "x", 0), "protocol", True, False, 3),
        (AttributeError("'str' object has no attribute 'choices'"), "protocol", True, False, 3),
    ],
)
def test_the_package_s_errors_become_ours(
    error: Exception, kind: str, retryable: bool, definite: bool, tries: int
) -> None:
    package, waits = FakePackage(failing(error)), Waits()
    with pytest.raises(LlmError) as caught:
        collect(model(package, waits).stream(request()))
    assert (caught.value.kind, caught.value.retryable, caught.value.definite) == (kind, retryable, definite)
    assert len(package.said) == tries
    assert KEY not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_long_retry_after_is_for_the_caller() -> None:
    package = FakePackage(failing(SdkError("wait", kind="rate_limited", status_code=429, retry_after=60)))
    with pytest.raises(RetryLater):
        collect(model(package).stream(request()))


def test_a_cancelled_call_is_left_behind() -> None:
    begun, release, token = threading.Event(), threading.Event(), CancellationToken()

    def play() -> Iterator[dict[str, Any]]:
        begun.set()
        release.wait(30)
        yield {"content": "too late"}

    threading.Thread(target=lambda: (begun.wait(10), token.cancel("enough")), daemon=True).start()
    with pytest.raises(LlmError) as caught:
        collect(model(FakePackage(play)).stream(request(cancellation=token)))
    release.set()
    assert (caught.value.kind, caught.value.definite) == ("cancelled", False)


def test_tools_of_a_model_that_is_not_declared_to_call_them_are_refused() -> None:
    package = FakePackage(lambda: iter([{"content": "Hi"}]))
    with pytest.raises(LlmError, match="function_call_available"):
        collect(model(package, tools=False).stream(request(tools=[TOOL])))
    assert package.said == []


INSTALLED = importlib.util.find_spec("vv_llm") is not None


@pytest.mark.skipif(INSTALLED, reason="vv-llm is installed")
def test_without_the_package_the_remedy_is_named() -> None:
    provider = VvLlmModelProvider(settings(), "vv-llm")
    with pytest.raises(ConfigError, match=r"vv-agent\[vv-llm\]"):
        provider.client(provider.resolve(ModelRef.backend("openai", "stream")))


@pytest.mark.skipif(not INSTALLED, reason="vv-llm is not installed")
@pytest.mark.filterwarnings("ignore")
def test_the_real_package_answers_through_its_guards() -> None:
    with FakeOpenAI() as server:
        provider = VvLlmModelProvider(settings(server.url), "vv-llm", timeout_seconds=1.0)

        def ask(name: str) -> ModelResponse:
            once = ModelSettings(retry=RetrySettings(max_attempts=1))
            client = provider.client(provider.resolve(ModelRef.backend("openai", name)))
            return collect(client.stream(request(tools=[TOOL], settings=once)))

        assert ask("stream").content == "Hello, wörld. 你好"
        assert ask("stream").usage.raw is not None
        assert server.requests[0].body["stream_options"] == {"include_usage": True}
        assert ask("two_sequential").tool_calls == (
            ToolCall("call_a", "add", '{"a": 1}'),
            ToolCall("call_b", "sub", '{"b": 2}'),
        )
        kinds = {
            "html": "protocol",
            "server_error": "provider_internal",
            "never_answers": "timeout",
            "unauthorized": "authentication",
        }
        for name, kind in kinds.items():
            with pytest.raises(LlmError) as caught:
                ask(name)
            assert caught.value.kind == kind
            assert KEY not in str(caught.value)
            assert sum(item.model == name for item in server.requests) == 1
