"""What a run shows about an operation whose outcome is unknown."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vv_agent._json import MAX_WIRE


class ResumeObservation(BaseModel):
    """An operation that was started and never reported done (spec 11, section 6); no wire field is ever absent."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    operation_id: Annotated[str, Field(min_length=1)]
    operation_kind: Literal["model", "tool"]
    cycle_index: Annotated[int, Field(ge=1, le=MAX_WIRE)]
    state: Literal["ambiguous"] = "ambiguous"
    risk: str
    idempotency_support: Literal["supported", "unsupported", "unknown"] | None = None
    """What the tool declared; None for models."""

    def to_wire(self) -> dict[str, Any]:
        return self.model_dump(mode="json")
