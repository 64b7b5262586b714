"""The public calling form: `complete`, on our own clients and from foreign ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from vv_agent.errors import LlmError
from vv_agent.llm.abandon import run_abandonable
from vv_agent.llm.base import (
    Finish,
    Model,
    ModelRequest,
    ModelResponse,
    Part,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallPreview,
    collect,
)
from vv_agent.llm.payloads import part_of
from vv_agent.messages import Message

if TYPE_CHECKING:
    from vv_agent.llm.settings import ModelSettings

StreamCallback = Callable[[Part | Mapping[str, Any]], object]
"""Gets live parts; a foreign client may give plain payloads instead (`vv_agent.llm.payloads`)."""


@dataclass(frozen=True, slots=True)
class LlmRequest:
    """The arguments of one `complete` call as a value (what a hook before the call sees and may replace)."""

    model: str
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    model_settings: ModelSettings | None = None


@runtime_checkable
class LLMClient(Protocol):
    """A client with one blocking call. `stream_callback`, if given, gets each `Part` as it comes.

    It raises `LlmError`; any other exception is taken as a lost outcome. Use `as_model` to run an agent on it.
    """

    def complete(
        self,
        *,
        model: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        stream_callback: StreamCallback | None = None,
        model_settings: ModelSettings | None = None,
        request_metadata: Mapping[str, Any] | None = None,
    ) -> ModelResponse: ...


class StreamingClient:
    """Base of our clients: who implements `stream` gets `complete`."""

    def stream(self, request: ModelRequest) -> Iterator[Part]:
        raise NotImplementedError

    def complete(
        self,
        *,
        model: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        stream_callback: StreamCallback | None = None,
        model_settings: ModelSettings | None = None,
        request_metadata: Mapping[str, Any] | None = None,
    ) -> ModelResponse:
        """Call the model and wait for the whole answer; `LlmError` if it fails."""
        request = ModelRequest(
            model_id=model,
            messages=messages,
            tools=tools,
            settings=model_settings,
            turn=sum(message.role == "assistant" for message in messages),
            metadata=request_metadata or {},
        )
        return collect(self.stream(request), stream_callback)


def as_model(client: Model | LLMClient) -> Model:
    """The client itself if it streams, else a `Model` around its `complete`."""
    return client if isinstance(client, Model) else CompletingModel(client)


class CompletingModel:
    """A `Model` around an object that only has `complete`.

    The call runs in a thread of its own. A cancelled call is abandoned: it cannot be stopped, its outcome is lost.
    """

    def __init__(self, client: LLMClient) -> None:
        self._client = client

    def stream(self, request: ModelRequest) -> Iterator[Part]:
        where = f"client of {request.model_id!r}"
        seen: set[type] = set()
        try:
            for item in run_abandonable(partial(self._call, request), request.cancellation, where):
                match item:
                    case ModelResponse():
                        yield from _rest(item, seen)
                    case TextDelta() | ReasoningDelta():
                        seen.add(type(item))
                        yield item
                    case ToolCallPreview():
                        yield item
        except LlmError:
            raise
        except Exception as error:
            raise LlmError("network", f"{where} failed: {error!r}", retryable=True) from error

    def _call(self, request: ModelRequest, put: Callable[[Part | ModelResponse], None]) -> None:
        def show(item: Part | Mapping[str, Any]) -> None:
            part = part_of(item) if isinstance(item, Mapping) else item
            if part is not None:
                put(part)

        put(
            self._client.complete(
                model=request.model_id,
                messages=request.messages,
                tools=request.tools,
                stream_callback=show,
                model_settings=request.settings,
                request_metadata=request.metadata,
            )
        )


def parts_of(response: ModelResponse) -> Iterator[Part]:
    """The stream that adds up to `response`."""
    return _rest(response, set())


def _rest(response: ModelResponse, seen: set[type]) -> Iterator[Part]:
    """What of a response was not streamed yet. Streamed tool call pieces were only a preview, so all calls are here."""
    if response.reasoning and ReasoningDelta not in seen:
        yield ReasoningDelta(response.reasoning)
    if response.content and TextDelta not in seen:
        yield TextDelta(response.content)
    for index, call in enumerate(response.tool_calls):
        yield ToolCallDelta(index, call.id, call.name, call.arguments, call.extra_content)
    if response.usage.raw is not None:
        yield response.usage
    yield Finish(response.finish_reason)
