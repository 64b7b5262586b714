"""What makes the front door forgiving: methods that can also be called on their class, and names that are mistyped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from functools import update_wrapper, wraps
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

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
