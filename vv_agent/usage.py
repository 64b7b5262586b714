"""Token usage of a model cycle, and its total over a run.

Two closed wire objects, `vv-agent.token-usage.v1` and `vv-agent.task-token-usage.v1`. A count that was not reported is
None, never zero: an observed zero and a missing number are different facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import model_validator

from vv_agent._json import MAX_WIRE
from vv_agent._wire import LAX, Count, Positive, Wire

USAGE_SCHEMA: Literal["vv-agent.token-usage.v1"] = "vv-agent.token-usage.v1"
TASK_USAGE_SCHEMA: Literal["vv-agent.task-token-usage.v1"] = "vv-agent.task-token-usage.v1"


class UsageSource(StrEnum):
    """Where the counts come from."""

    PROVIDER_REPORTED = "provider_reported"
    ESTIMATED = "estimated"
    ACCOUNTING_MISSING = "accounting_missing"


class CacheUsageStatus(StrEnum):
    """Whether the provider said anything about its prompt cache."""

    PROVIDER_REPORTED = "provider_reported"
    ACCOUNTING_MISSING = "accounting_missing"
    UNSUPPORTED = "unsupported"


class CacheUsage(Wire):
    """Input tokens by their relation to the prompt cache.

    `source` is provider_usage, adapter_capability, aggregate (in a total) or None.
    """

    status: Annotated[CacheUsageStatus, LAX]
    read_input_tokens: Count | None
    write_input_tokens: Count | None
    uncached_input_tokens: Count | None
    source: str | None


_NO_CACHE = CacheUsage.model_construct(
    status=CacheUsageStatus.ACCOUNTING_MISSING,
    read_input_tokens=None,
    write_input_tokens=None,
    uncached_input_tokens=None,
    source=None,
)


class TokenUsage(Wire):
    """Usage of one model call. `TokenUsage.empty()` says that nothing is known.

    `provider_usage` is the provider's own object, unchanged: the only place for native fields, read by nobody.
    """

    schema_version: Literal["vv-agent.token-usage.v1"]
    input_tokens: Count | None
    output_tokens: Count | None
    total_tokens: Count | None
    reasoning_tokens: Count | None
    usage_source: Annotated[UsageSource, LAX]
    cache_usage: CacheUsage
    provider_usage: dict[str, Any]

    @classmethod
    def empty(cls, cache_usage: CacheUsage = _NO_CACHE) -> TokenUsage:
        """No count is known; `cache_usage` keeps what an adapter declared about its cache."""
        return cls(
            schema_version=USAGE_SCHEMA,
            input_tokens=None,
            output_tokens=None,
            total_tokens=None,
            reasoning_tokens=None,
            usage_source=UsageSource.ACCOUNTING_MISSING,
            cache_usage=cache_usage,
            provider_usage={},
        )


class CycleTokenUsage(Wire):
    """Usage of one cycle of a run."""

    cycle_index: Positive
    usage: TokenUsage


class TaskTokenUsage(Wire):
    """Totals of a run with the cycles they are made of; totals that do not match the cycles are refused."""

    schema_version: Literal["vv-agent.task-token-usage.v1"]
    input_tokens: Count | None
    output_tokens: Count | None
    total_tokens: Count | None
    reasoning_tokens: Count | None
    cache_usage: CacheUsage
    cycles: Annotated[tuple[CycleTokenUsage, ...], LAX]

    @model_validator(mode="after")
    def _totals_match(self) -> Self:
        usages = [cycle.usage for cycle in self.cycles]
        for name, total in _totals(usages).items():
            if getattr(self, name) != total:
                raise ValueError(f"{name} {getattr(self, name)!r} is not what the cycles add up to ({total!r})")
        if self.cache_usage != (total_cache := _total_cache([usage.cache_usage for usage in usages])):
            raise ValueError(f"cache_usage is not what the cycles add up to ({total_cache!r})")
        return self


def aggregate(cycles: Iterable[CycleTokenUsage]) -> TaskTokenUsage:
    """The total of a run.

    A sum is None when there is no cycle or any cycle lacks the value (a partial total would look complete), or when it
    is beyond 2^53-1.
    """
    parts = tuple(cycles)
    usages = [cycle.usage for cycle in parts]
    return TaskTokenUsage(
        schema_version=TASK_USAGE_SCHEMA,
        cache_usage=_total_cache([usage.cache_usage for usage in usages]),
        cycles=parts,
        **_totals(usages),
    )


def _totals(usages: Sequence[TokenUsage]) -> dict[str, int | None]:
    return {
        "input_tokens": _sum([usage.input_tokens for usage in usages]),
        "output_tokens": _sum([usage.output_tokens for usage in usages]),
        "total_tokens": _sum([usage.total_tokens for usage in usages]),
        "reasoning_tokens": _sum([usage.reasoning_tokens for usage in usages]),
    }


def _total_cache(parts: Sequence[CacheUsage]) -> CacheUsage:
    statuses = {part.status for part in parts}
    status = statuses.pop() if len(statuses) == 1 else CacheUsageStatus.ACCOUNTING_MISSING
    known = parts if status is CacheUsageStatus.PROVIDER_REPORTED else []
    return CacheUsage(
        status=status,
        read_input_tokens=_sum([part.read_input_tokens for part in known]),
        write_input_tokens=_sum([part.write_input_tokens for part in known]),
        uncached_input_tokens=_sum([part.uncached_input_tokens for part in known]),
        source="aggregate",
    )


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    total = sum(known) if known and len(known) == len(values) else None
    return total if total is None or total <= MAX_WIRE else None


_KEYS: dict[str, tuple[tuple[str, ...], ...]] = {
    "native_input": (("input_tokens",), ("prompt_tokens",)),
    "output": (("output_tokens",), ("completion_tokens",)),
    "total": (("total_tokens",),),
    "read": (
        ("cache_read_input_tokens",),
        ("cache_read_tokens",),
        ("prompt_tokens_details", "cached_tokens"),
        ("input_tokens_details", "cached_tokens"),
    ),
    "write": (
        ("cache_write_input_tokens",),
        ("cache_creation_input_tokens",),
        ("cache_write_tokens",),
        ("input_tokens_details", "cache_creation_tokens"),
        ("prompt_tokens_details", "cache_creation_tokens"),
    ),
    "reasoning": (
        ("completion_tokens_details", "reasoning_tokens"),
        ("output_tokens_details", "reasoning_tokens"),
        ("reasoning_tokens",),
    ),
    "uncached": (("uncached_input_tokens",),),
}
"""What providers call each count, in the order of preference (spec/17 section 3): the first valid one is taken."""

_STANDARD_KEYS = ("input_tokens", "prompt_tokens", "output_tokens", "completion_tokens", "total_tokens")


def normalize_token_usage(
    raw: Any,
    usage_source: UsageSource | str | None = None,
    cache_status: CacheUsageStatus | str | None = None,
) -> TokenUsage:
    """A provider's own usage object in the neutral form.

    `usage_source` and `cache_status` are the adapter's hints; an unknown hint is a `ValueError`. A `raw` that is not an
    object gives the empty value. A count is a non-negative integer, an integral float or a string of digits, at most
    2^53-1; anything else counts as not reported. Takes about 12 microseconds.
    """
    hint = CacheUsageStatus(cache_status) if cache_status is not None else None
    if not isinstance(raw, Mapping):
        return TokenUsage.empty(_cache_usage(None, None, None, hint))
    native, output, total, read, write, reasoning, uncached = [_first(raw, paths) for paths in _KEYS.values()]
    tokens_in = native
    if read is not None or write is not None or uncached is not None:
        hint = CacheUsageStatus.PROVIDER_REPORTED
    if _is_anthropic(raw, uncached):
        tokens_in = _plus(native, (read or 0) + (write or 0))
        uncached = _plus(native, write or 0)
    elif uncached is None and tokens_in is not None and read is not None:
        uncached = max(0, tokens_in - read)
    return TokenUsage(
        schema_version=USAGE_SCHEMA,
        input_tokens=tokens_in,
        output_tokens=output,
        total_tokens=_plus(tokens_in, output) if total is None else total,
        reasoning_tokens=reasoning,
        usage_source=_default_source(raw) if usage_source is None else UsageSource(usage_source),
        cache_usage=_cache_usage(read, write, uncached, hint),
        provider_usage=dict(raw),
    )


def _is_anthropic(raw: Mapping[str, Any], uncached: int | None) -> bool:
    """Whether input_tokens counts only what did not touch the cache, as in Anthropic's usage object."""
    return (
        ("cache_read_input_tokens" in raw or "cache_creation_input_tokens" in raw)
        and "total_tokens" not in raw
        and uncached is None
        and _count(raw.get("prompt_tokens")) is None
    )


def _cache_usage(
    read: int | None, write: int | None, uncached: int | None, status: CacheUsageStatus | None
) -> CacheUsage:
    match status:
        case None | CacheUsageStatus.ACCOUNTING_MISSING:
            return _NO_CACHE
        case CacheUsageStatus.UNSUPPORTED:
            read, write, uncached, source = None, None, None, "adapter_capability"
        case CacheUsageStatus.PROVIDER_REPORTED:
            source = "provider_usage"
    return CacheUsage(
        status=status, read_input_tokens=read, write_input_tokens=write, uncached_input_tokens=uncached, source=source
    )


def _default_source(raw: Mapping[str, Any]) -> UsageSource:
    if any(_count(raw.get(key)) is not None for key in _STANDARD_KEYS):
        return UsageSource.PROVIDER_REPORTED
    return UsageSource.ACCOUNTING_MISSING


def _first(raw: Mapping[str, Any], paths: tuple[tuple[str, ...], ...]) -> int | None:
    for path in paths:
        value: Any = raw
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if (count := _count(value)) is not None:
            return count
    return None


def _count(value: Any) -> int | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        # Longer digit strings are no token counts, and int() refuses very long ones.
        value = int(value) if len(value) <= 20 and value.isascii() and value.isdigit() else None
    elif isinstance(value, float):
        value = int(value) if value.is_integer() else None
    return value if isinstance(value, int) and 0 <= value <= MAX_WIRE else None


def _plus(left: int | None, right: int | None) -> int | None:
    return _sum([left, right])
