"""The border between the runtime and a tool's code: whatever comes out of it is a result the model can read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

from vv_agent.errors import ToolError
from vv_agent.results import ToolExecutionResult
from vv_agent.tools.base import ToolContext
from vv_agent.tools.output import error_result, to_result


def bordered(name: str, context: ToolContext, work: Callable[[], Any]) -> ToolExecutionResult:
    """Call `work` and make a result of what it returns or raises, also of what is meant to end a process: only this
    call asked for it.

    Two things pass: that the worker's claim is over (`check_claim` raises), and Ctrl-C, which the main thread gets.
    """
    try:
        return to_result(work(), context.tool_call_id)
    except BaseException as error:
        context.check_claim()
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        return _failure(name, context, error)


def _failure(name: str, context: ToolContext, error: BaseException) -> ToolExecutionResult:
    if isinstance(error, CancelledError):
        reason = context.cancellation.reason or "its asynchronous handler was cancelled"
        return error_result(context.tool_call_id, f"Tool {name} was cancelled: {reason}", "tool_cancelled")
    if not isinstance(error, ToolError):
        text = f"Tool execution failed ({name}): {_told(error)}"
        return error_result(context.tool_call_id, text, "tool_execution_failed")
    if not isinstance(error.code, str):
        text = f"Tool execution failed ({name}): {error.message} (its code {error.code!r} is no text)"
        return error_result(context.tool_call_id, text, "tool_execution_failed")
    details = {**error.details, **({"retryable": True} if error.retryable else {})}
    try:
        return error_result(context.tool_call_id, error.message, error.code, details)
    except ToolError:  # details without a JSON form
        return error_result(context.tool_call_id, error.message, error.code)


def _told(error: BaseException) -> str:
    """The error's text; with its class where the text alone says too little."""
    try:
        text = str(error)
    except Exception:
        text = ""
    name = type(error).__name__
    if not text.strip():
        return name
    return text if isinstance(error, Exception) else f"{name}: {text}"
