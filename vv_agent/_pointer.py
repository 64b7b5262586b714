"""JSON Pointers (RFC 6901): the places inside a JSON value that hold credentials."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from vv_agent._json import utf16_order

_POINTER = re.compile(r"(?:/(?:[^~/]|~[01])*)+\Z")
_INDEX = re.compile(r"(?:0|[1-9][0-9]*)\Z")


def is_pointer(text: Any) -> bool:
    """Whether `text` is a pointer below the root; `~0` and `~1` are its only escapes."""
    return isinstance(text, str) and _POINTER.match(text) is not None


def is_ascending(pointers: Sequence[str]) -> bool:
    """Whether the list is strictly ascending by UTF-16 code units: sorted, without repeats."""
    keys = [utf16_order(pointer) for pointer in pointers]
    return all(left < right for left, right in pairwise(keys))


def split(pointer: str) -> list[str]:
    """The unescaped steps of a pointer."""
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def join(steps: Sequence[str]) -> str:
    """The pointer of the given unescaped steps."""
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def resolve(value: Any, pointer: str) -> Any:
    """The value at `pointer`; `LookupError` when there is none."""
    for step in split(pointer):
        value = value[_key(value, step)]
    return value


def replace(value: Any, pointer: str, new: Any) -> None:
    """Put `new` at the place `pointer` names, which must exist (`LookupError`). Changes `value`."""
    resolve(value, pointer)
    *parents, last = split(pointer)
    holder = resolve(value, join(parents))
    holder[_key(holder, last)] = new


def _key(holder: Any, step: str) -> Any:
    if isinstance(holder, dict):
        return step
    if isinstance(holder, list) and _INDEX.match(step):
        return int(step)
    raise LookupError(step)
