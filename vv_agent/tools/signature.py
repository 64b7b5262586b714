"""A function's parameters as a tool sees them: a JSON Schema outside, typed Python values inside."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from vv_agent import _pointer
from vv_agent.errors import ConfigError, ToolError
from vv_agent.tools.arguments import close
from vv_agent.tools.base import Arguments, ToolContext


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of `function`; `schema` describes all but the one that takes the `ToolContext`. `summary` is the
    first paragraph of the docstring on one line."""

    function: Callable[..., Any]
    summary: str
    schema: dict[str, Any]
    _model: type[BaseModel]
    _parameters: tuple[inspect.Parameter, ...]
    _context: str | None

    def __call__(self, context: ToolContext, arguments: Arguments) -> Any:
        """Call the function with the arguments converted to their types.

        Values that pydantic refuses raise `ToolError` `invalid_tool_arguments` with what is wrong with each of them.
        """
        try:
            values = self._model.model_validate(arguments)
        except ValidationError as error:
            raise ToolError(_problems(error), "invalid_tool_arguments") from None
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for parameter in self._parameters:
            value: Any
            if parameter.name == self._context:
                value = context
            else:
                field = _field(self._parameters, parameter)
                if _own_default(parameter) and field not in values.model_fields_set:
                    continue  # the function's default itself, which may be a sentinel
                value = getattr(values, field)
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(value)
            else:
                named[parameter.name] = value
        return self.function(*positional, **named)


def read_signature(function: Callable[..., Any], namespace: Mapping[str, Any]) -> Signature:
    """Derive the schema from type hints and docstring; `namespace` resolves hints that are text.

    `ConfigError` `tool_signature_invalid` names the parameter no schema can be made for.
    """
    try:
        parameters = tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise _invalid(function, f"it has no signature ({error})") from error
    hints = _hints(function, namespace)
    context = next((item.name for item in parameters if _takes_context(hints.get(item.name))), None)
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.name == context:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise _invalid(function, f"parameter *{parameter.name} has no schema; name each parameter")
        if parameter.name not in hints:
            raise _invalid(function, f"parameter {parameter.name!r} has no type hint; give it one")
        fields[_field(parameters, parameter)] = _model_field(parameter, hints[parameter.name])
    try:
        model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
        schema = model.model_json_schema(schema_generator=_PlainSchema)
    except PydanticUserError as error:
        raise _invalid(function, f"a type hint has no JSON form: {error.message}") from error
    summary, descriptions = _documentation(function.__doc__)
    return Signature(function, summary, _described(schema, descriptions), model, parameters, context)


class _PlainSchema(GenerateJsonSchema):
    """Without the titles pydantic makes up, and silent about defaults that have no JSON form."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _documentation(docstring: str | None) -> tuple[str, dict[str, str]]:
    """The first paragraph, and the descriptions of the parameters (Google, Sphinx, NumPy and Epydoc forms)."""
    if not docstring:
        return "", {}
    from docstring_parser import ParseError, parse

    try:
        parsed = parse(docstring)
    except ParseError:  # a docstring of no known form still describes the tool
        return " ".join(inspect.cleandoc(docstring).split("\n\n")[0].split()), {}
    paragraphs = "\n".join(filter(None, (parsed.short_description, parsed.long_description))).split("\n\n")
    summary = (parsed.short_description if parsed.blank_after_short_description else paragraphs[0]) or ""
    return " ".join(summary.split()), {
        item.arg_name: " ".join((item.description or "").split()) for item in parsed.params
    }


def _described(schema: dict[str, Any], descriptions: Mapping[str, str]) -> dict[str, Any]:
    """The closed schema with the docstring's descriptions where the hints gave none."""
    schema = close(schema)
    for named in (schema, *schema.get("$defs", {}).values()):
        named.pop("title", None)
    schema.setdefault("properties", {})
    for name, text in descriptions.items():
        if name in schema["properties"] and text:
            schema["properties"][name].setdefault("description", text)
    return schema


def _hints(function: Callable[..., Any], namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The resolved hints of the parameters. `ToolContext` is known even where it was imported for type checking only;
    the hint of the return value is not needed and may be unresolvable."""
    written = {name: hint for name, hint in getattr(function, "__annotations__", {}).items() if name != "return"}
    home = {"ToolContext": ToolContext, **getattr(inspect.unwrap(function), "__globals__", {})}
    try:
        return get_type_hints(SimpleNamespace(__annotations__=written), home, dict(namespace), include_extras=True)
    except (NameError, SyntaxError, TypeError) as error:
        raise _invalid(function, f"a type hint cannot be resolved ({error}); import its names at run time") from error


def _takes_context(hint: Any) -> bool:
    return hint is ToolContext or (get_origin(hint) is not None and ToolContext in get_args(hint))


def _field(parameters: tuple[inspect.Parameter, ...], parameter: inspect.Parameter) -> str:
    """A field name that cannot collide with what pydantic reserves; the parameter's own name is the alias."""
    return f"p{parameters.index(parameter)}"


def _model_field(parameter: inspect.Parameter, hint: Any) -> tuple[Any, FieldInfo]:
    if isinstance(parameter.default, FieldInfo):
        return Annotated[hint, parameter.default], Field(alias=parameter.name)
    if parameter.default is parameter.empty:
        return hint, Field(alias=parameter.name)
    return hint, Field(default=parameter.default, alias=parameter.name)


def _own_default(parameter: inspect.Parameter) -> bool:
    positional = parameter.kind is parameter.POSITIONAL_ONLY
    return not positional and parameter.default is not parameter.empty and not isinstance(parameter.default, FieldInfo)


def _problems(error: ValidationError) -> str:
    found = [
        f"{_pointer.join([str(step) for step in item['loc']]) or '/'}: {item['msg']}"
        for item in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    return f"Invalid arguments: {'; '.join(found)}"


def _invalid(function: Callable[..., Any], problem: str) -> ConfigError:
    name = getattr(function, "__qualname__", repr(function))
    return ConfigError("tool_signature_invalid", f"{name} cannot become a tool: {problem}")
