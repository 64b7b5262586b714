"""Runs of turns: what the host decided, started on the Runner or taken up again from its record."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

from vv_agent.agent import Agent
from vv_agent.app_server.host import AppServerHost, DefaultAppServerHost, TurnRequest
from vv_agent.app_server.protocol import AppThread
from vv_agent.app_server.rpc import INTERNAL_ERROR, RpcError
from vv_agent.app_server.sql import TurnRecord
from vv_agent.checkpoint.config import CheckpointConfig, ResumePolicy
from vv_agent.checkpoint.record import Head, State
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.config import RunConfig, effective_config
from vv_agent.definition import CapabilityRef
from vv_agent.errors import CheckpointError
from vv_agent.run_handle import RunHandle
from vv_agent.runner import Runner
from vv_agent.runtime.owner import is_dead
from vv_agent.sessions.base import Session

_METADATA = "behavior_affecting_run_metadata"


@dataclass(frozen=True)
class Plan:
    """What a turn is to run; `store` holds its record if it is checkpointed."""

    agent: Agent
    config: RunConfig
    checkpoint: CheckpointConfig | None
    store: CheckpointStore | None
    asks_for: float | None
    """Seconds that the run itself gives an approval; None: it waits."""

    @property
    def key(self) -> str | None:
        return self.checkpoint.key if self.checkpoint else None


class AppServerRunAdapter:
    """The one place where turns meet the Runner."""

    def __init__(self, runner: Runner, host: AppServerHost) -> None:
        self.runner = runner
        self.host = host

    @classmethod
    def new(cls, runner: Runner, agent: Agent, run_config: RunConfig | None = None) -> AppServerRunAdapter:
        """An adapter for one fixed agent."""
        return cls(runner, DefaultAppServerHost(agent, run_config))

    def plan(self, thread: AppThread, record: TurnRecord, session: Session) -> Plan:
        """Ask the host. `RpcError` -32603 when it fails."""
        request = TurnRequest(thread.thread_id, thread.agent_key, thread.cwd, thread.metadata)
        try:
            agent = self.host.resolve_agent(request)
            given = self.host.build_run_config(request)
            effective = effective_config(agent, self.runner.default_run_config, given)
            kept = self.runner.kept(effective)
            checkpoint = None if kept is None else self._checkpoint(kept[0], record, effective.session or session)
        except Exception as error:
            raise RpcError(INTERNAL_ERROR, f"the host could not decide about the turn: {error}") from error
        turn = record.turn
        ids = {"thread_id": turn.thread_id, "turn_id": turn.turn_id}
        config = replace(
            given, metadata={**given.metadata, **thread.metadata, **record.metadata, **ids}, checkpoint_key=None,
            checkpoint_config=checkpoint, session=effective.session or session,
        )  # fmt: skip
        store = None if kept is None else kept[1]
        return Plan(agent, config, checkpoint, store, effective.approval_timeout_seconds)

    def start(self, plan: Plan, text: str) -> RunHandle:
        return self.runner.start(plan.agent, text, run_config=plan.config)

    def take_up(self, plan: Plan, text: str) -> RunHandle:
        """Go on with a stored run. The handle gives its events from the first one on.

        The host's agent carries it on if it is still the same one, else the stored definition.
        """
        assert plan.key is not None
        assert plan.store is not None
        try:
            driver = self.runner.start(plan.agent, text, run_config=plan.config)
        except CheckpointError as error:
            if error.code != "checkpoint_definition_mismatch":
                raise
            driver = self.runner.start_resume(plan.key, store=plan.store)
        handle = self.runner.attach(plan.key, store=plan.store)
        driver.when_over(lambda: _pass_on(driver, handle))
        return handle

    def _checkpoint(self, given: CheckpointConfig, record: TurnRecord, session: Session) -> CheckpointConfig:
        """The host's settings under the turn's key."""
        refs = {_METADATA: CapabilityRef(id="vv_agent.app_server.run_metadata", version="1"), **given.capability_refs}
        if getattr(session, "ref", "") is None:  # in memory: it has no name elsewhere
            refs.setdefault("session", CapabilityRef(id="vv_agent.app_server.session", version="1"))
        new = f"{record.turn.thread_id}/{record.turn.turn_id}/{secrets.token_hex(6)}"
        key = record.checkpoint_key or given.key or new
        return replace(given, key=key, resume_policy=ResumePolicy.RESUME_IF_PRESENT, capability_refs=refs)


def _pass_on(driver: RunHandle, handle: RunHandle) -> None:
    """What keeps this process from carrying a run on ends the turn, unless somebody else has the run."""
    error: Any = driver.failure()
    if error is not None and getattr(error, "code", "") != "checkpoint_claim_active":
        handle.fail(error)


def is_held(head: Head, now: int) -> bool:
    """A living process advances the run right now."""
    held = head.state is State.CLAIMED and head.lease_until > now
    return held and not (head.owner is not None and is_dead(head.owner))
