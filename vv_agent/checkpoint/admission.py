"""What a start under a checkpoint key does: create the run, go on with it, or give its result again."""

from __future__ import annotations

from enum import StrEnum

from vv_agent.checkpoint.config import ResumePolicy
from vv_agent.errors import CheckpointError


class Admission(StrEnum):
    """The three ways in. A refusal is an error and changes nothing."""

    CREATE = "create"
    RECOVER = "recover"
    REPLAY = "replay"


def admit(
    policy: ResumePolicy,
    key: str,
    *,
    present: bool,
    terminal: bool = False,
    same_definition: bool = True,
    live_lease: bool = False,
) -> Admission:
    """The table of spec 10, section 3.

    A key that is present is refused under `new` (`checkpoint_already_exists`), one that is absent under
    `require_existing` (`checkpoint_not_found`). A finished run is replayed whatever its definition was. A running one
    must have the same definition (`checkpoint_definition_mismatch`) and no living claim (`checkpoint_claim_active`).
    Creating may lose a race; then ask again with `present`.
    """
    if not present:
        if policy is ResumePolicy.REQUIRE_EXISTING:
            raise CheckpointError(
                "checkpoint_not_found",
                f"there is no run {key!r} in this store; check the key and the store, or use resume_if_present",
            )
        return Admission.CREATE
    if policy is ResumePolicy.NEW:
        raise CheckpointError(
            "checkpoint_already_exists",
            f"run {key!r} exists already; use resume_policy='resume_if_present' to go on with it, or another key",
        )
    if terminal:
        return Admission.REPLAY
    if not same_definition:
        raise CheckpointError(
            "checkpoint_definition_mismatch",
            f"run {key!r} was started with another definition (agent, input, model, tools or policies); "
            "start it with the same one, or use another key",
        )
    if live_lease:
        raise CheckpointError(
            "checkpoint_claim_active", f"run {key!r} is being advanced by another worker right now; attach or try later"
        )
    return Admission.RECOVER


def next_resume_attempt(attempt: int, admission: Admission) -> int:
    """1 at creation, one more for each recovery claim; a replay leaves it."""
    match admission:
        case Admission.CREATE:
            return 1
        case Admission.RECOVER:
            return attempt + 1
        case Admission.REPLAY:
            return attempt
