"""What memory is told: its numbers, and how many tokens a prompt may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from vv_agent.errors import ConfigError

ReserveSource = Literal[
    "model_settings", "task_metadata", "framework_fallback", "framework_fallback_capped_by_model_capability"
]
DEFAULT_THRESHOLD = 250_000
RESERVE = 16_000
"""Tokens kept for the answer where nobody says how long it may be."""
_U64_MAX = 2**64 - 1
COMPACTABLE = ("read_file", "write_file", "edit_file", "find_files", "search_files", "bash", "file_info")
"""Tools whose old results may be cleared: they can be called again."""


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """The numbers of memory. Each can stand in a run's metadata under its own name, also as a text of digits.

    Thresholds and windows are tokens, lengths of results code points. A `compact_threshold` of 0 means all the room the
    model has; windows and reserves that are 0 or None are not known.
    """

    compact_threshold: int = DEFAULT_THRESHOLD
    keep_recent_messages: int = 10
    """Messages an emergency leaves at least."""
    model_context_window: int | None = None
    model_max_output_tokens: int | None = None
    reserved_output_tokens: int | None = None
    autocompact_buffer_tokens: int = 13_000
    language: str = "en-US"
    warning_threshold_percentage: int = 90
    include_memory_warning: bool = False
    """Tell the model when the room is nearly used up."""
    summary_event_limit: int = 40
    tool_result_compact_threshold: int = 2_000
    tool_result_keep_last: int = 3
    tool_result_excerpt_head: int = 200
    tool_result_excerpt_tail: int = 200
    tool_result_artifact_dir: str = ".memory/tool_results"
    microcompact_trigger_ratio: float = 0.75
    microcompact_keep_recent_cycles: int = 3
    microcompact_min_result_length: int = 500
    microcompact_compactable_tools: tuple[str, ...] = COMPACTABLE
    memory_summary_backend: str | None = None
    memory_summary_model: str | None = None
    """The model that summarises; None: the run's own."""
    session_memory_enabled: bool = True
    session_memory_extraction_backend: str | None = None
    session_memory_extraction_model: str | None = None
    """The model that extracts facts for the session memory; None: nothing is extracted."""
    session_memory_seed: tuple[Any, ...] = ()

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> MemoryConfig:
        """The entries of a run's metadata that are about memory; `run_config_invalid` for one of the wrong kind."""
        given = {item.name: metadata[item.name] for item in fields(cls) if metadata.get(item.name) is not None}
        if (percentage := metadata.get("memory_threshold_percentage")) is not None:
            given.setdefault("warning_threshold_percentage", percentage)
        read = {name: _read(name, value, getattr(cls, name, None)) for name, value in given.items()}
        if "warning_threshold_percentage" in read:
            read["warning_threshold_percentage"] = min(max(read["warning_threshold_percentage"], 1), 100)
        return cls(**read)


METADATA_NAMES = frozenset({item.name for item in fields(MemoryConfig)} | {"memory_threshold_percentage"})


def _read(name: str, value: Any, default: Any) -> Any:
    """A value of the kind its default has; a number may be written as text."""
    match default:
        case bool() if isinstance(value, bool):
            return value
        case float() if (number := _number(value, float)) is not None and 0 <= number <= 1:
            return number
        case tuple() if isinstance(value, list | tuple):
            return tuple(value)
        case str() if isinstance(value, str):
            return value
        case int() if not isinstance(default, bool) and (number := _number(value, int)) is not None:
            return number
        case None if name.endswith(("_backend", "_model")) and isinstance(value, str):
            return value
        case None if not name.endswith(("_backend", "_model")) and (number := _number(value, int)) is not None:
            return number or None
    raise ConfigError("run_config_invalid", f"metadata {name!r} is {value!r}; see docs/memory.md for what it may be")


def _number(value: Any, kind: type[int] | type[float]) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = kind(value)
    except (ValueError, OverflowError):
        return None
    return number if number >= 0 else None


@dataclass(frozen=True)
class Capacity:
    """How many tokens a prompt may have before something is done about it (spec/27, Capacity)."""

    configured_threshold: int
    model_context_window: int
    model_max_output_tokens: int | None
    reserved_output_tokens: int
    reserved_output_source: ReserveSource
    autocompact_buffer_tokens: int
    trigger_ratio: float = 0.75

    @property
    def prompt_capacity(self) -> int:
        """What the window leaves for a prompt."""
        return max(self.model_context_window - self.reserved_output_tokens - self.autocompact_buffer_tokens, 0)

    @property
    def effective_threshold(self) -> int:
        """Above this a prompt is compacted."""
        if self.configured_threshold <= 0:
            return self.prompt_capacity
        return min(self.configured_threshold, self.prompt_capacity)

    @property
    def microcompact_threshold(self) -> int:
        """Above this old tool results are cleared."""
        return int(self.effective_threshold * self.trigger_ratio)

    def fitted(self) -> Capacity:
        """The capacity under defaults of at most a quarter of the window each: they were made for large windows, and
        would leave one of 29,000 tokens no room at all. What somebody said stays."""
        most, changes = self.model_context_window // 4, dict[str, Any]()
        if self.autocompact_buffer_tokens == MemoryConfig.autocompact_buffer_tokens:
            changes["autocompact_buffer_tokens"] = min(self.autocompact_buffer_tokens, most)
        if self.reserved_output_source.startswith("framework_fallback"):
            changes["reserved_output_tokens"] = min(self.reserved_output_tokens, most)
        return replace(self, **changes)

    def to_event(self) -> dict[str, Any]:
        """The fields of `memory_compact_started`."""
        names = (
            "configured_threshold", "effective_threshold", "microcompact_threshold", "model_context_window",
            "model_max_output_tokens", "reserved_output_tokens", "reserved_output_source", "autocompact_buffer_tokens",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


def capacity(
    config: MemoryConfig, *, max_tokens: int | None = None, context_length: int | None = None,
    max_output: int | None = None,
) -> Capacity:  # fmt: skip
    """The capacity under these numbers. `max_tokens` is that of the effective model settings; `context_length` and
    `max_output` are what the resolved model can do."""
    max_output = config.model_max_output_tokens or max_output
    reserve, source = _reserve(max_tokens, config.reserved_output_tokens, max_output)
    planned = config.compact_threshold if config.compact_threshold > 0 else DEFAULT_THRESHOLD
    derived = min(planned + reserve + config.autocompact_buffer_tokens, _U64_MAX)
    return Capacity(
        configured_threshold=config.compact_threshold,
        model_context_window=config.model_context_window or context_length or derived,
        model_max_output_tokens=max_output,
        reserved_output_tokens=reserve,
        reserved_output_source=source,
        autocompact_buffer_tokens=config.autocompact_buffer_tokens,
        trigger_ratio=config.microcompact_trigger_ratio,
    )


def _reserve(max_tokens: int | None, told: int | None, max_output: int | None) -> tuple[int, ReserveSource]:
    """Tokens kept for the answer. What somebody said is never lowered."""
    if max_tokens:
        return max_tokens, "model_settings"
    if told:
        return told, "task_metadata"
    if max_output and max_output < RESERVE:
        return max_output, "framework_fallback_capped_by_model_capability"
    return RESERVE, "framework_fallback"
