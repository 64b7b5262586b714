"""Tools at the top level of a module, as a program has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vv_agent.tools.function import function_tool

if TYPE_CHECKING:
    from decimal import Decimal

    from vv_agent.tools.base import ToolContext


@function_tool
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@function_tool
def who(context: ToolContext) -> Decimal:
    """Name the call."""
    return context.tool_call_id  # type: ignore[return-value]


add.__vv_version__ = "3"
