"""What a host may add to the system prompt of a run: ordered fragments from context providers."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class ContextFragment:
    """One piece of a system prompt.

    Fragments stand in the order of `priority` (small first; the agent's instructions have 0), at equal priority stable
    ones first, then by `id`. `stable` says that the text is the same from run to run, so that providers can cache the
    prompt up to there. `source` and `cache_hint` are the host's own words.
    """

    id: str
    text: str
    stable: bool = False
    priority: int = 100
    source: str | None = None
    cache_hint: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ContextRequest:
    """What a provider may look at. `metadata` is that of agent, runner and run together; `context` the host's own
    object; `max_prompt_chars` the limit for the whole prompt in code points, None without one."""

    agent_name: str
    input: str
    model: str | None = None
    trace_id: str | None = None
    session: Any = None
    workspace: Any = None
    context: Any = None
    max_prompt_chars: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class ContextProvider(Protocol):
    """Gives fragments for the system prompt; may be asynchronous.

    It is asked once, by the process that starts the run; the prompt is then part of the run's definition. So workers
    need not load it, and a run that is resumed keeps the prompt it began with.
    """

    def fragments(self, request: ContextRequest) -> Sequence[ContextFragment] | Awaitable[Sequence[ContextFragment]]:
        """The fragments for this run; an error keeps the run from starting (`context_provider_failed`)."""
        ...
