"""Methods that can also be called on their class."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


class on_class_too(Generic[P, R]):  # noqa: N801 - a decorator
    """A method that, called on the class, works on an object made without arguments: `Runner.run_sync(agent, text)` is
    `Runner().run_sync(agent, text)`."""

    def __init__(self, function: Callable[Concatenate[Any, P], R]) -> None:
        self._function = function
        update_wrapper(self, function)  # type: ignore[arg-type]  # for help() and documentation tools

    def __get__(self, instance: object | None, owner: Callable[[], object]) -> Callable[P, R]:
        return cast("Callable[P, R]", MethodType(self._function, owner() if instance is None else instance))
