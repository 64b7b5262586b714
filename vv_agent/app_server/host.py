"""Whoever decides what a turn runs: the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from vv_agent.agent import Agent
from vv_agent.app_server.protocol import ModelInfo, ModelListParams
from vv_agent.config import RunConfig


@dataclass(frozen=True)
class TurnRequest:
    """What a host may look at when it decides about a turn. `metadata` are the thread's."""

    thread_id: str
    agent_key: str
    cwd: str | None
    metadata: Mapping[str, Any] = field(default_factory=dict)


class AppServerHost(Protocol):
    """Decides for each turn, after its thread was read again and before the turn exists. What it raises is answered
    with -32603, and there is no new turn.

    A run config with a `checkpoint_config` (without a key: the server makes one) lets a turn outlive the server. The
    same request must then lead to the same agent and config, also in a later process.
    """

    def resolve_agent(self, request: TurnRequest) -> Agent: ...

    def build_run_config(self, request: TurnRequest) -> RunConfig: ...

    def list_models(self, request: ModelListParams) -> Sequence[ModelInfo]: ...


class DefaultAppServerHost:
    """Always answers the same."""

    def __init__(
        self, agent: Agent, run_config: RunConfig | None = None, models: Sequence[ModelInfo | Mapping[str, Any]] = ()
    ) -> None:
        self._agent = agent
        self._run_config = run_config or RunConfig()
        self._models = [model if isinstance(model, ModelInfo) else ModelInfo.from_wire(model) for model in models]

    def resolve_agent(self, request: TurnRequest) -> Agent:
        del request
        return self._agent

    def build_run_config(self, request: TurnRequest) -> RunConfig:
        del request
        return self._run_config

    def list_models(self, request: ModelListParams) -> Sequence[ModelInfo]:
        return [model for model in self._models if request.provider in (None, model.provider)]
