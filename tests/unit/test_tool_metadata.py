from __future__ import annotations

from typing import Any

import pytest

from vv_agent.errors import ConfigError
from vv_agent.tool_metadata import MAX_LABEL_LENGTH, MAX_LABELS, ToolMetadata, ToolSideEffect


def test_plain_strings_and_lists_become_canonical() -> None:
    metadata = ToolMetadata(side_effect="read", capability_tags=["b", " a\n", "b"])  # type: ignore[arg-type]
    assert metadata.side_effect is ToolSideEffect.READ
    assert metadata.capability_tags == ("a", "b")
    assert hash(metadata) == hash(ToolMetadata(ToolSideEffect.READ, capability_tags=("a", "b")))


def test_limits_count_code_points_and_what_is_left_without_duplicates() -> None:
    longest = "\U0001f600" * MAX_LABEL_LENGTH
    labels = [f"tag.{number}" for number in range(MAX_LABELS - 1)] * 2 + [f" {longest} "]
    assert len(ToolMetadata.from_wire({"capability_tags": labels}).capability_tags) == MAX_LABELS


@pytest.mark.parametrize(
    "wire",
    [
        [], None, {"terminal": 1}, {"capability_tags": "read"}, {"capability_tags": None}, {"cost_dimensions": [1]},
        {"side_effect": None}, {"idempotency": True}, {"capability_tags": ["x" * (MAX_LABEL_LENGTH + 1)]},
    ],
)  # fmt: skip
def test_other_types_are_refused(wire: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        ToolMetadata.from_wire(wire)
    assert caught.value.code == "tool_metadata_invalid"
