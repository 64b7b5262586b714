"""Options of one model call, as the closed wire form that definitions and requests share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Name = Annotated[str, Field(min_length=1, pattern=r"\S")]


class _Closed(BaseModel):
    """Strict (a bool is not an int), frozen, closed; errors do not repeat the input (headers may hold secrets)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True, hide_input_in_errors=True)


class RetrySettings(_Closed):
    """How often a failed call is sent again before its first visible part.

    `max_attempts` counts the first try; `backoff_seconds` is the wait before the second, doubled each time.
    """

    max_attempts: Annotated[int, Field(ge=1)] = 3
    backoff_seconds: Annotated[_Finite, Field(ge=0)] = 2.0


class ResponseFormat(_Closed):
    """`text`, `json_object`, or `json_schema` with its schema object."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, JsonValue] | None = None

    @model_validator(mode="after")
    def _schema_belongs_to_json_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema is given exactly when type is 'json_schema'")
        return self


class _FunctionName(_Closed):
    name: _Name


class ToolChoice(_Closed):
    """The choice of one named tool; the other choices are the words auto, none and required."""

    type: Literal["function"] = "function"
    function: _FunctionName

    @classmethod
    def named(cls, name: str) -> ToolChoice:
        return cls(function=_FunctionName(name=name))


_EXTENDING = ("extra_headers", "extra_body", "extra_args")


class ModelSettings(_Closed):
    """What a call of a model may be told; an unset field (None) is left to the provider and absent on the wire.

    `max_tokens` is the only way an output limit is ever sent. `timeout_seconds` bounds how long the provider may be
    silent. `extra_body` and `extra_args` are merged into the top level of the request body, `extra_headers` into its
    headers. A wrong value raises `pydantic.ValidationError` (a `ValueError`).
    """

    temperature: Annotated[_Finite, Field(ge=0)] | None = None
    top_p: Annotated[_Finite, Field(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**32 - 1)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, JsonValue] | None = None
    response_format: ResponseFormat | None = None
    timeout_seconds: Annotated[_Finite, Field(gt=0)] | None = None
    retry: RetrySettings | None = None
    extra_headers: dict[str, str] | None = None
    extra_body: dict[str, JsonValue] | None = None
    extra_args: dict[str, JsonValue] | None = None

    @field_validator("reasoning")
    @classmethod
    def _empty_reasoning_is_unset(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        return value or None

    @classmethod
    def from_wire(cls, wire: Any) -> ModelSettings:
        """Read the closed form; a `ValueError` names what is wrong."""
        return cls.model_validate(wire)

    def to_wire(self) -> dict[str, Any]:
        """The fields that are set, as JSON values."""
        return {name: _plain(value) for name, value in self if value is not None}

    def merged(self, over: ModelSettings | None) -> ModelSettings:
        """These settings with the set fields of `over` in their place; the extra maps are extended key by key."""
        if over is None:
            return self
        values = {name: value for name, value in self if value is not None}
        for name, value in over:
            if value is not None:
                values[name] = {**values.get(name, {}), **value} if name in _EXTENDING else value
        return ModelSettings(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, ResponseFormat):
        return {name: item for name, item in value if item is not None}
    return value.model_dump() if isinstance(value, BaseModel) else value
