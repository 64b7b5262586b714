"""Arguments of a call: parsing, validation, and schemas that close themselves."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from vv_agent.errors import ConfigError, ToolError
from vv_agent.tools.arguments import Issue, check_schema, close, parse_arguments, validate


@pytest.mark.parametrize("raw", [None, "", "  \n", "null", "{}", {}])
def test_no_arguments_are_an_empty_object(raw: Any) -> None:
    assert parse_arguments(raw) == {}


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        ('{"a": ', "invalid_arguments_json"),
        ("{'a': 1}", "invalid_arguments_json"),
        ('{"a": NaN}', "invalid_arguments_json"),
        ('{"a": -Infinity}', "invalid_arguments_json"),
        ('{"a": 1e999}', "invalid_arguments_json"),
        ('{"a": ' + "9" * 5000 + "}", "invalid_arguments_json"),
        ('{"a": "\\ud800"}', "invalid_arguments_json"),
        ('{"\\udc00": 1}', "invalid_arguments_json"),
        ('{"a": ' + "[" * 100_000 + "}", "invalid_arguments_json"),
        ("[1]", "invalid_arguments_payload"),
        ('"text"', "invalid_arguments_payload"),
        ("3", "invalid_arguments_payload"),
        ([1], "invalid_arguments_type"),
        (3, "invalid_arguments_type"),
        (b"{}", "invalid_arguments_type"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_object_is_refused_with_its_code(raw: Any, code: str) -> None:
    with pytest.raises(ToolError) as caught:
        parse_arguments(raw)
    assert caught.value.code == code


def test_values_are_kept_as_they_are_and_huge_integers_become_floats() -> None:
    assert parse_arguments('{"a": "\\ud83d\\ude00", "b": 18446744073709551615, "c": 1.5}') == {
        "a": "😀",
        "b": 2**64 - 1,
        "c": 1.5,
    }
    huge = parse_arguments('{"a": 1000000000000000000000000000000, "b": -9223372036854775809}')
    assert huge == {"a": 1e30, "b": -9223372036854775809.0}
    assert {type(value) for value in huge.values()} == {float}


SCHEMA = close(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "a/b~c": {"type": "integer", "minimum": 1},
            "items": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
        },
        "required": ["name", "a/b~c"],
    }
)


def test_issues_are_collapsed_and_sorted() -> None:
    issues = validate({"items": [{"n": "x", "more": 1}, {"n": True}], "x": 1, "y": 2}, SCHEMA)
    assert issues == (
        Issue("", "/additionalProperties", "additionalProperties"),
        Issue("", "/required", "required"),
        Issue("/items/0", "/properties/items/items/additionalProperties", "additionalProperties"),
        Issue("/items/0/n", "/properties/items/items/properties/n/type", "type"),
        Issue("/items/1/n", "/properties/items/items/properties/n/type", "type"),
    )


def test_pointers_escape_slash_and_tilde() -> None:
    (issue,) = validate({"name": "x", "a/b~c": 0}, SCHEMA)
    assert issue == Issue("/a~1b~0c", "/properties/a~1b~0c/minimum", "minimum")


def test_closing_leaves_open_what_says_so_and_does_not_touch_data_or_conditions() -> None:
    schema = {
        "type": "object",
        "properties": {
            "properties": {"type": "object", "additionalProperties": True},
            "typed": {"type": "object", "additionalProperties": {"type": "object"}},
        },
        "default": {"type": "object"},
        "if": {"properties": {"typed": {"const": {"type": "object"}}}},
        "$defs": {"n": {"type": ["object", "null"], "properties": {}}},
    }
    closed = close(schema)
    assert closed["additionalProperties"] is False
    assert closed["properties"]["properties"]["additionalProperties"] is True
    assert closed["properties"]["typed"]["additionalProperties"] == {"type": "object", "additionalProperties": False}
    assert (closed["default"], closed["if"]) == (schema["default"], schema["if"])
    assert closed["$defs"]["n"]["additionalProperties"] is False
    assert "additionalProperties" not in schema


@pytest.mark.parametrize(
    "schema",
    [{"type": "objekt"}, {"properties": 3}, {"type": "object", "properties": {"a": {"minimum": "x"}}}, {"x": object()}],
)
def test_a_wrong_schema_is_the_developers_error(schema: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_schema(schema)
    assert caught.value.code == "tool_schema_invalid"


@pytest.mark.parametrize("ref", ["#/$defs/missing", "http://127.0.0.1:9/schema.json", "other.json"])
def test_a_reference_out_of_the_schema_is_never_fetched(ref: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate({"a": 1}, {"type": "object", "properties": {"a": {"$ref": ref}}})
    assert caught.value.code == "tool_schema_invalid"


def test_jsonschema_is_not_loaded_by_defining_tools() -> None:
    script = (
        "import sys, vv_agent.tools.builtin as b\n"
        "from vv_agent.tools.function import function_tool\n"
        "b.build_default_registry()\n"
        "@function_tool\n"
        "def f(x: int) -> int: return x\n"
        "assert 'jsonschema' not in sys.modules, 'loaded'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
