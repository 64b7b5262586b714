"""The recipe of one cycle: the small message that advances a run anywhere."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vv_agent.checkpoint.record import Head
from vv_agent.errors import CheckpointError


class CycleRecipe(BaseModel):
    """Says which cycle of which run, and nothing of what is in it: no secret, no live object, no address of a store.

    It is a hint. Whoever gets it compares it with the store and claims; a stale or repeated one costs one refused
    claim.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    key: str = Field(min_length=1, max_length=512)
    cycle: int = Field(ge=1)
    definition: str = Field(pattern="^[0-9a-f]{64}$")
    store: str = Field(min_length=1, max_length=64)
    queue: str | None = None

    def to_json(self) -> str:
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str | bytes) -> CycleRecipe:
        """Read a message; `recipe_invalid` for anything that is not exactly a recipe."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "message"
            raise CheckpointError("recipe_invalid", f"{place}: {first['msg']}; the message is dropped") from None

    @classmethod
    def of(cls, head: Head, store_id: str) -> CycleRecipe:
        """The recipe of a record's open cycle."""
        return cls(key=head.key, cycle=head.cycle, definition=head.definition, store=store_id, queue=head.queue)
