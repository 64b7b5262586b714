"""contract: token_usage.json"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pydantic import ValidationError

from tests.contract.fixtures import load
from vv_agent.usage import (
    CacheUsage,
    CacheUsageStatus,
    CycleTokenUsage,
    TokenUsage,
    UsageSource,
    aggregate,
    normalize_token_usage,
)

DATA = load("token_usage.json")


def _named(cases: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=[case["name"] for case in cases])


@_named(DATA["normalization_cases"])
def test_a_provider_object_is_normalized(case: dict[str, Any]) -> None:
    given = case["input"]
    usage = normalize_token_usage(given["raw_usage"], given["usage_source_hint"], given["cache_status_hint"])
    assert usage.to_wire() == case["expected"]
    assert TokenUsage.from_wire(case["expected"]) == usage


@_named(DATA["aggregation_cases"])
def test_cache_observations_are_added_up(case: dict[str, Any]) -> None:
    cycles = [
        CycleTokenUsage(cycle_index=number, usage=TokenUsage.empty(CacheUsage.from_wire(cache)))
        for number, cache in enumerate(case["cycles"], 1)
    ]
    assert aggregate(cycles).cache_usage.to_wire() == case["expected"]


@_named(DATA["invalid_wire_cases"])
def test_a_wrong_object_is_refused(case: dict[str, Any]) -> None:
    usage = copy.deepcopy(DATA["wire"]["cycle_shape"]["usage"])
    if "remove" in case:
        del usage[case["remove"]]
    usage |= case.get("replace", {}) | case.get("add", {})
    with pytest.raises(ValidationError):
        TokenUsage.from_wire(usage)


def test_the_cycle_shape_survives_a_round_trip() -> None:
    shape = DATA["wire"]["cycle_shape"]
    assert CycleTokenUsage.from_wire(shape).to_wire() == shape


def test_the_enums_have_the_values_of_the_contract() -> None:
    assert [str(item) for item in UsageSource] == DATA["usage_sources"]
    assert [str(item) for item in CacheUsageStatus] == DATA["cache_statuses"]
