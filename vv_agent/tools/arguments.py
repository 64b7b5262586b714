"""The arguments of a call: from the text the model wrote to an object that matches the tool's schema."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from vv_agent import _pointer
from vv_agent.errors import ConfigError, ToolError
from vv_agent.results import ToolExecutionResult
from vv_agent.tools.output import error_result

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

MISMATCH = "Tool arguments do not match the declared schema"


@dataclass(frozen=True, slots=True, order=True)
class Issue:
    """One thing that is wrong: where in the arguments, where in the schema (JSON Pointers), and which keyword."""

    instance_path: str
    schema_path: str
    rule: str


MAX_DEPTH = 100
"""Levels of arguments: what is deeper could not be stored, or read again."""


def _depth(value: Any) -> int:
    """How many levels of objects and arrays a value has; more than the limit is not counted."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            break
        level = [below for one in level for below in (one.values() if isinstance(one, dict) else one)]
    return depth


def parse_arguments(raw: Any) -> dict[str, Any]:
    """The arguments as an object: JSON text or an object as given; null and blank text mean `{}`.

    `ToolError` `invalid_arguments_json` for text that is not JSON (also NaN, numbers without a finite value and
    unpaired surrogates: they could not be stored), `invalid_arguments_payload` for JSON that is no object,
    `invalid_arguments_type` for anything that is neither. Integers beyond 64 bits become floating-point numbers.
    """
    if raw is None:
        return {}
    if isinstance(raw, dict):
        return raw
    if not isinstance(raw, str):
        raise ToolError(
            f"Tool arguments must be a JSON object or its text, not {type(raw).__name__}", "invalid_arguments_type"
        )
    try:
        value = _DECODER.decode(raw) if raw.strip() else {}
        if "\\u" in raw:
            json.dumps(value, ensure_ascii=False).encode()
        if _depth(value) > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    except (ValueError, RecursionError) as error:
        raise ToolError(f"Tool arguments are not valid JSON: {error}", "invalid_arguments_json") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ToolError("Tool arguments must be a JSON object", "invalid_arguments_payload")
    return value


def validate(arguments: dict[str, Any], schema: dict[str, Any]) -> tuple[Issue, ...]:
    """What of the arguments breaks the schema (JSON Schema 2020-12), each issue once, in order; empty when they match.

    A schema that is itself wrong or points outside itself raises `ConfigError` `tool_schema_invalid`.
    """
    from referencing.exceptions import Unresolvable

    try:
        return tuple(
            sorted(
                {
                    Issue(
                        _pointer.join([str(step) for step in error.absolute_path]),
                        _pointer.join([str(step) for step in error.absolute_schema_path]),
                        str(error.validator),
                    )
                    for error in _validator(json.dumps(schema, sort_keys=True)).iter_errors(arguments)
                }
            )
        )
    except Unresolvable as error:
        raise ConfigError("tool_schema_invalid", f"the schema refers to something it does not hold: {error}") from error


def check_schema(schema: dict[str, Any]) -> None:
    """`ConfigError` `tool_schema_invalid` unless this is a JSON Schema 2020-12 of an object."""
    try:
        _validator(json.dumps(schema, sort_keys=True))
    except (TypeError, ValueError) as error:
        raise ConfigError("tool_schema_invalid", f"the parameters of a tool must be JSON: {error}") from error


def mismatch(tool_call_id: str, issues: tuple[Issue, ...]) -> ToolExecutionResult:
    """The result of a call whose arguments were refused; `issue_count` counts each issue once."""
    code = "invalid_tool_arguments"
    metadata = {"error_code": code, "issue_count": len(issues)}
    details = {"issues": [asdict(issue) for issue in issues]}
    return error_result(tool_call_id, MISMATCH, code, details, metadata=metadata)


def close(schema: Any) -> Any:
    """A copy in which every object schema refuses unknown properties unless it says otherwise."""
    if isinstance(schema, list):
        return [close(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed_member(key, value) for key, value in schema.items()}
    if closed.get("type") == "object" or "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_AS_THEY_ARE = frozenset({"default", "const", "enum", "examples", "if", "not"})  # data and conditions


def _closed_member(key: str, value: Any) -> Any:
    if key in _AS_THEY_ARE:
        return value
    if key in _NAMED_SCHEMAS and isinstance(value, dict):
        return {name: close(schema) for name, schema in value.items()}
    return close(value)


@lru_cache(maxsize=512)
def _validator(schema_text: str) -> Validator:
    """The compiled schema. Keyed by content: a definition that is loaded again has the same schemas in new objects."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from referencing import Registry

    schema = json.loads(schema_text)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ConfigError(
            "tool_schema_invalid", f"the schema is not JSON Schema 2020-12 at {error.json_path}: {error.message}"
        ) from error
    return Draft202012Validator(schema, registry=Registry())  # an empty registry: nothing is fetched


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def _integer(text: str) -> int | float:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**64:
        return _finite(text)
    return int(text)


_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite, parse_int=_integer)
