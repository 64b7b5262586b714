from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from vv_agent._json import MAX_WIRE
from vv_agent.usage import CycleTokenUsage, TaskTokenUsage, TokenUsage, aggregate, normalize_token_usage


def cycle(index: int, **raw: Any) -> CycleTokenUsage:
    return CycleTokenUsage(cycle_index=index, usage=normalize_token_usage(raw))


def test_no_cycle_gives_unknown_totals_whose_cache_source_is_still_aggregate() -> None:
    assert aggregate([]).to_wire() == {
        "schema_version": "vv-agent.task-token-usage.v1",
        "input_tokens": None,
        "output_tokens": None,
        "total_tokens": None,
        "reasoning_tokens": None,
        "cache_usage": {
            "status": "accounting_missing",
            "read_input_tokens": None,
            "write_input_tokens": None,
            "uncached_input_tokens": None,
            "source": "aggregate",
        },
        "cycles": [],
    }


def test_a_total_is_unknown_as_soon_as_one_cycle_lacks_it() -> None:
    total = aggregate([cycle(1, input_tokens=5, output_tokens=2), cycle(2, input_tokens=7)])
    assert (total.input_tokens, total.output_tokens, total.total_tokens) == (12, None, None)


def test_a_reader_refuses_totals_that_do_not_match() -> None:
    wire = aggregate([cycle(1, input_tokens=5, output_tokens=2)]).to_wire()
    assert TaskTokenUsage.from_wire(wire).to_wire() == wire
    for change in (
        {"input_tokens": 6},
        {"output_tokens": None},
        {"cache_usage": {**wire["cache_usage"], "source": None}},
    ):
        with pytest.raises(ValueError, match="add up"):
            TaskTokenUsage.from_wire(wire | change)


def test_a_sum_that_no_reader_keeps_exactly_is_unknown() -> None:
    total = aggregate([cycle(1, total_tokens=MAX_WIRE), cycle(2, total_tokens=1)])
    assert total.total_tokens is None
    assert TaskTokenUsage.from_wire(total.to_wire()) == total


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (3, 3), (0, 0), (3.0, 3), ("12", 12), (True, None), (-1, None), (1.5, None), ("", None), ("1.0", None),
        ("-1", None), ("²", None), ("٣", None), (float("nan"), None), (float("inf"), None), (MAX_WIRE + 1, None),
        ("9" * 5000, None), ([], None), (None, None),
    ],
)  # fmt: skip
def test_only_whole_numbers_count(value: Any, count: int | None) -> None:
    assert normalize_token_usage({"total_tokens": value}).total_tokens == count


def test_an_invalid_preferred_key_falls_through_to_the_next() -> None:
    usage = normalize_token_usage({"input_tokens": None, "prompt_tokens": 4, "completion_tokens": "3"})
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (4, 3, 7)


def test_the_anthropic_form_adds_what_the_cache_took() -> None:
    usage = normalize_token_usage(
        {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}
    )
    assert (usage.input_tokens, usage.total_tokens, usage.cache_usage.uncached_input_tokens) == (130, 135, 30)


def test_anthropic_nulls_observe_nothing() -> None:
    usage = normalize_token_usage({"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": None})
    assert (usage.input_tokens, str(usage.cache_usage.status)) == (10, "accounting_missing")


def test_no_object_keeps_the_cache_hint_only() -> None:
    usage = normalize_token_usage("nothing", "provider_reported", "unsupported")
    assert (str(usage.usage_source), usage.cache_usage.source) == ("accounting_missing", "adapter_capability")


@pytest.mark.parametrize("change", [{"extra": 1}, {"input_tokens": True}, {"input_tokens": 1.0}, {"usage_source": "x"}])
def test_readers_convert_nothing(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TokenUsage.from_wire(TokenUsage.empty().to_wire() | change)
