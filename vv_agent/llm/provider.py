"""The provider behind a settings file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from vv_agent.errors import ConfigError, SettingsError
from vv_agent.llm.base import Model, ModelRequest, Part
from vv_agent.llm.client import StreamingClient
from vv_agent.llm.reference import ModelRef, ResolvedModelConfig
from vv_agent.llm.settings import ModelSettings
from vv_agent.llm.settings_file import LlmSettings, load_settings

Transport = Literal["http", "vv-llm"]

DEFAULT_TIMEOUT_SECONDS = 90.0
_SHORTEST_TIMEOUT_SECONDS = 1.0


class VvLlmClient(StreamingClient):
    """A model of a settings file that can be called: with `complete`, or as a `Model` with `stream`."""

    def __init__(self, model: Model, resolved: ResolvedModelConfig) -> None:
        self._model = model
        self.resolved = resolved

    def stream(self, request: ModelRequest) -> Iterator[Part]:
        return self._model.stream(request)

    def __repr__(self) -> str:
        return f"VvLlmClient({self.resolved.backend}/{self.resolved.selected_model})"


@dataclass(frozen=True, slots=True)
class VvLlmModelProvider:
    """The models of a settings file, over our own HTTP client or (`transport="vv-llm"`, an extra) that package's.

    `default_backend` serves references that name none; `default_model` is for agents that name no model.
    `timeout_seconds` is how long a model may be silent (at least 1 s).

    >>> provider = VvLlmModelProvider.from_settings_file("local_settings.json").with_default_backend("deepseek")
    """

    settings: LlmSettings
    transport: Transport = "http"
    default_backend: str | None = None
    default_model: str | None = None
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS

    def __post_init__(self) -> None:
        if self.transport not in get_args(Transport):
            known = ", ".join(get_args(Transport))
            raise ConfigError("model_transport_unknown", f"transport {self.transport!r} is not one of {known}")

    @classmethod
    def from_settings_file(
        cls, path: Path | str, transport: Transport = "http", *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> VvLlmModelProvider:
        """Read the file now; `SettingsError` if it is wrong."""
        return cls(load_settings(path), transport, timeout_seconds=timeout_seconds)

    def with_default_backend(self, backend: str) -> VvLlmModelProvider:
        """The same provider with a backend for references that name none; `SettingsError` if the file has it not."""
        if backend not in self.settings.backends:
            raise SettingsError(
                "backend_not_found",
                f"backend {backend!r} is not in the settings; there are: {', '.join(sorted(self.settings.backends))}",
            )
        return replace(self, default_backend=backend)

    def with_default_model(self, model: str) -> VvLlmModelProvider:
        """The same provider with a model (of the default backend) for agents that name none."""
        return replace(self, default_model=model)

    def resolve(self, model: ModelRef) -> ResolvedModelConfig:
        """`ConfigError` (`model_backend_required`) for a name without any backend, `SettingsError` for a miss."""
        return self.settings.resolve(self._backend(model), model.model)

    def reference(self, model: ModelRef) -> str:
        """How a definition names the model, so that a worker finds it in its own settings: `settings:backend/model`."""
        return f"settings:{self._backend(model)}/{model.model}"

    def client(self, resolved: ResolvedModelConfig) -> VvLlmClient:
        timeout = max(_SHORTEST_TIMEOUT_SECONDS, self.timeout_seconds)
        if self.transport == "vv-llm":
            from vv_agent.llm.vv_llm import VvLlmPackageModel

            model: Model = VvLlmPackageModel(resolved, self.settings, timeout_seconds=timeout)
        else:
            from vv_agent.llm.openai_compatible import OpenAICompatibleModel

            model = OpenAICompatibleModel(_served_over_http(resolved), timeout_seconds=timeout)
        return VvLlmClient(model, resolved)

    def default_settings(self, resolved: ResolvedModelConfig) -> ModelSettings:
        return ModelSettings()

    def default_model_ref(self) -> ModelRef | None:
        return None if self.default_model is None else ModelRef(self.default_model, self.default_backend)

    def _backend(self, model: ModelRef) -> str:
        backend = model.backend_name or self.default_backend
        if backend is None:
            raise ConfigError(
                "model_backend_required",
                f"model {model.model!r} names no backend; use ModelRef.backend(backend, {model.model!r}) or"
                " provider.with_default_backend(backend)",
            )
        return backend


_HTTP_TYPES = frozenset({"default", "openai"})


def _served_over_http(resolved: ResolvedModelConfig) -> ResolvedModelConfig:
    """Only the endpoints that speak chat completions; `ConfigError` if there are none."""
    options = tuple(option for option in resolved.endpoint_options if option.endpoint.endpoint_type in _HTTP_TYPES)
    if not options:
        types = ", ".join(sorted({option.endpoint.endpoint_type for option in resolved.endpoint_options}))
        raise ConfigError(
            "endpoint_type_unsupported",
            f"model {resolved.backend}/{resolved.selected_model} has only endpoints of type {types}, which the http"
            " transport does not speak; use transport='vv-llm'",
        )
    return replace(resolved, endpoint_options=options)
