"""Chat completion chunks -> parts, for every wire that speaks them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from vv_agent.errors import LlmError
from vv_agent.llm.base import Finish, Part, ReasoningDelta, TextDelta, ToolCallDelta, UsageReport
from vv_agent.llm.failures import from_error_object


class ChunkReader:
    """Reads the chunks of one answer. `where` names endpoint and model in errors; `turn` makes missing call ids unique.

    Feed it each chunk, then ask for `end()`. Usage and the finish reason are held back until then, because providers
    send them in either order and a `Finish` must come last.
    """

    def __init__(self, where: str, turn: int = 0) -> None:
        self._where = where
        self._turn = turn
        self._calls = _CallPositions()
        self._usage: Mapping[str, Any] | None = None
        self._answered = False
        self.finish: str | None = None
        """The finish reason, once it has come: the answer is complete then, whatever happens to the connection."""

    def feed(self, chunk: Any) -> Iterator[Part]:
        """Parts of one chunk (or of a whole unstreamed completion); `LlmError` for an error or a foreign form."""
        match chunk:
            case {"error": error} if error:
                raise from_error_object(error, self._where)
            case {"choices": [{**choice}, *_]}:
                self._answered = True
                self._keep_usage(choice.get("usage"))
                self._keep_usage(chunk.get("usage"))
                yield from self._delta(choice.get("delta") or choice.get("message") or {})
                if reason := choice.get("finish_reason"):
                    self.finish = str(reason)
            case {"usage": usage}:
                self._keep_usage(usage)
            case {"choices": [] | None} | {"id": _}:
                pass
            case _:
                raise LlmError("protocol", f"{self._where}: a chunk is not a chat completion", retryable=True)

    def end(self) -> Iterator[Part]:
        """The last parts; `LlmError` if the answer is not complete."""
        if not self._answered:
            raise LlmError("protocol", f"{self._where}: the answer has no choices", retryable=True)
        if self.finish is None:
            raise LlmError("network", f"{self._where}: the stream ended without a finish reason", retryable=True)
        if self._usage is not None:
            yield UsageReport(self._usage)
        yield Finish(self.finish)

    def _keep_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._usage = usage

    def _delta(self, delta: Any) -> Iterator[Part]:
        if not isinstance(delta, dict):
            raise LlmError("protocol", f"{self._where}: a delta is not an object", retryable=True)
        if reasoning := _text(delta.get("reasoning_content") or delta.get("reasoning")):
            yield ReasoningDelta(reasoning)
        if text := _text(delta.get("content")) or _text(delta.get("refusal")):
            yield TextDelta(text)
        pieces = delta.get("tool_calls") or []
        if not isinstance(pieces, list):
            raise LlmError("protocol", f"{self._where}: tool_calls is not a list", retryable=True)
        for piece in pieces:
            yield self._call(piece)

    def _call(self, piece: Any) -> ToolCallDelta:
        function: Any = piece.get("function") or {} if isinstance(piece, dict) else None
        if not isinstance(function, dict):
            raise LlmError("protocol", f"{self._where}: a tool call is not an object", retryable=True)
        index, call_id, extra = piece.get("index"), _text(piece.get("id")) or None, piece.get("extra_content")
        position, new = self._calls.of(index if isinstance(index, int) else None, call_id)
        arguments = function.get("arguments")
        return ToolCallDelta(
            index=position,
            id=call_id or (f"call_{self._turn + 1}_{position + 1}" if new else None),
            name=_text(function.get("name")) or None,
            arguments=json.dumps(arguments) if isinstance(arguments, dict) else _text(arguments),
            extra_content=extra if isinstance(extra, dict) else None,
        )


class _CallPositions:
    """Which call a piece belongs to.

    The provider's index decides, but a new id always starts a new call: some providers send no index, and some
    number every piece 0.
    """

    def __init__(self) -> None:
        self._ids: list[str | None] = []
        self._latest: dict[int | None, int] = {}

    def of(self, index: int | None, call_id: str | None) -> tuple[int, bool]:
        """(position among the calls, whether the call is new)."""
        position = self._latest.get(index)
        if position is None or (call_id is not None and self._ids[position] not in (None, call_id)):
            if call_id in self._ids and call_id is not None:
                position = self._ids.index(call_id)
            else:
                self._ids.append(call_id)
                self._latest[index] = len(self._ids) - 1
                return len(self._ids) - 1, True
        self._latest[index] = position
        self._ids[position] = self._ids[position] or call_id
        return position, False


def _text(value: Any) -> str:
    """Text of a content field: a string, or a list of text blocks."""
    if isinstance(value, list):
        return "".join(_text(block.get("text")) for block in value if isinstance(block, dict))
    return value if isinstance(value, str) else ""
