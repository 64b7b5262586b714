"""The scripted model: a pure function of the request."""

from __future__ import annotations

import pickle
import threading
import time
from typing import Any

import pytest

from tests.unit.llm.calling import request
from vv_agent.cancellation import CancellationToken
from vv_agent.errors import ConfigError, LlmError
from vv_agent.llm import ModelRef, ModelSettings, ScriptedLLM, ScriptedModel, ScriptedProvider
from vv_agent.llm.base import (
    Finish,
    Model,
    ModelRequest,
    ModelResponse,
    ReasoningDelta,
    TextDelta,
    UsageReport,
    collect,
)
from vv_agent.llm.reference import ModelProvider
from vv_agent.llm.scripted import call, calls, say
from vv_agent.messages import Message, ToolCall


def play(model: ScriptedModel, **fields: Any) -> ModelResponse:
    return collect(model.stream(request(**fields)))


def test_the_turn_chooses_the_step_however_often_it_is_asked() -> None:
    model = ScriptedModel(["one", say("two", reasoning="why"), call("add", {"a": 1})])
    for _ in range(2):
        assert play(model, turn=1) == ModelResponse("two", reasoning="why")
        assert play(model, turn=0).content == "one"
    assert play(model, turn=2) == ModelResponse(
        "", (ToolCall("call_3_1", "add", '{"a": 1}'),), finish_reason="tool_calls"
    )


def test_text_comes_in_chunks() -> None:
    parts = list(ScriptedModel(["abcdefgh" * 2 + "i"]).stream(request()))
    assert parts == [TextDelta("abcdefgh"), TextDelta("abcdefgh"), TextDelta("i"), Finish("stop")]


def test_several_calls_of_one_turn_have_their_own_ids() -> None:
    response = play(ScriptedModel([calls(("a", {}), ("b", {"x": "ü"}, "mine"), text="on it")]))
    assert response.content == "on it"
    assert [(item.id, item.name, item.parsed()) for item in response.tool_calls] == [
        ("call_1_1", "a", {}),
        ("mine", "b", {"x": "ü"}),
    ]


def test_a_step_may_be_parts_an_error_or_a_function_of_the_request() -> None:
    def echo(asked: ModelRequest) -> str:
        return asked.messages[-1].content.upper()

    model = ScriptedModel([[ReasoningDelta("hm"), TextDelta("x")], LlmError("timeout", "slow"), echo, []])
    assert play(model, turn=0) == ModelResponse("x", reasoning="hm")
    with pytest.raises(LlmError, match="slow"):
        play(model, turn=1)
    assert play(model, turn=2, messages=[Message("user", "hi")]).content == "HI"
    assert play(model, turn=3) == ModelResponse("")


def test_usage_is_the_step_s_own_or_the_model_s() -> None:
    own = ModelResponse("x", usage=UsageReport({"prompt_tokens": 1}))
    model = ScriptedModel([own, "y"], usage={"prompt_tokens": 2})
    assert [play(model, turn=turn).usage.raw for turn in (0, 1)] == [{"prompt_tokens": 1}, {"prompt_tokens": 2}]


def test_a_script_that_is_over_is_a_definite_refusal() -> None:
    with pytest.raises(LlmError, match="scripted response queue is empty") as caught:
        play(ScriptedModel(["one"]), turn=1)
    assert (caught.value.kind, caught.value.definite, caught.value.retryable) == ("invalid_request", True, False)


def test_a_delay_can_be_cancelled() -> None:
    token = CancellationToken()
    threading.Timer(0.05, token.cancel, ["enough"]).start()
    begin = time.monotonic()
    with pytest.raises(LlmError) as caught:
        play(ScriptedModel(["x"], delay=30), cancellation=token)
    assert caught.value.kind == "cancelled"
    assert time.monotonic() - begin < 2
    with pytest.raises(LlmError, match="enough"):
        play(ScriptedModel(["x"]), cancellation=token)


def test_complete_counts_the_turn_itself() -> None:
    model = ScriptedLLM(["one", "two"])
    history = [Message("user", "hi"), Message("assistant", "one"), Message("user", "and?")]
    assert model.complete(model="demo", messages=history, tools=[]).content == "two"


def test_a_script_travels_to_another_process() -> None:
    model = pickle.loads(pickle.dumps(ScriptedModel(["one", call("add", {"a": 1}, "call_x")])))
    assert play(model, turn=1).tool_calls == (ToolCall("call_x", "add", '{"a": 1}'),)


def test_the_provider_serves_its_one_backend() -> None:
    provider = ScriptedProvider(["hi"])
    assert isinstance(provider, ModelProvider)
    resolved = provider.resolve(provider.default_model_ref())
    assert (resolved.backend, resolved.model_id) == ("scripted", "demo-model")
    assert (resolved.context_length, resolved.max_output_tokens) == (128000, 16384)
    assert resolved.function_call_available
    assert resolved.response_format_available
    assert provider.default_settings(resolved) == ModelSettings()
    client = provider.client(resolved)
    assert isinstance(client, Model)
    assert play(client).content == "hi"
    assert provider.resolve(ModelRef.named("other")).selected_model == "other"
    with pytest.raises(ConfigError) as caught:
        provider.resolve(ModelRef.backend("openai", "demo-model"))
    assert caught.value.code == "model_backend_mismatch"
