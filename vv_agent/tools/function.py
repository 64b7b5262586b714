"""Functions as tools: `FunctionTool`, and the decorator that makes one from a typed function."""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from typing import Any, Generic, ParamSpec, TypeVar, overload

from vv_agent._loop import run_async
from vv_agent.errors import ConfigError
from vv_agent.results import ToolExecutionResult
from vv_agent.tool_metadata import ToolIdempotency, ToolMetadata
from vv_agent.tools.arguments import check_schema, close
from vv_agent.tools.base import Arguments, IsEnabled, NeedsApproval, ToolContext, ToolExposure
from vv_agent.tools.border import bordered
from vv_agent.tools.signature import read_signature

P = ParamSpec("P")
R = TypeVar("R")

Handler = Callable[[ToolContext, Arguments], Any]
"""What carries a call out; it may return anything `to_result` understands, or an awaitable of that."""


@dataclass(eq=False, kw_only=True)
class FunctionTool:
    """A tool made of a schema and a handler. `parameters` is another word for `params_json_schema` in the constructor.

    `params_json_schema` is a JSON Schema 2020-12; its objects are closed unless they say otherwise. `metadata` is the
    host's own; only `tool_metadata` is a declaration. The model sees neither. Do not change a tool that is in use.
    """

    name: str
    handler: Handler
    description: str = ""
    params_json_schema: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    parameters: InitVar[dict[str, Any] | None] = None
    strict_json_schema: bool = True
    exposure: ToolExposure = ToolExposure.DIRECT
    timeout_seconds: float | None = None
    needs_approval: NeedsApproval = False
    is_enabled: IsEnabled = True
    metadata: dict[str, Any] = field(default_factory=dict)
    tool_metadata: ToolMetadata | None = None

    def __post_init__(self, parameters: dict[str, Any] | None) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ConfigError("tool_name_invalid", f"a tool needs a name that is not blank, not {self.name!r}")
        limit = self.timeout_seconds
        if limit is not None and not (0 < limit < math.inf):
            raise ConfigError("tool_timeout_invalid", f"tool {self.name}: timeout_seconds must be above 0, not {limit}")
        if self.tool_metadata is not None and not isinstance(self.tool_metadata, ToolMetadata):
            raise ConfigError("tool_metadata_invalid", f"tool {self.name}: tool_metadata must be a ToolMetadata")
        if not isinstance(self.needs_approval, bool) and not callable(self.needs_approval):
            wrong = f"needs_approval is True, False or a function, not {self.needs_approval!r}"
            raise ConfigError("tool_approval_invalid", f"tool {self.name}: {wrong}")
        try:
            self.exposure = ToolExposure(self.exposure)
        except ValueError:
            raise ConfigError("tool_exposure_invalid", f"tool {self.name}: no exposure {self.exposure!r}") from None
        self.params_json_schema = close(self.params_json_schema if parameters is None else parameters)
        self._check_schema()

    def _check_schema(self) -> None:
        if not isinstance(self.params_json_schema, dict) or self.params_json_schema.get("type") != "object":
            raise ConfigError("tool_schema_invalid", f"tool {self.name}: its parameters must be of type object")
        check_schema(self.params_json_schema)

    def to_openai_schema(self) -> dict[str, Any]:
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": copy.deepcopy(self.params_json_schema),
                "strict": self.strict_json_schema,
            },
        }

    def invoke(self, context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
        """Call the handler and make a result of what it returns or raises (`bordered` says what passes).

        An awaitable is waited for on an event loop elsewhere and cancelled with `context.cancellation`.
        """
        return bordered(self.name, context, lambda: self._handled(context, arguments))

    def _handled(self, context: ToolContext, arguments: Arguments) -> Any:
        value = self.handler(context, arguments)
        return run_async(value, cancellation=context.cancellation) if inspect.isawaitable(value) else value


@dataclass(eq=False, kw_only=True)
class DecoratedTool(FunctionTool, Generic[P, R]):
    """A `FunctionTool` that still is the function it decorates: called directly, it just calls it.

    It stands in the function's place, so its import path names the tool; it is pickled by that path. A
    `__vv_version__` of the function counts for the tool.
    """

    function: Callable[P, R]

    def __post_init__(self, parameters: dict[str, Any] | None) -> None:
        super().__post_init__(parameters)
        self.__wrapped__ = self.function
        copied = ("__module__", "__name__", "__qualname__", "__doc__", "__vv_version__", "__vv_ref__")
        self.__dict__.update({name: value for name in copied if (value := getattr(self.function, name, None))})

    def _check_schema(self) -> None:
        """Made from type hints, so it is right; checking would import jsonschema with every module of tools."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __reduce__(self) -> str:
        return self.function.__qualname__


@overload
def function_tool(function: Callable[P, R], /) -> DecoratedTool[P, R]: ...


@overload
def function_tool(
    function: None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    idempotency: ToolIdempotency | str | None = None,
    tool_metadata: ToolMetadata | None = None,
    timeout_seconds: float | None = None,
    needs_approval: NeedsApproval = False,
    exposure: ToolExposure | str = ToolExposure.DIRECT,
    strict_json_schema: bool = True,
    is_enabled: IsEnabled = True,
    metadata: Mapping[str, Any] | None = None,
) -> Callable[[Callable[P, R]], DecoratedTool[P, R]]: ...


def function_tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    idempotency: ToolIdempotency | str | None = None,
    tool_metadata: ToolMetadata | None = None,
    exposure: ToolExposure | str = ToolExposure.DIRECT,
    metadata: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Make a tool of a typed function, synchronous or not: `@function_tool` or `@function_tool(...)`.

    The schema comes from the type hints (`Annotated[str, Field(description=...)]` describes a parameter, as does the
    docstring), the description from the docstring's first paragraph. A parameter of type `ToolContext` gets the call's
    context and is not shown to the model. `idempotency="supported"` promises that a call that is repeated with the
    same `context.idempotency_key` has its effect once; without it a crash in the middle of a call needs a decision.

        @function_tool(idempotency="supported")
        def refund(order: str, cents: int, context: ToolContext) -> str:
            "Refund an order."
            return payments.refund(order, cents, key=context.idempotency_key)
    """

    def decorate(function: Callable[..., Any], namespace: Mapping[str, Any]) -> DecoratedTool[..., Any]:
        signature = read_signature(function, namespace)
        return DecoratedTool(
            name=function.__name__ if name is None else name,
            description=signature.summary if description is None else description,
            params_json_schema=signature.schema,
            handler=signature,
            exposure=ToolExposure(exposure),
            tool_metadata=_declared(tool_metadata, idempotency),
            metadata=dict(metadata or {}),
            function=function,
            **options,
        )

    if function is not None:
        return decorate(function, sys._getframe(1).f_locals)
    return lambda function: decorate(function, sys._getframe(1).f_locals)


def _declared(given: ToolMetadata | None, idempotency: ToolIdempotency | str | None) -> ToolMetadata | None:
    """The declaration with the short form of `idempotency` in it."""
    if idempotency is None:
        return given
    if given is None:
        return ToolMetadata(idempotency=idempotency)  # type: ignore[arg-type]  # its constructor reads the word
    if given.idempotency not in (ToolIdempotency.UNKNOWN, idempotency):
        raise ConfigError(
            "tool_metadata_invalid",
            f"idempotency={str(idempotency)!r} contradicts tool_metadata, which says {str(given.idempotency)!r}",
        )
    return replace(given, idempotency=idempotency)  # type: ignore[arg-type]
