"""What handlers return, as results."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
from pathlib import Path
from typing import Any

import pydantic
import pytest

from vv_agent.errors import ToolError
from vv_agent.results import ToolDirective, ToolExecutionResult, ToolStatus
from vv_agent.tools.output import ToolOutput, error_result, to_result


class Model(pydantic.BaseModel):
    n: int


@dataclasses.dataclass
class Data:
    when: datetime.date
    where: Path


class Word(enum.Enum):
    YES = "yes"


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("plain", "plain"),
        ("", ""),
        (None, "null"),
        (True, "true"),
        ({"a": [1, "ä"]}, '{"a": [1, "ä"]}'),
        (Model(n=1), '{"n": 1}'),
        (Data(datetime.date(2024, 1, 2), Path("x/y")), '{"when": "2024-01-02", "where": "x/y"}'),
        (Word.YES, '"yes"'),
        ((1, {2}), "[1, [2]]"),
        (ToolOutput.text("t"), "t"),
        ("bad \ud800 text", "bad \ufffd text"),
    ],
    ids=str,
)
def test_any_json_like_value_becomes_text(value: Any, content: str) -> None:
    assert to_result(value, "c").to_wire() == {
        "tool_call_id": "c",
        "content": content,
        "status_code": "SUCCESS",
        "directive": "continue",
    }


@pytest.mark.parametrize("value", [object(), float("nan"), {"a": float("inf")}, b"\xff", lambda: 1])
def test_a_value_without_json_form_is_an_error_of_the_tool(value: Any) -> None:
    with pytest.raises(ToolError, match="a value of type .* has no JSON form"):
        to_result(value, "c")


def test_an_output_with_wrong_fields_is_an_error_of_the_tool_in_plain_words() -> None:
    with pytest.raises(ToolError) as caught:
        to_result(ToolOutput.error("no stock", 5), "c")  # type: ignore[arg-type]
    assert caught.value.message == "the tool's output has a wrong error_code: Input should be a valid string"


def test_a_circular_value_is_an_error_of_the_tool() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(ToolError):
        to_result(circle, "c")


def test_a_result_is_kept_but_for_its_call() -> None:
    given = ToolExecutionResult(tool_call_id="", content="bye", directive=ToolDirective.FINISH)
    assert to_result(given, "c") == given.model_copy(update={"tool_call_id": "c"})


def test_json_image_and_file_say_what_they_are() -> None:
    assert to_result(ToolOutput.json({"a": 1}), "c").metadata == {"output_type": "json"}
    image = to_result(ToolOutput.image(url="https://x/y.png", mime_type="image/png"), "c")
    assert (image.image_url, image.image_path) == ("https://x/y.png", None)
    assert image.metadata == {"output_type": "image", "mime_type": "image/png"}
    assert to_result(ToolOutput.image(path="y.png"), "c").image_path == "y.png"
    assert json.loads(to_result(ToolOutput.file("a.csv"), "c").content) == {"path": "a.csv"}
    with pytest.raises(ToolError):
        ToolOutput.image()


def test_an_error_is_read_by_the_model_and_counted_by_the_host() -> None:
    result = to_result(ToolOutput.error("no stock", "no_stock", retryable=True), "c")
    assert json.loads(result.content) == {"ok": False, "error": "no stock", "error_code": "no_stock", "retryable": True}
    assert (result.status_code, result.error_code, result.metadata) == (
        ToolStatus.ERROR,
        "no_stock",
        {"error_code": "no_stock"},
    )
    assert json.loads(error_result("c", "m", "x", {"more": 1}).content) == {
        "ok": False,
        "error": "m",
        "error_code": "x",
        "more": 1,
    }
