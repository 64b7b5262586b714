"""`FunctionTool` and `@function_tool`: schemas from hints, typed calls, failures as results."""

from __future__ import annotations

import asyncio
import contextvars
import enum
import inspect
import json
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Annotated, Any, Literal

import pydantic
import pytest
from pydantic import Field

from tests.unit.tools import module_of_tools
from vv_agent._loop import run_async
from vv_agent.cancellation import CancellationToken
from vv_agent.errors import ClaimLost, ConfigError, ToolError
from vv_agent.references import load, name_of, version_of
from vv_agent.results import ToolExecutionResult
from vv_agent.tool_metadata import ToolIdempotency, ToolMetadata, ToolSideEffect
from vv_agent.tools.base import CallSafety, Tool, ToolContext, ToolExposure, safety_of
from vv_agent.tools.function import FunctionTool, function_tool


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


class Place(pydantic.BaseModel):
    """Where."""

    city: str
    country: str = "DE"


def call(tool: Tool, context: ToolContext | None = None, **arguments: Any) -> ToolExecutionResult:
    return tool.invoke(context or ToolContext(tool_call_id="c"), arguments)


def error_of(result: ToolExecutionResult) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(result.content)
    assert content["ok"] is False
    assert content["error_code"] == result.error_code
    return content


def test_the_schema_comes_from_hints_and_docstring() -> None:
    @function_tool
    def weather(
        place: Place,
        unit: Unit,
        detail: Annotated[int, Field(ge=1, le=3, description="How much.")] = 1,
        source: Literal["a", "b"] = "a",
        note: str | None = None,
        *,
        schema: list[str] = [],  # noqa: B006
    ) -> str:
        """Tell the weather
        of a place.

        More that the model does not need.

        Args:
            place: The place,
                with its country.
            detail: Overridden by the hint.
            note (str): A note.
        """
        return f"{type(place).__name__} {unit} {detail} {source} {note} {schema}"

    assert weather.to_openai_schema() == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tell the weather of a place.",
            "strict": True,
            "parameters": {
                "type": "object",
                "additionalProperties": False,
                "required": ["place", "unit"],
                "properties": {
                    "place": {"$ref": "#/$defs/Place", "description": "The place, with its country."},
                    "unit": {"$ref": "#/$defs/Unit"},
                    "detail": {"type": "integer", "minimum": 1, "maximum": 3, "default": 1, "description": "How much."},
                    "source": {"type": "string", "enum": ["a", "b"], "default": "a"},
                    "note": {
                        "anyOf": [{"type": "string"}, {"type": "null"}],
                        "default": None,
                        "description": "A note.",
                    },
                    "schema": {"type": "array", "items": {"type": "string"}, "default": []},
                },
                "$defs": {
                    "Place": {
                        "type": "object",
                        "description": "Where.",
                        "additionalProperties": False,
                        "required": ["city"],
                        "properties": {"city": {"type": "string"}, "country": {"type": "string", "default": "DE"}},
                    },
                    "Unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                },
            },
        },
    }
    assert call(weather, place={"city": "Bonn"}, unit="celsius").content == "Place Unit.C 1 a None []"


def test_sphinx_descriptions_are_read_too() -> None:
    @function_tool
    def tool(a: int, b: str) -> None:
        """Do it.
        :param a: first
        :param str b: second
        """

    properties = tool.params_json_schema["properties"]
    assert (tool.description, properties["a"]["description"], properties["b"]["description"]) == (
        "Do it.",
        "first",
        "second",
    )


@pytest.mark.parametrize(
    ("text", "summary", "described"),
    [
        (
            "Do it.\n\n    More.\n\n    Args:\n        a (int): first,\n            really\n    ",
            "Do it.",
            "first, really",
        ),
        (
            "Do it\n    in two lines.\n\n    Parameters\n    ----------\n    a : int\n        first\n    ",
            "Do it in two lines.",
            "first",
        ),
        ("Do: it.\n\n    Args:\n        b: of nobody\n        broken(\n    ", "Do: it.", None),
        ("", "", None),
        (None, "", None),
    ],
)
def test_docstrings_of_every_form_describe(text: str | None, summary: str, described: str | None) -> None:
    def act(a: int) -> None: ...

    act.__doc__ = text
    tool = function_tool(act)
    assert tool.description == summary
    assert tool.params_json_schema["properties"]["a"].get("description") == described


def test_every_option_arrives() -> None:
    metadata = ToolMetadata(side_effect=ToolSideEffect.NETWORK)
    needs = lambda context, arguments: True  # noqa: E731

    @function_tool(
        name="other",
        description="Other.",
        idempotency="supported",
        tool_metadata=metadata,
        timeout_seconds=3,
        needs_approval=needs,
        exposure="hidden",
        strict_json_schema=False,
        is_enabled=False,
        metadata={"a": 1},
    )
    def tool() -> None:
        """Not this."""

    assert (tool.name, tool.description, tool.timeout_seconds, tool.needs_approval) == ("other", "Other.", 3, needs)
    assert (tool.exposure, tool.strict_json_schema, tool.is_enabled, tool.metadata) == (
        ToolExposure.HIDDEN,
        False,
        False,
        {"a": 1},
    )
    assert tool.tool_metadata == replace(metadata, idempotency=ToolIdempotency.SUPPORTED)
    assert safety_of(tool) is CallSafety.REPEATABLE
    assert tool.params_json_schema == {"type": "object", "properties": {}, "additionalProperties": False}


def test_a_contradiction_about_idempotency_is_refused() -> None:
    unsupported = ToolMetadata(idempotency=ToolIdempotency.UNSUPPORTED)
    with pytest.raises(ConfigError, match="contradicts"):
        function_tool(idempotency="supported", tool_metadata=unsupported)(module_of_tools.add.function)
    with pytest.raises(ConfigError):
        function_tool(idempotency="sometimes")(module_of_tools.add.function)


def test_a_decorated_function_stays_a_function() -> None:
    assert module_of_tools.add(1) == 3
    assert module_of_tools.add(a=1, b=1) == 2
    assert list(inspect.signature(module_of_tools.add).parameters) == ["a", "b"]
    assert module_of_tools.add.__doc__ == "Add two numbers."


def test_a_decorated_function_is_named_and_pickled_by_its_path() -> None:
    tool = module_of_tools.add
    assert name_of(tool) == "tests.unit.tools.module_of_tools:add"
    assert load(str(name_of(tool)), ["tests"]) is tool
    assert pickle.loads(pickle.dumps(tool)) is tool
    assert version_of(tool) == "3"
    assert version_of(module_of_tools.who) == "1"


def test_a_version_of_the_function_is_the_version_of_the_tool() -> None:
    def tool() -> None: ...

    tool.__vv_version__ = "7"  # type: ignore[attr-defined]
    assert version_of(function_tool(tool)) == "7"


def test_the_context_is_found_by_its_annotation_and_hidden() -> None:
    assert call(module_of_tools.who).content == "c"  # its import of ToolContext is for type checkers only
    assert module_of_tools.who.params_json_schema["properties"] == {}

    @function_tool
    def optional(a: int, ctx: ToolContext | None = None) -> str:
        return f"{a} {ctx and ctx.run_id}"

    assert call(optional, ToolContext(run_id="r"), a=1).content == "1 r"
    assert optional(1) == "1 None"


def test_positional_only_parameters_and_field_defaults_are_bound() -> None:
    @function_tool
    def tool(a: int, context: ToolContext, b: int = 5, /, c: int = Field(7, ge=1), *, d: int = 9) -> str:
        return f"{a} {context.tool_call_id} {b} {c} {d}"

    assert call(tool, a=1).content == "1 c 5 7 9"
    assert call(tool, a=1, b=2, c=3, d=4).content == "1 c 2 3 4"


def test_a_default_that_has_no_json_form_reaches_the_function_itself() -> None:
    missing = object()

    @function_tool
    def tool(a: Any = missing) -> bool:
        return a is missing

    assert call(tool).content == "true"
    assert call(tool, a=None).content == "false"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def f(a): ...", "no type hint"),
        ("def f(*a: int): ...", "name each parameter"),
        ("def f(**a: int): ...", "name each parameter"),
        ("f = len", "no type hint"),
        ("f = type", "no signature"),
        ("def f(a: 'Nowhere'): ...", "cannot be resolved"),
        ("def f(a: threading.Lock): ...", "has no JSON form"),
        ("def f(a: Callable[[], int]): ...", "has no JSON form"),
    ],
)
def test_a_function_no_schema_can_be_made_for_is_refused(source: str, problem: str) -> None:
    from collections.abc import Callable

    space: dict[str, Any] = {"threading": threading, "Callable": Callable}
    exec(source, space)
    with pytest.raises(ConfigError, match=problem) as caught:
        function_tool(space["f"])
    assert caught.value.code == "tool_signature_invalid"


def test_arguments_pydantic_refuses_do_not_reach_the_function() -> None:
    reached: list[int] = []

    @function_tool
    def tool(even: Annotated[int, pydantic.AfterValidator(_even)]) -> None:
        reached.append(even)

    result = call(tool, even=3)
    assert error_of(result)["error"] == "Invalid arguments: /even: Value error, 3 is odd"
    assert error_of(call(tool, even=2, more=1))["error_code"] == "invalid_tool_arguments"
    assert reached == []


def _even(value: int) -> int:
    if value % 2:
        raise ValueError(f"{value} is odd")
    return value


def failing(error: BaseException) -> FunctionTool:
    def handler(context: ToolContext, arguments: dict[str, Any]) -> None:
        raise error

    return FunctionTool(name="bad", handler=handler)


def test_what_a_handler_raises_is_a_result() -> None:
    assert error_of(call(failing(ValueError("boom")))) == {
        "ok": False,
        "error": "Tool execution failed (bad): boom",
        "error_code": "tool_execution_failed",
    }
    assert error_of(call(failing(SystemExit(3))))["error_code"] == "tool_execution_failed"
    assert error_of(call(failing(ToolError("no stock", "no_stock", retryable=True, left=0)))) == {
        "ok": False,
        "error": "no stock",
        "error_code": "no_stock",
        "left": 0,
        "retryable": True,
    }
    assert error_of(call(failing(ToolError("x", "y", odd=object())))) == {"ok": False, "error": "x", "error_code": "y"}
    assert error_of(call(failing(ToolError("no stock", 5)))) == {  # type: ignore[arg-type]
        "ok": False,
        "error": "Tool execution failed (bad): no stock (its code 5 is no text)",
        "error_code": "tool_execution_failed",
    }
    unwritable = FunctionTool(name="odd", handler=lambda *_: object())
    assert error_of(call(unwritable))["error_code"] == "tool_execution_failed"


class Own(BaseException):
    """A host's own way out."""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MemoryError(), "MemoryError"),
        (SystemExit(3), "SystemExit: 3"),
        (GeneratorExit(), "GeneratorExit"),
        (asyncio.CancelledError("stop"), "CancelledError: stop"),
        (Own("enough"), "Own: enough"),
        (KeyError("x"), "'x'"),
    ],
    ids=repr,
)
def test_whatever_a_handler_raises_only_fails_its_call(error: BaseException, text: str) -> None:
    assert error_of(call(failing(error))) == {
        "ok": False,
        "error": f"Tool execution failed (bad): {text}",
        "error_code": "tool_execution_failed",
    }


def test_an_interrupt_is_one_only_in_the_main_thread() -> None:
    with pytest.raises(KeyboardInterrupt):
        call(failing(KeyboardInterrupt()))
    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(call, failing(KeyboardInterrupt())).result()
    assert error_of(result)["error"] == "Tool execution failed (bad): KeyboardInterrupt"


def test_the_end_of_the_workers_claim_is_no_result_of_the_tool() -> None:
    def over() -> None:
        raise ClaimLost("taken over")

    with pytest.raises(ClaimLost):
        call(failing(ValueError("boom")), ToolContext(check_claim=over))
    assert error_of(call(failing(ClaimLost("of another run"))))["error_code"] == "tool_execution_failed"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"name": " "}, "tool_name_invalid"),
        ({"timeout_seconds": 0}, "tool_timeout_invalid"),
        ({"timeout_seconds": float("inf")}, "tool_timeout_invalid"),
        ({"exposure": "secret"}, "tool_exposure_invalid"),
        ({"tool_metadata": {"terminal": True}}, "tool_metadata_invalid"),
        ({"parameters": {"type": "array"}}, "tool_schema_invalid"),
        ({"parameters": {"type": "object", "properties": {"a": {"type": "x"}}}}, "tool_schema_invalid"),
        ({"params_json_schema": []}, "tool_schema_invalid"),
    ],
    ids=str,
)
def test_a_wrong_declaration_is_refused_when_the_tool_is_made(options: dict[str, Any], code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FunctionTool(**{"name": "t", "handler": print, **options})
    assert caught.value.code == code


def test_a_tool_takes_its_schema_under_either_name_and_closes_it() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for tool in (
        FunctionTool(name="t", parameters=schema, handler=lambda context, arguments: arguments),
        FunctionTool(name="t", params_json_schema=schema, handler=lambda context, arguments: arguments),
    ):
        assert tool.params_json_schema == {**schema, "additionalProperties": False}
        assert replace(tool, name="u").params_json_schema == tool.params_json_schema
        tool.to_openai_schema()["function"]["parameters"].clear()
        assert tool.params_json_schema
        assert call(tool, a=1).content == '{"a": 1}'
        assert isinstance(tool, Tool)
        assert safety_of(tool) is CallSafety.UNSAFE
    assert "additionalProperties" not in schema


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE")


def test_async_handlers_share_one_loop_thread_and_see_the_callers_context_variables() -> None:
    @function_tool
    async def tool(n: int) -> str:
        await asyncio.sleep(0)
        return f"{threading.current_thread().name} {VARIABLE.get()} {n}"

    VARIABLE.set("mine")
    assert call(tool, n=1).content == "vv-agent-async mine 1"
    assert call(FunctionTool(name="t", handler=lambda context, arguments: tool(2))).content == "vv-agent-async mine 2"
    assert asyncio.run(tool_awaited(tool)) != "vv-agent-async mine 3"


async def tool_awaited(tool: Any) -> Any:
    return await tool(3)


def test_an_async_handler_is_cancelled_with_the_call() -> None:
    token, stopped = CancellationToken(), threading.Event()

    @function_tool
    async def tool() -> None:
        try:
            token.cancel("enough")
            await asyncio.sleep(60)
        finally:
            stopped.set()

    result = call(tool, ToolContext(cancellation=token))
    assert error_of(result)["error"] == "Tool tool was cancelled: enough"
    assert result.error_code == "tool_cancelled"
    assert stopped.wait(5)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_an_async_handler_that_raises_to_end_the_process_only_fails_its_call(error: BaseException) -> None:
    @function_tool
    async def bad() -> None:
        await asyncio.sleep(0)
        raise error

    @function_tool
    async def good() -> int:
        return 1

    name = "SystemExit: 3" if isinstance(error, SystemExit) else "KeyboardInterrupt"
    assert error_of(call(bad)) == {
        "ok": False,
        "error": f"Tool execution failed (bad): {name}",
        "error_code": "tool_execution_failed",
    }
    assert call(good).content == "1"


def test_a_background_task_that_raises_to_end_the_process_leaves_the_other_handlers_alone() -> None:
    async def leave() -> None:
        raise SystemExit

    @function_tool
    async def tool() -> str:
        task = asyncio.create_task(leave())
        while not task.done():
            await asyncio.sleep(0)
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        return type(task.exception()).__name__

    assert call(tool).content == call(tool).content == "SystemExit"


def test_waiting_on_the_loop_thread_itself_is_refused_instead_of_hanging() -> None:
    @function_tool
    async def inner() -> int:
        return 1

    @function_tool
    async def outer() -> str:
        return call(inner).content

    assert "async_deadlock" in error_of(json_result(call(outer)))["error"]


def json_result(result: ToolExecutionResult) -> ToolExecutionResult:
    """The inner result is the outer one's text."""
    content = json.loads(result.content)
    return result.model_copy(update={"error_code": content["error_code"]})


def test_a_forked_child_starts_its_own_loop() -> None:
    async def answer() -> int:
        return 7

    assert run_async(answer()) == 7
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, str(run_async(answer())).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        assert pipe.read() == b"7"
    os.waitpid(child, 0)
    assert run_async(answer()) == 7
