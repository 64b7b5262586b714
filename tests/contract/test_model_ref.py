"""Model references against the contract's example data."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract import fixtures
from vv_agent.llm.reference import ModelRef

FIXTURE = fixtures.load("model_ref.json")


@pytest.mark.parametrize("wire", FIXTURE["valid"], ids=str)
def test_a_valid_reference_comes_back_as_it_was(wire: dict[str, Any]) -> None:
    assert ModelRef.from_wire(wire).to_wire() == wire


@pytest.mark.parametrize("wire", FIXTURE["invalid"], ids=str)
def test_an_invalid_reference_is_refused(wire: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="model reference"):
        ModelRef.from_wire(wire)
