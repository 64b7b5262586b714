"""The model protocol: a request goes in, parts stream out, a response is what they add up to.

`Model.stream` is the only thing a client implements. It is synchronous and always streams; the runtime calls it
in a helper thread, watches the run's signals meanwhile, and cancels through `ModelRequest.cancellation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from vv_agent.cancellation import CancellationToken
from vv_agent.messages import Message, ToolCall

if TYPE_CHECKING:
    from vv_agent.llm.settings import ModelSettings


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Visible text as it is generated. The counts are the provider's own, if it gives any."""

    text: str
    chars: int | None = None
    estimated_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Reasoning text; never shown as an answer."""

    text: str
    chars: int | None = None
    estimated_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of one tool call. Pieces of several calls may interleave: `index` tells them apart.

    `id` and `name` are set on the first piece of a call, `arguments` is the next piece of its JSON text.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    extra_content: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolCallPreview:
    """A tool call as the model writes it, from a client that brings the call itself at the end: shown, not kept."""

    id: str
    name: str
    first: bool
    index: int | None = None
    arguments_chars: int | None = None
    estimated_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class UsageReport:
    """The provider's own usage object, unchanged; `source` and `cache_status` are hints of spec/17."""

    raw: Mapping[str, Any] | None
    source: str | None = None
    cache_status: str | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """Why the model stopped: stop, tool_calls, length, content_filter, or the provider's own word."""

    reason: str


Part: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta | ToolCallPreview | UsageReport | Finish


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call of a model.

    `messages` is a read-only view of the run's history: a client must not keep or change it. `turn` is the number
    of assistant messages in it, so that a scripted model need not count them. `settings` are the effective ones.
    """

    model_id: str
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    settings: ModelSettings | None = None
    turn: int = 0
    idempotency_key: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    cancellation: CancellationToken = field(default_factory=CancellationToken)


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """What a finished stream added up to."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    finish_reason: str = "stop"
    usage: UsageReport = field(default_factory=lambda: UsageReport(None))


@runtime_checkable
class Model(Protocol):
    """A model that can be called.

    `stream` yields parts in order and ends after a `Finish`; a stream that ends without one is a network failure
    (`LlmError`, kind `network`). It raises `LlmError` (or `RetryLater`) and nothing else. When
    `request.cancellation` fires, it must stop within two seconds at any moment, raising `LlmError` kind `cancelled`.
    Several threads may call it at once.
    """

    def stream(self, request: ModelRequest) -> Iterator[Part]: ...


def collect(parts: Iterable[Part], on_part: Callable[[Part], object] | None = None) -> ModelResponse:
    """Add up a stream. `on_part` sees each part first (live text); its errors are the caller's."""
    text: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, _Call] = {}
    usage, finish = UsageReport(None), "stop"
    for part in parts:
        if on_part is not None:
            on_part(part)
        match part:
            case TextDelta(piece):
                text.append(piece)
            case ReasoningDelta(piece):
                reasoning.append(piece)
            case ToolCallDelta():
                calls.setdefault(part.index, _Call()).add(part)
            case UsageReport():
                usage = part
            case Finish(reason):
                finish = reason
    return ModelResponse(
        content="".join(text),
        tool_calls=tuple(call.build(position) for position, call in enumerate(calls.values(), 1)),
        reasoning="".join(reasoning) or None,
        finish_reason=finish,
        usage=usage,
    )


class _Call:
    """One tool call while its pieces arrive."""

    def __init__(self) -> None:
        self.id = self.name = ""
        self.arguments: list[str] = []
        self.extra: Mapping[str, Any] | None = None

    def add(self, piece: ToolCallDelta) -> None:
        self.id = self.id or piece.id or ""
        self.name = self.name or piece.name or ""
        self.extra = self.extra or piece.extra_content
        self.arguments.append(piece.arguments)

    def build(self, position: int) -> ToolCall:
        return ToolCall(self.id or f"call_{position}", self.name, "".join(self.arguments) or "{}", self.extra)
