"""Memory providers: what a host may attach to watch compactions, and to search and save what it remembers itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vv_agent.errors import LlmError

if TYPE_CHECKING:
    from vv_agent.events import MemoryCompactCompletedEvent, MemoryCompactStartedEvent


@dataclass(frozen=True)
class MemorySearchRequest:
    """What is looked for."""

    query: str
    limit: int = 10
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MemorySearchResult:
    """One thing that was found."""

    content: str
    score: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MemorySaveRequest:
    """What is to be remembered."""

    content: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MemorySaveResult:
    """What became of it."""

    id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MemoryProviderResult:
    """What a provider has to say about a compaction; it goes into the event's metadata."""

    metadata: Mapping[str, Any] = field(default_factory=dict)


class MemoryProvider:
    """A host's own memory. Every method may be left as it is.

    `before_compact` and `after_compact` see each compaction of the run; the messages it begins with are in the started
    event's `metadata["messages"]`, in their wire form. They run on the worker, may be called again for the same
    compaction after a crash (with another event id), and what they raise is noted in the event and stops nothing.
    `search` and `save` are for the host's tools and context providers; the runtime calls neither.
    """

    name: str = ""
    """Under this name the results stand in the event; the class's own name if it is empty."""

    def search(self, request: MemorySearchRequest) -> Sequence[MemorySearchResult]:
        """What is remembered about a query."""
        return ()

    def save(self, request: MemorySaveRequest) -> MemorySaveResult:
        """Remember something."""
        return MemorySaveResult()

    def before_compact(self, event: MemoryCompactStartedEvent) -> MemoryProviderResult | None:
        """A compaction begins."""
        return None

    def after_compact(self, event: MemoryCompactCompletedEvent) -> MemoryProviderResult | None:
        """It is done."""
        return None


class CompactionExhaustedError(LlmError):
    """The model went on refusing the prompt as too long, whatever was left out of it (`model_context_length`)."""

    _KIND = "context_length"

    def __init__(self, attempts: int, last: str) -> None:
        super().__init__(
            self._KIND,
            f"Context compaction failed after {attempts} consecutive attempts. Last error: {last}",
            definite=True,
        )
