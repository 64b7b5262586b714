"""The base of closed wire objects, with the scalars they share."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from vv_agent._json import MAX_WIRE


def _non_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


Text = Annotated[str, AfterValidator(_non_blank)]
"""A name or an id: any string that is not blank."""

Count = Annotated[int, Field(ge=0, le=MAX_WIRE)]
"""An integer 0..2^53-1; a bool or a float is refused."""

Positive = Annotated[int, Field(ge=1, le=MAX_WIRE)]
"""An integer 1..2^53-1."""

LAX: Any = Field(strict=False)
"""Marks an enum (read from its string) or a tuple (read from a list) inside a strict object."""


class Wire(BaseModel):
    """A frozen object with a fixed set of JSON fields: unknown fields and converted types are refused.

    Errors of reading are pydantic's `ValidationError`, a `ValueError`. The validators are built at first use:
    with them built at import, the modules of wire types would cost five times as much to load.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)

    def to_wire(self) -> dict[str, Any]:
        """The JSON object: lists, strings and numbers only."""
        return self.model_dump(mode="json")

    @classmethod
    def from_wire(cls, wire: Any) -> Self:
        """Read the JSON object; `ValueError` names every field that is wrong."""
        if not isinstance(wire, dict):
            raise ValueError(f"{cls.__name__} must be an object, not {type(wire).__name__}")
        return cls.model_validate(wire)
