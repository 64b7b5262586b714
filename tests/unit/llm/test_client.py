"""Foreign clients that only have `complete` are models too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.llm.calling import request
from vv_agent.cancellation import CancellationToken
from vv_agent.errors import LlmError
from vv_agent.llm import LLMClient, LlmRequest, ModelSettings, ScriptedModel, as_model
from vv_agent.llm.base import (
    Finish,
    Model,
    ModelResponse,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    UsageReport,
    collect,
)
from vv_agent.messages import ToolCall


class Client:
    def __init__(self, act: Callable[[Callable[[Any], object]], ModelResponse]) -> None:
        self._act = act
        self.said: dict[str, Any] = {}

    def complete(self, *, stream_callback: Any = None, **said: Any) -> ModelResponse:
        self.said = said
        return self._act(stream_callback)


def test_a_streaming_client_is_its_own_model() -> None:
    model = ScriptedModel([])
    assert as_model(model) is model


def test_what_was_streamed_is_not_repeated_by_the_response() -> None:
    response = ModelResponse(
        "Hello", (ToolCall("a", "add", "{}"),), "why", "tool_calls", UsageReport({"prompt_tokens": 1})
    )

    def act(show: Callable[[Any], object]) -> ModelResponse:
        show(TextDelta("Hel"))
        show(TextDelta("lo"))
        show(ToolCallDelta(0, "a", "preview"))
        return response

    client = Client(act)
    assert isinstance(client, LLMClient)
    model = as_model(client)
    assert isinstance(model, Model)
    settings = ModelSettings(temperature=0)
    parts = list(model.stream(request(settings=settings, metadata={"k": 1})))
    assert parts[:3] == [TextDelta("Hel"), TextDelta("lo"), ReasoningDelta("why")]
    assert parts[-1] == Finish("tool_calls")
    assert collect(parts) == response
    assert client.said["model"] == "m"
    assert client.said["model_settings"] is settings
    assert client.said["request_metadata"] == {"k": 1}


def test_its_own_errors_pass_and_others_are_a_lost_outcome() -> None:
    def refuse(_: Any) -> ModelResponse:
        raise LlmError("authentication", "no", definite=True)

    def crash(_: Any) -> ModelResponse:
        raise RuntimeError("boom")

    with pytest.raises(LlmError) as refused:
        list(as_model(Client(refuse)).stream(request()))
    assert refused.value.kind == "authentication"
    with pytest.raises(LlmError, match="boom") as crashed:
        list(as_model(Client(crash)).stream(request()))
    assert (crashed.value.kind, crashed.value.definite) == ("network", False)


def test_a_cancelled_call_is_left_behind_and_ends_at_its_next_part() -> None:
    begun, release, ended = threading.Event(), threading.Event(), threading.Event()

    def stuck(show: Callable[[Any], object]) -> ModelResponse:
        begun.set()
        release.wait(30)
        try:
            show(TextDelta("too late"))
        finally:
            ended.set()
        return ModelResponse("never")

    token = CancellationToken()
    threading.Thread(target=lambda: (begun.wait(10), token.cancel("enough")), daemon=True).start()
    with pytest.raises(LlmError) as caught:
        list(as_model(Client(stuck)).stream(request(cancellation=token)))
    assert (caught.value.kind, caught.value.definite) == ("cancelled", False)
    release.set()
    assert ended.wait(10)
    with pytest.raises(LlmError, match="enough") as before:
        list(as_model(Client(stuck)).stream(request(cancellation=token)))
    assert before.value.definite


def test_the_request_value_has_the_fields_of_the_contract() -> None:
    asked = LlmRequest("m", [])
    assert (asked.model, asked.messages, asked.tools, asked.metadata, asked.model_settings) == ("m", [], (), {}, None)
