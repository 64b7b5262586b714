"""ModelSettings: the closed wire of a call's options."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from vv_agent.llm import ModelSettings, ResponseFormat, RetrySettings, ToolChoice

WIRE: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 1.0,
    "max_tokens": 4294967295,
    "tool_choice": {"type": "function", "function": {"name": "add"}},
    "parallel_tool_calls": False,
    "reasoning": {"effort": "high"},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"default": None}}},
    "timeout_seconds": 3.0,
    "retry": {"max_attempts": 1, "backoff_seconds": 0.0},
    "extra_headers": {"x-a": "1"},
    "extra_body": {"seed": 1, "nothing": None},
    "extra_args": {"logit_bias": {"1": 2}},
}


def test_every_field_comes_back_from_the_wire_as_it_was() -> None:
    assert ModelSettings.from_wire(WIRE).to_wire() == WIRE


def test_unset_fields_are_not_on_the_wire() -> None:
    assert ModelSettings().to_wire() == {}
    assert ModelSettings(temperature=0, max_tokens=120, extra_body={"seed": 1}).to_wire() == {
        "temperature": 0,
        "max_tokens": 120,
        "extra_body": {"seed": 1},
    }


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_tool_choice_words(choice: str) -> None:
    assert ModelSettings.from_wire({"tool_choice": choice}).to_wire() == {"tool_choice": choice}


def test_empty_reasoning_counts_as_unset() -> None:
    assert ModelSettings(reasoning={}).to_wire() == {}


def test_retry_has_the_contract_defaults() -> None:
    assert RetrySettings().model_dump() == {"max_attempts": 3, "backoff_seconds": 2.0}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("temperature", math.nan),
        ("temperature", True),
        ("temperature", "0.5"),
        ("top_p", 1.01),
        ("top_p", -1),
        ("max_tokens", 0),
        ("max_tokens", 4294967296),
        ("max_tokens", True),
        ("max_tokens", 5.0),
        ("tool_choice", "any"),
        ("tool_choice", {"type": "function"}),
        ("tool_choice", {"type": "function", "function": {"name": " "}}),
        ("tool_choice", {"type": "function", "function": {"name": "a", "x": 1}}),
        ("tool_choice", {"type": "tool", "function": {"name": "a"}}),
        ("parallel_tool_calls", 1),
        ("reasoning", "high"),
        ("response_format", "text"),
        ("response_format", {"type": "xml"}),
        ("response_format", {"type": "text", "json_schema": {}}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "text", "more": 1}),
        ("timeout_seconds", 0),
        ("timeout_seconds", math.inf),
        ("retry", {"max_attempts": 0}),
        ("retry", {"max_attempts": True}),
        ("retry", {"backoff_seconds": -1}),
        ("retry", {"backoff_seconds": math.inf}),
        ("retry", {"jitter": 1}),
        ("extra_headers", {"a": 1}),
        ("extra_body", []),
        ("unknown", 1),
    ],
)
def test_wrong_values_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        ModelSettings.from_wire({field: value})


def test_errors_do_not_repeat_header_values() -> None:
    with pytest.raises(ValidationError) as caught:
        ModelSettings.from_wire({"extra_headers": {"authorization": ["sk-secret"]}})
    assert "sk-secret" not in str(caught.value)


def test_merging_replaces_fields_and_extends_the_extra_maps() -> None:
    below = ModelSettings(temperature=1, max_tokens=5, reasoning={"a": 1}, extra_body={"a": 1, "b": 1})
    over = ModelSettings(
        temperature=0, reasoning={"b": 2}, extra_body={"b": 2}, retry=RetrySettings(max_attempts=1), extra_headers={}
    )
    assert below.merged(over) == ModelSettings(
        temperature=0,
        max_tokens=5,
        reasoning={"b": 2},
        extra_body={"a": 1, "b": 2},
        retry=RetrySettings(max_attempts=1),
        extra_headers={},
    )
    assert below.merged(None) is below


def test_named_constructors() -> None:
    settings = ModelSettings(tool_choice=ToolChoice.named("add"), response_format=ResponseFormat(type="json_object"))
    assert settings.to_wire() == {
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "response_format": {"type": "json_object"},
    }


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        ModelSettings().temperature = 1  # type: ignore[misc]
