"""What makes the front door forgiving: methods that can also be called on their class, and names that are mistyped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import update_wrapper, wraps
from types import MethodType
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, cast

from vv_agent.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class on_class_too(Generic[P, R]):  # noqa: N801 - a decorator
    """A method that, called on the class, works on an object made without arguments: `Runner.run_sync(agent, text)` is
    `Runner().run_sync(agent, text)`."""

    def __init__(self, function: Callable[Concatenate[Any, P], R]) -> None:
        self._function = function
        update_wrapper(self, function)  # type: ignore[arg-type]  # for help() and documentation tools

    def __get__(self, instance: object | None, owner: Callable[[], object]) -> Callable[P, R]:
        return cast("Callable[P, R]", MethodType(self._function, owner() if instance is None else instance))


def only_known(code: str) -> Callable[[type[T]], type[T]]:
    """A dataclass whose constructor answers a name it has not with a `ConfigError` that says which was meant."""

    def decorate(kind: type[T]) -> type[T]:
        init = kind.__init__

        @wraps(init)
        def checked(self: T, *args: Any, **given: Any) -> None:
            known = {item.name for item in fields(kind)}  # type: ignore[arg-type]
            for name in given.keys() - known:
                near = get_close_matches(name, known, 1)
                meant = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(sorted(known))}"
                raise ConfigError(code, f"{kind.__name__} has no {name!r}{meant}")
            init(self, *args, **given)

        kind.__init__ = checked  # type: ignore[assignment, method-assign]
        return kind

    return decorate


class Kind(NamedTuple):
    """What an option must be, in words, and whether a value is that."""

    what: str
    fits: Callable[[Any], bool]


def having(what: str, *names: str) -> Kind:
    """An object (no class) that has these."""
    return Kind(what, lambda value: not isinstance(value, type) and all(hasattr(value, name) for name in names))


def either(*kinds: Kind) -> Kind:
    return Kind(" or ".join(kind.what for kind in kinds), lambda value: any(kind.fits(value) for kind in kinds))


def _texts(value: Any) -> bool:
    return isinstance(value, list | tuple | set | frozenset) and all(isinstance(one, str) for one in value)


TEXT = Kind("a text", lambda value: isinstance(value, str))
TEXTS = Kind("a list of texts", _texts)
LIST = Kind("a list", lambda value: isinstance(value, list | tuple))
MAPPING = Kind("a mapping", lambda value: isinstance(value, Mapping))
FUNCTION = Kind("a function", callable)
MODEL = either(TEXT, having("a ModelRef", "model"))
MODEL_SETTINGS = having("ModelSettings(...)", "merged", "to_wire")
MODEL_PROVIDER = either(having("a ModelProvider such as VvLlmModelProvider", "resolve", "client"), TEXT)
TOOL_POLICY = having("ToolPolicy(...)", "denies")


def check_kinds(code: str, owner: str, values: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    """`ConfigError` for the first value that is not None and not what it must be."""
    for name, kind in kinds.items():
        value = values.get(name)
        if value is not None and not kind.fits(value):
            raise ConfigError(code, f"{name} of {owner} must be {kind.what}, not {value!r}")
