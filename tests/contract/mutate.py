"""Changes of a fixture object, in the words of the fixtures: remove, replace, add or append by JSON Pointer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from vv_agent import _pointer


def mutated(base: Any, mutation: Mapping[str, Any]) -> Any:
    """A copy of `base` with one mutation carried out."""
    result = copy.deepcopy(base)
    match dict(mutation):
        case {"remove_json_pointer": pointer}:
            holder, last = _place(result, pointer)
            del holder[last]
        case {"replace_json_pointer": pointer, "value": value}:
            _pointer.replace(result, pointer, value)
        case {"add_json_pointer": pointer, "value": value}:
            holder, last = _place(result, pointer)
            holder[last] = value
        case {"append_json_pointer": pointer, "value": value}:
            _pointer.resolve(result, pointer).append(value)
        case {"remove": name}:
            del result[name]
        case {"replace": fields} | {"add": fields}:
            result.update(fields)
        case _:
            raise ValueError(f"unknown mutation {mutation}")
    return result


def _place(value: Any, pointer: str) -> tuple[Any, str]:
    *parents, last = _pointer.split(pointer)
    return _pointer.resolve(value, _pointer.join(parents)), last
