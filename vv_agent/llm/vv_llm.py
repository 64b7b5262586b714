"""The vv-llm package as a transport (extra `vv-llm`), behind guards against what it hides.

Measured with 0.8.4: every streamed tool call gets index 0, the finish reason is dropped, a cut stream looks like
success, a missing `max_tokens` makes it download a tokenizer, usage is not asked for, its SDK retries by itself, and
the caller's list of messages may be changed. What cannot be guarded: an answer cut in the middle of its text is
taken for a whole one. The default transport has none of this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from vv_agent.errors import ConfigError, LlmError, RetryLater
from vv_agent.llm.abandon import run_abandonable
from vv_agent.llm.base import Finish, ModelRequest, Part, TextDelta, ToolCallDelta, UsageReport
from vv_agent.llm.chunks import ChunkReader
from vv_agent.llm.client import StreamingClient
from vv_agent.llm.failures import SHORT_WAIT_SECONDS
from vv_agent.llm.projection import extra_headers, provider_messages, silence_limit
from vv_agent.llm.reference import EndpointOption, ResolvedModelConfig
from vv_agent.llm.retry import Waiting, stream_with_retries
from vv_agent.llm.settings import ModelSettings, RetrySettings
from vv_agent.llm.settings_file import LlmSettings

_MAX_TOKENS_OF_LAST_RESORT = 8192
_KINDS = {
    "authentication": "authentication",
    "rate_limited": "rate_limited",
    "network": "network",
    "timeout": "timeout",
    "invalid_request": "invalid_request",
    "context_length": "context_length",
    "content_policy": "invalid_request",
    "model_not_found": "invalid_request",
    "provider_internal": "provider_internal",
    "serialization": "protocol",
    "configuration": "invalid_request",
}
_REFUSALS = frozenset({"authentication", "rate_limited", "invalid_request", "context_length"})


class Package(Protocol):
    """What is used of the package; a test brings its own."""

    def open(self, backend: str, model: str, endpoint_id: str, settings: dict[str, Any]) -> Any:
        """A chat client for one call (the package's clients keep per-call state)."""
        ...

    def classify(self, error: Exception) -> Any:
        """The package's own view of an error: `kind`, `status_code`, `retry_after`."""
        ...


class _RealPackage:
    def open(self, backend: str, model: str, endpoint_id: str, settings: dict[str, Any]) -> Any:
        from vv_llm.chat_clients import create_chat_client
        from vv_llm.settings import Settings

        create: Any = create_chat_client  # its overloads take enum members only; the names work as well
        client = create(backend, model=model, endpoint_id=endpoint_id, settings=Settings.load_from_dict(settings))
        if hasattr(client.raw_client, "with_options"):  # one retry layer only; there is no public setting for it
            client.__dict__["raw_client"] = client.raw_client.with_options(max_retries=0)
        return client

    def classify(self, error: Exception) -> Any:
        from vv_llm.types.exception import classify_exception

        return classify_exception(error)


def _real_package() -> Package:
    import importlib.util

    if importlib.util.find_spec("vv_llm") is None:
        raise ConfigError("extra_missing", "transport 'vv-llm' needs the package: pip install 'vv-agent[vv-llm]'")
    return _RealPackage()


class VvLlmPackageModel(StreamingClient):
    """A `Model` over the vv-llm package. `ConfigError` (code `extra_missing`) if it is not installed.

    A request without `max_tokens` is sent with the model's declared output limit (else 8192), because the package
    cannot do without. Tool calls are asked for one at a time. A cancelled call is abandoned; `timeout_seconds` ends it.
    """

    def __init__(
        self,
        resolved: ResolvedModelConfig,
        settings: LlmSettings,
        *,
        timeout_seconds: float,
        package: Package | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        self._resolved = resolved
        self._settings = settings
        self._timeout = timeout_seconds
        self._package = package or _real_package()
        self._waiting = waiting or Waiting()

    def stream(self, request: ModelRequest) -> Iterator[Part]:
        if request.tools and not self._resolved.function_call_available:
            raise LlmError(
                "invalid_request",
                f"model {self._resolved.selected_model!r} is not declared to call tools: set function_call_available"
                " to true in the settings file, or use the default transport",
                definite=True,
            )
        settings = request.settings or ModelSettings()
        return stream_with_retries(
            partial(self._ask, request),
            self._resolved.endpoint_options,
            settings.retry or RetrySettings(),
            request.cancellation,
            self._waiting,
        )

    def _ask(self, request: ModelRequest, option: EndpointOption) -> Iterator[Part]:
        where = f"endpoint {option.endpoint.endpoint_id!r}, model {option.model_id!r}"
        check = _Whole(where)
        try:
            yield from check.parts(
                run_abandonable(partial(self._produce, request, option, where), request.cancellation, where)
            )
            return
        except LlmError:
            raise
        except Exception as error:
            problem = self._problem(error, option, where)
        raise problem  # out here, so that the package's error (it holds the request) is not its context

    def _produce(self, request: ModelRequest, option: EndpointOption, where: str, put: Callable[[Part], None]) -> None:
        resolved = self._resolved
        client = self._package.open(
            resolved.backend, resolved.selected_model, option.endpoint.endpoint_id, self._settings.reveal()
        )
        reader = ChunkReader(where, request.turn)
        for message in client.create_completion(**self._arguments(request)):
            chunk = message.model_dump(exclude_none=True)
            for piece in chunk.get("tool_calls", ()):
                piece.pop("index", None)  # always 0: a new id starts a new call instead
            for part in reader.feed({"choices": [{"delta": chunk, "usage": chunk.get("usage")}]}):
                put(part)
        reader.finish = "stop"
        for part in reader.end():
            put(part)

    def _arguments(self, request: ModelRequest) -> dict[str, Any]:
        settings = request.settings or ModelSettings()
        wire = settings.to_wire()
        body = {**wire.get("extra_body", {}), **({"reasoning": wire["reasoning"]} if "reasoning" in wire else {})}
        arguments: dict[str, Any] = {
            "messages": provider_messages(request.messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": settings.max_tokens or self._resolved.max_output_tokens or _MAX_TOKENS_OF_LAST_RESORT,
            "skip_cutoff": True,
            "timeout": silence_limit(request, self._timeout),
            **{name: wire[name] for name in ("temperature", "top_p", "response_format") if name in wire},
        }
        if request.tools:
            arguments["tools"] = [dict(tool) for tool in request.tools]
            arguments["parallel_tool_calls"] = False
            if "tool_choice" in wire:
                arguments["tool_choice"] = wire["tool_choice"]
        if headers := extra_headers(request):
            arguments["extra_headers"] = dict(headers)
        if body:
            arguments["extra_body"] = body
        return {**arguments, **wire.get("extra_args", {})}

    def _problem(self, error: Exception, option: EndpointOption, where: str) -> LlmError:
        seen = self._package.classify(error)
        kind = _KINDS.get(getattr(seen.kind, "value", seen.kind), "provider_internal")
        if isinstance(error, json.JSONDecodeError | AttributeError):  # a gateway's page or half a reply
            kind = "protocol"
        text = f"{where}: {_scrubbed(str(error), option)}"
        status: int | None = seen.status_code
        if seen.retry_after is not None and seen.retry_after > SHORT_WAIT_SECONDS:
            return RetryLater(text, float(seen.retry_after))
        return LlmError(
            kind,
            text,
            retryable=kind not in _REFUSALS or kind == "rate_limited",
            definite=kind in _REFUSALS and status is not None,
            retry_after=seen.retry_after,
            status=status,
        )


@dataclass
class _Whole:
    """Looks for signs that an answer was cut short, since the finish reason is not there to say so."""

    where: str

    def parts(self, stream: Iterator[Part]) -> Iterator[Part]:
        calls: dict[int, str] = {}
        empty = True
        for part in stream:
            match part:
                case ToolCallDelta(index=index, arguments=arguments):
                    calls[index] = calls.get(index, "") + arguments
                case TextDelta():
                    empty = False
                case UsageReport(raw=raw):
                    empty = empty and not _tokens_out(raw)
                case Finish():
                    self._judge(calls, empty)
                    yield Finish("tool_calls" if calls else "stop")
                    return
            yield part

    def _judge(self, calls: Mapping[int, str], empty: bool) -> None:
        for arguments in calls.values():
            try:
                json.loads(arguments or "{}")
            except ValueError:
                raise LlmError(
                    "network", f"{self.where}: the arguments of a tool call were cut short", retryable=True
                ) from None
        if empty and not calls:
            raise LlmError("network", f"{self.where}: the stream ended without an answer", retryable=True)


def _tokens_out(usage: Mapping[str, Any] | None) -> bool:
    return bool(usage and usage.get("completion_tokens"))


def _scrubbed(text: str, option: EndpointOption) -> str:
    key = option.endpoint.api_key.reveal()
    return " ".join((text.replace(key, "**********") if len(key) >= 8 else text).split())[:500]
