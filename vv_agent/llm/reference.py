"""Which model: a reference that is stored, and what a provider resolves it to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

if TYPE_CHECKING:
    from vv_agent.llm.base import Model
    from vv_agent.llm.settings import ModelSettings


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model by its name, in a named backend or in the provider's default one."""

    model: str
    backend_name: str | None = None

    def __post_init__(self) -> None:
        for what, value in (("model", self.model), ("backend", self.backend_name)):
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise ValueError(f"model reference: {what} must be a non-blank string")

    @classmethod
    def named(cls, model: str) -> ModelRef:
        """The model of that name in the provider's default backend."""
        return cls(model)

    @classmethod
    def backend(cls, backend: str, model: str) -> ModelRef:
        """The model of that name in exactly this backend."""
        return cls(model, backend)

    @classmethod
    def parse(cls, text: str) -> ModelRef:
        """`backend/model` (split at the first slash) or `model`."""
        before, slash, after = text.partition("/")
        return cls(after, before) if slash else cls(text)

    def to_wire(self) -> dict[str, str]:
        if self.backend_name is None:
            return {"type": "named", "model": self.model}
        return {"type": "backend_model", "backend": self.backend_name, "model": self.model}

    @classmethod
    def from_wire(cls, wire: Any) -> ModelRef:
        """Read the closed form; `ValueError` names what is wrong."""
        match wire:
            case {"type": "named", "model": str(model), **rest} if not rest:
                return cls(model)
            case {"type": "backend_model", "backend": str(backend), "model": str(model), **rest} if not rest:
                return cls(model, backend)
        raise ValueError(
            "a model reference is {type: named, model} or {type: backend_model, backend, model} and nothing else"
        )

    def __str__(self) -> str:
        return f"{self.backend_name}/{self.model}" if self.backend_name else self.model


class Secret:
    """A text that shows itself only to `reveal()`: not in repr, str or format, and it cannot be pickled."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __repr__(self) -> str:
        return "'**********'" if self._text else "''"

    __str__ = __repr__

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled; let the other process read its own settings")


@dataclass(frozen=True, slots=True)
class EndpointTarget:
    """Where a provider listens. `api_key` is hidden in every repr; `api_key.reveal()` gives its text."""

    endpoint_id: str
    api_key: Secret
    api_base: str
    endpoint_type: str = "default"

    def __post_init__(self) -> None:
        if isinstance(self.api_key, str):  # whoever builds one by hand may forget, and the key would show
            object.__setattr__(self, "api_key", Secret(self.api_key))


@dataclass(frozen=True, slots=True)
class EndpointOption:
    """One endpoint of a model, with the name the model has there."""

    endpoint: EndpointTarget
    model_id: str


@dataclass(frozen=True, slots=True)
class ResolvedModelConfig:
    """A model a provider knows. Limits are capabilities: they are never sent as `max_tokens`.

    `endpoint_options` are tried in order; the first is the primary one, and `model_id` is the model's name there.
    """

    backend: str
    requested_model: str
    selected_model: str
    model_id: str
    context_length: int | None = None
    max_output_tokens: int | None = None
    function_call_available: bool = False
    response_format_available: bool = False
    native_multimodal: bool = False
    endpoint_options: tuple[EndpointOption, ...] = ()

    def to_public(self) -> dict[str, Any]:
        """What a result shows: names only, no keys, no addresses."""
        first = self.endpoint_options[0].endpoint.endpoint_id if self.endpoint_options else None
        return {
            "backend": self.backend,
            "requested_model": self.requested_model,
            "selected_model": self.selected_model,
            "model_id": self.model_id,
            "endpoint": first,
        }

    def capabilities(self) -> Mapping[str, Any]:
        """The entries a model adds to task metadata; unknown limits are left out."""
        limits = {"model_context_window": self.context_length, "model_max_output_tokens": self.max_output_tokens}
        return {
            **{name: value for name, value in limits.items() if value},
            "function_call_available": self.function_call_available,
            "response_format_available": self.response_format_available,
            "native_multimodal": self.native_multimodal,
        }


@runtime_checkable
class ModelProvider(Protocol):
    """Turns references into models. Several threads may use one provider at once."""

    def resolve(self, model: ModelRef) -> ResolvedModelConfig:
        """Look the model up exactly; a miss is a `ConfigError`, never a substitute."""
        ...

    def client(self, resolved: ResolvedModelConfig) -> Model:
        """A model that can be called. Cheap: connections belong to the process, not to the client."""
        ...

    def default_settings(self, resolved: ResolvedModelConfig) -> ModelSettings:
        """Settings below the agent's and the run's."""
        ...

    def default_model_ref(self) -> ModelRef | None:
        """The model of an agent that names none."""
        ...
