"""A run's session: the history a run begins with, and the one append at the end of each segment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from vv_agent.checkpoint.record import Progress
from vv_agent.config import RunConfig
from vv_agent.definition import CapabilityRef
from vv_agent.definition_rules import stable_ref
from vv_agent.errors import CheckpointError, ConfigError, StoreError
from vv_agent.history import sanitized
from vv_agent.messages import Message
from vv_agent.runtime.output import Stop, failed
from vv_agent.runtime.patience import patiently
from vv_agent.sessions.base import Session, appends_once, commit_id, payload_digest

if TYPE_CHECKING:
    from vv_agent.runtime.run import Run

SESSION_PREFIX = "session:"


def opening_messages(config: RunConfig) -> list[Message]:
    """What the model is shown before the input: the messages given for the run, else the items of its session."""
    if config.initial_messages is not None or config.session is None:
        return sanitized(config.initial_messages or ())
    return sanitized(config.session.get_items())


def reference(
    session: Session | None, given: Mapping[str, CapabilityRef], *, checkpointed: bool, elsewhere: bool
) -> CapabilityRef | None:
    """The name under which the session of a checkpointed run is found again.

    Raises `checkpoint_session_idempotency_unsupported`, `checkpoint_definition_unstable`, and `reference_required` for
    one that workers cannot open.
    """
    if session is None or not checkpointed:
        return None
    if not appends_once(session):
        raise CheckpointError(
            "checkpoint_session_idempotency_unsupported",
            f"session {session.session_id!r} has no add_items_once, so a resumed run would write its messages twice; "
            "use SqliteSession, SqlSessionStore or RedisSession, or no checkpoint",
        )
    ref: str | None = getattr(session, "ref", None)
    if ref is not None:
        return CapabilityRef(id=SESSION_PREFIX + ref, version="1")
    if elsewhere and "session" not in given:
        raise ConfigError(
            "reference_required",
            f"workers cannot open session {session.session_id!r}, it lives in this process; use SqliteSession, "
            "SqlSessionStore or RedisSession",
        )
    return stable_ref("session", session, given)


def fix_end(run: Run, decision: Stop, *, ends: bool) -> None:
    """Save how the segment ends before its messages go to the session: from here on recovery only finishes the end.

    Raises `SignalsWaiting` while a signal that could change the end is unread.
    """
    if run.body.segment not in run.transcript.candidates:
        item = ["c", run.body.segment, decision.to_log()]
        run.save(Progress(), ending=ends, closing=not ends, durable=True, last_log=[item])


def append(run: Run, decision: Stop) -> Stop:
    """Append the segment's messages, once; the end with what became of that.

    Raises `CannotServe` where the session cannot be opened, `StoreError` while it does not answer.
    """
    session = run.program.conversation
    assert session is not None
    items = run.all_said().items(run.body.segment)
    run.engine.probe("session", "before")
    try:
        if appends_once(session):
            identity = commit_id(run.key, run.body.segment), payload_digest(items)
            patiently(lambda: session.add_items_once(*identity, items))
        else:
            session.add_items(items)
    except StoreError:
        raise
    except CheckpointError as error:  # the same on every attempt
        return replace(failed(error.message, error.code), answer=decision.answer)
    except Exception as error:
        problem = f"session {session.session_id!r} did not take the messages of run {run.key!r}: {error!r}"
        raise StoreError("store_unavailable", problem) from error
    run.engine.probe("session", "after")
    run.emit("session_persisted")
    return decision
