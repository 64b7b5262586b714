"""A history from outside, made fit to be sent: providers refuse one whose tool calls and results do not match."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import takewhile

from vv_agent.messages import Message, ToolCall


def sanitized(messages: Iterable[Message]) -> list[Message]:
    """The messages without what no provider takes: calls without results, results without calls, empty turns.

    Of a turn those calls stay whose results follow it directly in the same order, up to the first that does not match;
    what has a blank or repeated id does not count.
    """
    groups: list[list[Message]] = []  # each message with the tool results right behind it
    for message in messages:
        if message.role == "tool" and groups:
            groups[-1].append(message)
        elif message.role != "tool" and not (message.role == "assistant" and message.is_empty):
            groups.append([message])
    return [message for first, *results in groups for message in _matched(first, results)]


def _matched(message: Message, results: list[Message]) -> Iterator[Message]:
    """A message, and of the results behind it those that answer its calls."""
    calls: dict[str, ToolCall] = {}
    given: dict[str, Message] = {}
    for call in message.tool_calls:
        calls.setdefault(call.id.strip() and call.id, call)
    for result in results:
        given.setdefault((result.tool_call_id or "").strip() and str(result.tool_call_id), result)
    pairs = zip(filter(None, calls), filter(None, given), strict=False)
    answered = [call_id for call_id, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    turn = replace(message, tool_calls=tuple(calls[call_id] for call_id in answered))
    if message.role != "assistant" or not turn.is_empty:
        yield turn
        yield from (given[call_id] for call_id in answered)
