"""One model call of a cycle: the request, the live text, and what follows when its outcome is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

from vv_agent.cancellation import CancellationToken
from vv_agent.checkpoint.identity import model_operation_id
from vv_agent.errors import LlmError, VVAgentError
from vv_agent.llm.base import (
    Model,
    ModelRequest,
    ModelResponse,
    Part,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallPreview,
    collect,
)
from vv_agent.messages import Message, ToolCall
from vv_agent.runtime import hooks
from vv_agent.runtime.run import Run
from vv_agent.runtime.transcript import clean
from vv_agent.runtime.waiting import heed, submit, wait_for

RISK = "duplicate_model_request_and_cost"
MAX_LOST = 3
"""A model call whose outcome was lost this often in one cycle fails the run."""
_GRACE = 2.0
"""Seconds a cancelled client gets to let go of its socket (DESIGN section 6)."""


def operation_id(run: Run, slot: str = "main") -> str:
    """The id of the cycle's main model call, or of another one, the same in every attempt."""
    return model_operation_id(run.cycle, slot)


Asked: TypeAlias = tuple[Sequence[Message], Sequence[Mapping[str, Any]]]
"""Messages and tool schemas."""


def request_of(run: Run, asked: Asked, cancellation: CancellationToken) -> ModelRequest:
    """The request of the open cycle; without hooks, messages are the transcript itself, not a copy."""
    program, (messages, tools) = run.program, asked
    return ModelRequest(
        model_id=program.resolved.model_id,
        messages=messages,
        tools=tools,
        settings=program.settings,
        turn=run.transcript.turn_n,
        metadata={"run_id": run.body.run_id, "trace_id": run.body.trace_id, "cycle_index": run.index},
        cancellation=cancellation,
    )


def call_model(run: Run) -> ModelResponse:
    """Call the model, again if the outcome was lost and the policy allows; raises `LlmError`, `RetryLater`,
    `RunCancelled`, `ClaimLost`, `Stopping` or `HookFailed`."""
    asked = hooks.before_llm(run)
    response = hooks.after_llm(run, _until_known(run, "main", lambda: _once(run, asked)), tidy)
    hooks.note_shown(run, asked[1])
    return response


def call_aside(run: Run, slot: str, model: Model, request: ModelRequest) -> ModelResponse:
    """The same for a model call beside the turn: nobody sees its text as it comes."""

    def once() -> ModelResponse:
        attempt = replace(request, cancellation=CancellationToken())
        return _carried_out(run, model, attempt, lambda part: None)

    return _until_known(run, slot, once)


def _until_known(run: Run, slot: str, call: Callable[[], ModelResponse]) -> ModelResponse:
    for attempt in range(1, MAX_LOST + 1):
        try:
            return call()
        except LlmError as error:
            lost = not error.definite and error.retryable
            if not lost or attempt == MAX_LOST or run.program.reconciles_models:
                raise
            warn_of_duplicate(run, slot)
            if slot == "main":
                reset_stream(run)
    raise AssertionError("unreachable")


def warn_of_duplicate(run: Run, slot: str = "main") -> None:
    """Show that a model call is made again that may already have been paid."""
    if not run.body.checkpointed:
        run.emit("diagnostic", level="warning", code="model_retry_duplicate_risk", details={"risk": RISK})
        return
    run.emit(
        "model_retry_duplicate_risk",
        checkpoint_key=run.key,
        operation_id=operation_id(run, slot),
        operation_kind="model",
        risk=RISK,
    )


def reset_stream(run: Run) -> None:
    """Tell readers to drop the text of an attempt that was lost."""
    run.emit("diagnostic", level="info", code="stream_reset", details={"attempt": run.attempt})


def _once(run: Run, asked: Asked) -> ModelResponse:
    live = _LiveText(run)
    try:
        return _carried_out(run, run.program.model, request_of(run, asked, CancellationToken()), live.show)
    finally:
        live.close()


def _carried_out(run: Run, model: Model, request: ModelRequest, show: Callable[[Part], object]) -> ModelResponse:
    run.hold.check()
    heed(run)
    run.asked = True

    def work() -> ModelResponse:
        with _probed(run), _border(request.model_id):
            return tidy(collect(model.stream(request), show))

    call = submit(run, work, here=True)
    wait_for(run, [call], request.cancellation, grace=_GRACE)
    return call.result()


@contextmanager
def _border(model_id: str) -> Iterator[None]:
    """What somebody else's client raises or answers is a failed model call, whose outcome nobody knows."""
    try:
        yield
    except VVAgentError:
        raise
    except (Exception, SystemExit) as error:
        raise LlmError("client", f"the client of {model_id!r} failed: {error!r}") from error


@contextmanager
def _probed(run: Run) -> Iterator[None]:
    run.engine.probe("model", "before")
    yield
    run.engine.probe("model", "after")


def tidy(response: ModelResponse) -> ModelResponse:
    """The response with texts that can be stored, and call ids that are there and differ from each other."""
    seen: set[str] = set()
    calls = []
    for position, call in enumerate(response.tool_calls, 1):
        call_id = clean(call.id).strip() or f"call_{position}"
        while call_id in seen:
            call_id = f"{call_id}_{position}"
        seen.add(call_id)
        calls.append(
            ToolCall(call_id, clean(call.name).strip() or "unknown", clean(call.arguments), call.extra_content)
        )
    return ModelResponse(
        content=clean(response.content),
        tool_calls=tuple(calls),
        reasoning=clean(response.reasoning) if response.reasoning else None,
        finish_reason=response.finish_reason,
        usage=response.usage,
    )


class _LiveText:
    """Turns parts into live events, until the call is over; a thread that was abandoned says nothing more."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._open = True
        self._emitting = threading.Lock()
        self._calls: dict[int, list[str | int]] = {}
        self._previewed: set[str] = set()

    def close(self) -> None:
        with self._emitting:
            self._open = False

    def show(self, part: Part) -> None:
        with self._emitting:
            if self._open:
                self._show(part)

    def _show(self, part: Part) -> None:
        match part:
            case TextDelta(text, chars, tokens):
                self._run.emit("assistant_delta", delta=clean(text), content_chars=chars, estimated_tokens=tokens)
            case ReasoningDelta(text, chars, tokens):
                self._run.emit("reasoning_delta", delta=clean(text), reasoning_chars=chars, estimated_tokens=tokens)
            case ToolCallDelta() if part.id not in self._previewed:
                self._tool_call(part)
            case ToolCallPreview():
                self._preview(part)

    def _preview(self, part: ToolCallPreview) -> None:
        self._previewed.add(part.id)
        self._run.emit(
            "model_tool_call_started" if part.first else "model_tool_call_progress",
            tool_call_id=clean(part.id), tool_call_index=part.index, tool_name=clean(part.name),
            arguments_chars=part.arguments_chars, estimated_tokens=part.estimated_tokens,
        )  # fmt: skip

    def _tool_call(self, part: ToolCallDelta) -> None:
        first = part.index not in self._calls
        state = self._calls.setdefault(part.index, [part.id or f"call_{part.index + 1}", part.name or "", 0])
        state[2] = int(state[2]) + len(part.arguments)
        if not state[1]:
            state[1] = part.name or ""
        if not state[1]:
            return
        self._run.emit(
            "model_tool_call_started" if first else "model_tool_call_progress",
            tool_call_id=state[0], tool_call_index=part.index, tool_name=state[1], arguments_chars=state[2],
        )  # fmt: skip
