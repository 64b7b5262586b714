"""Canonical JSON (RFC 8785) with its SHA-256 digests, for everything whose identity is compared."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from vv_agent.errors import CheckpointError

MAX_WIRE = 2**53 - 1
"""Largest integer that every JSON reader keeps exactly (I-JSON, RFC 7493)."""

_INT64_LOW, _INT64_HIGH = -(2**63), 2**64 - 1


def canonical(value: Any, *, code: str = "checkpoint_definition_not_i_json") -> bytes:
    """RFC 8785 bytes of a JSON value.

    Integers outside 64 bits count as floating-point literals (JSON has one number type); integers inside
    64 bits but beyond `MAX_WIRE`, non-finite numbers and lone surrogates raise `CheckpointError(code)`.
    """
    import rfc8785

    try:
        return rfc8785.dumps(_number_domain(value, code))
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise CheckpointError(code, f"the value has no canonical JSON form: {error}") from error


def digest(value: Any, *, code: str = "checkpoint_definition_not_i_json") -> str:
    """Lowercase hex SHA-256 of `canonical(value)`."""
    return hashlib.sha256(canonical(value, code=code)).hexdigest()


def plain(value: Any, *, code: str, wide_as_float: bool = False, at: str = "") -> Any:
    """A deep copy of a JSON value with plain lists and dicts; `CheckpointError(code)` names the place of a fault.

    Refused: other types, keys that are not strings, lone surrogates, non-finite numbers, integers beyond
    `MAX_WIRE`. Integers outside 64 bits are refused too, unless `wide_as_float` reads them as JSON text means them.
    """
    if isinstance(value, Mapping):
        result = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise _no_json(code, at, f"the key {key!r} is not a string")
            place = f"{at}/{plain(key, code=code, at=at)}"
            result[str(key)] = plain(item, code=code, wide_as_float=wide_as_float, at=place)
        return result
    if isinstance(value, list | tuple):
        return [plain(item, code=code, wide_as_float=wide_as_float, at=f"{at}/{n}") for n, item in enumerate(value)]
    if value is None or isinstance(value, bool):
        return value
    try:
        if isinstance(value, str):
            value.encode()
            return str(value)
        if isinstance(value, int):
            if abs(value) <= MAX_WIRE:
                return int(value)
            if not wide_as_float or _INT64_LOW <= value <= _INT64_HIGH:
                raise _no_json(code, at, "the integer is beyond 2^53-1; send it as a string")
            value = float(value)
        if isinstance(value, float) and math.isfinite(value):
            return float(value)
    except (UnicodeEncodeError, OverflowError) as error:
        raise _no_json(code, at, str(error)) from error
    raise _no_json(code, at, f"{value if isinstance(value, float) else type(value).__name__} is not a JSON value")


def _no_json(code: str, at: str, problem: str) -> CheckpointError:
    return CheckpointError(code, f"{at or 'the value'}: {problem}")


def utf16_order(text: str) -> bytes:
    """Sort key of RFC 8785: UTF-16 code units, so that an emoji sorts before U+E000..U+FFFF."""
    return text.encode("utf-16-be", "surrogatepass")


def loads_strict(text: str | bytes, error: Callable[[str], Exception]) -> Any:
    """Parse JSON, refusing repeated keys and NaN or Infinity with `error(what was wrong)`."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            raise error("an object repeats a key")
        return result

    def constant(name: str) -> Any:
        raise error(f"{name} is not JSON")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise error(f"not JSON: {cause}") from cause


def _number_domain(value: Any, code: str) -> Any:
    if isinstance(value, dict):
        return {key: _number_domain(item, code) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_number_domain(item, code) for item in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not _INT64_LOW <= value <= _INT64_HIGH:
            return float(value)
        if abs(value) > MAX_WIRE:
            raise CheckpointError(code, f"integer {value} is beyond 2^53-1; send it as a string")
    elif isinstance(value, float) and not math.isfinite(value):
        raise CheckpointError(code, f"{value} is not a finite number")
    return value
