"""contract: tool_metadata.json, the cases of the value itself"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from tests.contract.fixtures import load
from vv_agent.errors import ConfigError
from vv_agent.tool_metadata import (
    MAX_LABEL_LENGTH,
    MAX_LABELS,
    ToolIdempotency,
    ToolMetadata,
    ToolSideEffect,
    normalize_labels,
)

DATA = load("tool_metadata.json")
CONTRACT = DATA["metadata_contract"]


def test_limits_fields_and_values_are_those_of_the_contract() -> None:
    limits = DATA["limits"]
    assert limits["maximum_capability_tags"] == limits["maximum_cost_dimensions"] == MAX_LABELS
    assert limits["maximum_label_code_points"] == MAX_LABEL_LENGTH
    assert [field.name for field in fields(ToolMetadata)] == CONTRACT["canonical_field_order"]
    assert list(ToolMetadata().to_wire()) == CONTRACT["canonical_field_order"]
    assert ToolMetadata().to_wire() == CONTRACT["defaults"]
    assert [str(item) for item in ToolSideEffect] == CONTRACT["side_effect_values"]
    assert [str(item) for item in ToolIdempotency] == CONTRACT["idempotency_values"]


@pytest.mark.parametrize("case", DATA["normalization_cases"], ids=lambda case: case["name"])
def test_metadata_is_normalized(case: dict[str, Any]) -> None:
    metadata = ToolMetadata.from_wire(case["input"])
    assert metadata.to_wire() == case["expected"]
    assert ToolMetadata.from_wire(metadata.to_wire()) == metadata


@pytest.mark.parametrize("case", DATA["invalid_cases"], ids=lambda case: case["name"])
def test_wrong_metadata_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="tool_metadata_invalid: "):
        ToolMetadata.from_wire(case["input"])


def _generated(generator: dict[str, Any]) -> list[str]:
    if "count" in generator:
        return [f"{generator['value_prefix']}{number}" for number in range(generator["count"])]
    return [generator["value"] * generator["code_points"]]


@pytest.mark.parametrize("case", DATA["generated_invalid_cases"], ids=lambda case: case["name"])
def test_labels_beyond_the_limits_are_refused(case: dict[str, Any]) -> None:
    """Policies (fields named denied_...) use the same normalisation of labels."""
    field, labels = case["generator"]["field"], _generated(case["generator"])
    with pytest.raises(ConfigError, match="tool_metadata_invalid: "):
        normalize_labels(labels, field)
    if not field.startswith("denied_"):
        with pytest.raises(ConfigError, match="tool_metadata_invalid: "):
            ToolMetadata.from_wire({field: labels})
