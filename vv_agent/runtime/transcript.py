"""The transcript of a run: its log, decoded. The model request and the result are both read from it.

A log entry is one save's worth of items. An item is a small msgpack list whose first element says what it is:

    ["m", cycle, message]                     a message of the system, the user or the program
    ["i", segment, message, before?]          the input that began a segment; `before` are the messages that another
                                              agent, who takes over, is shown instead of all that was
    ["s", segment]                            a segment without an input of its own begins (the budget was raised)
    ["a", cycle, message, usage, source, cache, finish]   the receipt of a model call
    ["b", cycle]                              the program's messages before this cycle's model call are all there
    ["n", cycle, [name, ...]]                 the tools the model was shown in this cycle, where a hook changed them
    ["h", cycle, position, call, result?]     what hooks made of a call, or the result they gave in its place
    ["v", cycle, text, error?]                the repaired output of the run, or why there is none
    ["w", {path: sha}]                        files the model knows whole, by the receipt that follows
    ["t", cycle, position, result, reason?]   the receipt of a tool call; the reason, if the agent's tool_use_behavior
                                              made it finish the run
    ["c", segment, end]                       how a segment will end, once its messages are in the session
    ["p", cycle, position]                    the image of a tool's result, shown to a model that takes images
    ["x", cycle, usage, source, cache]        the receipt of another model call of the cycle: a summary, an extraction
    ["y", state]                              the session memory from here on
    ["k", cycle, stage, {place: message}]     a compaction put these messages in the place of others
    ["r", cycle, stage, kept]                 a compaction put these messages in the place of all: who goes on with the
                                              run reads the log from here
    ["e", segment, end]                       how a segment ended; its answer is ["text", cycle],
                                              ["result", cycle, position] or a plain text

Texts stand here and nowhere else; events and results refer to them by cycle and position. The stage of a compaction is
0 for the pass of every cycle, n for the n-th after the model refused the prompt as too long.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

from vv_agent.errors import CannotServe, StoreError
from vv_agent.memory.stages import PICTURE
from vv_agent.memory.tokens import estimate_message
from vv_agent.messages import Message, ToolCall

SCHEMA = 1
"""Number of the record's forms; the current and (once there is one) the previous are read."""
_COMPRESSED = 0x80
_COMPRESS_FROM = 4096
_MAX_PLAIN = 1 << 30
_WORTH_A_RESET = 8
"""A reset that is not needed is made where this many times its size is not read again for it: what resets add to a log
stays below an eighth."""


def pack(value: Any) -> bytes:
    """Bytes of a stored value: one byte of schema number and compression flag, then msgpack. From 4 KB on zlib level 1
    saves more than it costs (measured); below it does not."""
    body: bytes = msgpack.packb(value)
    if len(body) >= _COMPRESS_FROM:
        squeezed = zlib.compress(body, 1)
        if len(squeezed) < len(body):
            return bytes([SCHEMA | _COMPRESSED]) + squeezed
    return bytes([SCHEMA]) + body


def unpack(data: bytes, what: str) -> Any:
    """What `pack` wrote. `CannotServe` for a schema this version does not know, `store_corrupt` for damage."""
    if not data or data[0] & ~_COMPRESSED != SCHEMA:
        number = data[0] & ~_COMPRESSED if data else "none"
        raise CannotServe(
            "checkpoint_schema_unsupported",
            f"{what} has schema {number}, this version reads {SCHEMA}; upgrade vv-agent",
        )
    body = data[1:]
    try:
        if data[0] & _COMPRESSED:
            stream = zlib.decompressobj()
            body = stream.decompress(body, _MAX_PLAIN)
            if stream.unconsumed_tail:
                raise ValueError("it is larger than 1 GiB")
        return msgpack.unpackb(body, strict_map_key=False)
    except (ValueError, zlib.error, msgpack.UnpackException) as error:
        raise StoreError("store_corrupt", f"{what} cannot be read ({error}); restore a backup") from error


@dataclass(slots=True)
class Turn:
    """One cycle as far as it is written: the model's message and the tool results by position in the batch."""

    cycle: int
    message: Message
    usage: Mapping[str, Any] | None
    usage_source: str | None
    cache_status: str | None
    finish_reason: str
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    answered: int = 0
    """Calls from the first one on whose results the model can read."""
    hooked: dict[int, tuple[ToolCall, dict[str, Any] | None]] = field(default_factory=dict)
    """By position, what hooks made of a call: the call, or a result in its place."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        if not self.hooked:
            return self.message.tool_calls
        return tuple(map(self.call, range(len(self.message.tool_calls))))

    def take(self, position: int, result: dict[str, Any], reason: str | None = None) -> None:
        """Note the result of a call, and the reason if it makes the run finish."""
        self.results[position] = result
        if reason is not None:
            self.reasons[position] = reason

    def call(self, position: int) -> ToolCall:
        return self.hooked[position][0] if position in self.hooked else self.message.tool_calls[position]


class Transcript:
    """The decoded log, extended entry by entry. Reading it never changes it; only `extend` does.

    `whole` is False for one that begins at a reset: it has all that the run needs to go on, but not what was before.
    """

    def __init__(self, *, whole: bool = True) -> None:
        self.whole = whole
        self.messages: list[Message] = []
        """What the model is shown, in order: as it was said, or what a compaction made of it."""
        self.history: list[Message] = []
        """What was said, in order; append only."""
        self.estimated = 0
        """Tokens of `messages`, by the fast estimate."""
        self.measured: tuple[Mapping[str, Any], int] | None = None
        """The last usage a provider reported, and what was estimated for that prompt."""
        self.turn_n = 0
        """Turns of the whole run."""
        self.read_bytes = 0
        """Bytes of the entries that somebody who goes on with the run has to read."""
        self.compactions: dict[int, int] = {}
        """The last stage of compaction of each cycle that had one."""
        self.asides: list[tuple[int, Any, Any, Any]] = []
        """Cycle, usage, source and cache status of the model calls beside the turns."""
        self.session: dict[str, Any] = {}
        """The state of the session memory."""
        self.turns: dict[int, Turn] = {}
        self.ends: dict[int, Mapping[str, Any]] = {}
        self.candidates: dict[int, Mapping[str, Any]] = {}
        self.planned: dict[int, frozenset[str]] = {}
        """By cycle, the tools the model was shown, where a hook changed them."""
        self.repairs: dict[int, tuple[str | None, str | None]] = {}
        """By cycle, the repaired output of the run, or why there is none."""
        self.last_text: str | None = None
        """The last non-blank assistant text."""
        self.inputs: dict[int, str] = {}
        self._first: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        self.prepared: set[int] = set()
        """Cycles whose before-cycle messages are in."""
        self.baselines: dict[str, str] = {}
        """SHA-256 by path of the files the model knows (`tools.builtin.baselines`)."""
        self.entry_n = 0
        self.identity = b""
        """Hash chain over the messages: what a model request is identified by, without reading them again."""

    def extend(self, seq: int, body: bytes) -> None:
        """Take in one log entry. Who begins at a reset does not know what the items before it in its entry are about;
        it holds what became of them."""
        self.read_bytes += len(body)
        items = unpack(body, f"log entry {seq}")
        if not self.whole and not self.entry_n:
            reset = max((place for place, item in enumerate(items) if item[0] == "r"), default=0)
            items = [*(item for item in items[:reset] if item[0] == "x"), *items[reset:]]
        for item in items:
            self.add(item)
        self.entry_n = max(self.entry_n, seq)

    def add(self, item: Sequence[Any]) -> None:
        """Take in one item."""
        match item:
            case ["m", _, wire]:
                self._append(wire)
            case ["i" | "s", segment, *wire]:
                self._begin(segment, *wire)
            case ["a", cycle, wire, usage, source, cache, finish]:
                self._turn(wire, Turn(cycle, Message.from_wire(wire), usage, source, cache, finish))
            case ["w", seen]:
                self.baselines.update(seen)
            case ["b" | "n" | "h" | "v", *_]:
                self._hosts_part(item)
            case ["t", cycle, position, result, *reason]:
                self.turns[cycle].take(position, result, *reason)
                self._answer(self.turns[cycle])
            case ["p", cycle, position]:
                self._append(picture(self.turns[cycle].results[position]).to_wire())
            case ["c" | "e", segment, end]:
                (self.ends if item[0] == "e" else self.candidates)[segment] = end
            case _:
                self._add_memory(item)

    def _add_memory(self, item: Sequence[Any]) -> None:
        match item:
            case ["x", cycle, usage, source, cache]:
                self.asides.append((cycle, usage, source, cache))
            case ["y", state]:
                self.session = state
            case ["k", cycle, stage, changed, *more]:
                self.compactions[cycle] = stage
                self._replace(changed)
                for wire in more[0] if more else ():  # shown to the model, and said by nobody
                    self._show(wire, Message.from_wire(wire))
            case ["r", cycle, stage, kept]:
                self.compactions[cycle] = stage
                self._reset(cycle, kept)
            case _:
                raise StoreError("store_corrupt", f"the log holds an unknown item {item[:1]!r}")

    def _hosts_part(self, item: Sequence[Any]) -> None:
        """What the host's code made of the run."""
        match item:
            case ["b", cycle]:
                self.prepared.add(cycle)
            case ["n", cycle, names]:
                self.planned[cycle] = frozenset(names)
            case ["h", cycle, position, call, result]:
                self.turns[cycle].hooked[position] = (ToolCall.from_wire(call), result)
            case ["v", cycle, text, error]:
                self.repairs[cycle] = (text, error)

    def _answer(self, turn: Turn) -> None:
        """The model reads results in the order of its calls, whichever is there first."""
        while (result := turn.results.get(turn.answered)) is not None:
            turn.answered += 1
            message = tool_message(result)
            self._append(message.to_wire(), message)

    def _turn(self, wire: Mapping[str, Any], turn: Turn) -> None:
        if turn.usage:
            self.measured = turn.usage, self.estimated
        if not turn.message.is_empty:
            self._append(wire, turn.message)
        self.turn_n += 1
        self.turns[turn.cycle] = turn
        if turn.message.content.strip():
            self.last_text = turn.message.content

    def _begin(
        self, segment: int, wire: Mapping[str, Any] | None = None, before: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """A segment begins with its input, or goes on with that of the one before."""
        if before is not None:
            self.messages, self.estimated, self.identity, self.last_text = [], 0, b"", None
            self.measured = None  # another agent goes on, whose model and tools count otherwise
            if self.session:
                self.session = {**self.session, "last_message_index": -1, "last_tokens": 0}
            for message in before:
                self._append(message)
        self._first[segment] = len(self.history)
        self.inputs[segment] = self.inputs.get(segment - 1, "") if wire is None else self._append(wire).content
        self._begun[segment] = len(self.history)

    def answer(self, segment: int) -> str | None:
        """The final answer (or wait reason) of a segment that ended."""
        return self.resolve(self.ends[segment].get("answer") if segment in self.ends else None)

    def resolve(self, answer: Sequence[Any] | str | None) -> str | None:
        """The text an end refers to."""
        match answer:
            case ["text", cycle]:
                return self.turns[cycle].message.content
            case ["result", cycle, position]:
                return tool_answer(self.turns[cycle].results[position])
            case str() | None:
                return answer
            case _:
                raise StoreError("store_corrupt", f"an end refers to {answer!r}")

    def partial(self, segment: int) -> str | None:
        """The last text of a segment that ended without completing."""
        end = self.ends.get(segment)
        return self.partial_of(end) if end is not None and end["status"] != "completed" else None

    def partial_of(self, end: Mapping[str, Any]) -> str | None:
        """The text an end keeps: that of the answer it did not become, else the last one."""
        return self.resolve(end["partial"]) if end.get("partial") is not None else self.last_text

    def new_items(self, segment: int) -> tuple[Message, ...]:
        """The messages a segment added after its input."""
        return tuple(self.history[self._begun.get(segment, len(self.history)) :])

    def items(self, segment: int) -> tuple[Message, ...]:
        """What a segment adds to a session: its input and the messages after it, none of the system."""
        first = self._first.get(segment, len(self.history))
        return tuple(message for message in self.history[first:] if message.role != "system")

    def knows(self, segment: int) -> bool:
        """Whether all messages of the segment are here."""
        return self.whole or segment in self._first

    def rewritten(self, cycle: int, stage: int, messages: Sequence[Message]) -> list[list[Any]]:
        """The items by which these messages take the place of those the model is shown: only what differs, or all of
        them where they are fewer, or much less than would have to be read otherwise."""
        if len(messages) >= (known := len(self.messages)):
            pairs = enumerate(zip(self.messages, messages, strict=False))
            changed = {place: new.to_wire() for place, (old, new) in pairs if new is not old and new != old}
            if not changed or self.read_bytes < _WORTH_A_RESET * len(pack([m.to_wire() for m in messages])):
                return [["k", cycle, stage, changed, [message.to_wire() for message in messages[known:]]]]
        segment = max(self.inputs, default=0)
        kept = {
            "messages": [message.to_wire() for message in messages], "text": self.last_text, "turns": self.turn_n,
            "segment": segment, "input": self.inputs.get(segment, ""), "seen": self.baselines,
            "prepared": cycle in self.prepared, "measured": self.measured, "session": self.session,
        }  # fmt: skip
        return [["r", cycle, stage, kept]]

    def _append(self, wire: Mapping[str, Any], decoded: Message | None = None) -> Message:
        message = decoded or Message.from_wire(wire)
        self.history.append(message)
        self._show(wire, message)
        return message

    def _show(self, wire: Any, message: Message) -> None:
        self.messages.append(message)
        self.estimated += estimate_message(message)
        self.identity = hashlib.sha256(self.identity + msgpack.packb(wire)).digest()

    def _replace(self, changed: Mapping[int, Mapping[str, Any]]) -> None:
        for place, wire in changed.items():
            message = Message.from_wire(wire)
            self.estimated += estimate_message(message) - estimate_message(self.messages[place])
            self.messages[place] = message
        if changed:
            self.identity = hashlib.sha256(self.identity + msgpack.packb(changed)).digest()

    def _reset(self, cycle: int, kept: Mapping[str, Any]) -> None:
        self.messages, self.estimated, self.identity, self.read_bytes = [], 0, b"", 0
        for wire in kept["messages"]:
            self._show(wire, Message.from_wire(wire))
        self.last_text, self.turn_n, self.session = kept["text"], kept["turns"], kept["session"]
        self.inputs[kept["segment"]] = kept["input"]
        self.baselines = dict(kept["seen"])
        self.measured = tuple(kept["measured"]) if kept["measured"] else None
        if kept["prepared"]:
            self.prepared.add(cycle)


def tool_message(result: Mapping[str, Any]) -> Message:
    """The message in which the model reads a tool's result."""
    return Message(
        role="tool", content=result["content"], tool_call_id=result["tool_call_id"], image_url=result.get("image_url")
    )


def picture(result: Mapping[str, Any]) -> Message:
    """The message that shows the image of a tool's result."""
    where = result.get("image_path") or result["image_url"]
    return Message(role="user", content=f"{PICTURE}{where}", image_url=result["image_url"])


def tool_answer(result: Mapping[str, Any]) -> str:
    """What a finishing or waiting tool result says (spec/18): `final_message` or `question` of its metadata, else the
    `message` of a JSON content, else the content."""
    metadata = result.get("metadata") or {}
    for name in ("final_message", "question"):
        if isinstance(metadata.get(name), str):
            return str(metadata[name])
    try:
        content = json.loads(result["content"])
    except ValueError:
        content = None
    if result["directive"] == "finish" and isinstance(content, dict) and isinstance(content.get("message"), str):
        return str(content["message"])
    return str(result["content"])


def message_item(cycle: int, message: Message) -> list[Any]:
    return ["m", cycle, message.to_wire()]


def clean(text: str) -> str:
    """Text without lone surrogates, which neither UTF-8 nor the store's encoding can hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text


def storable(value: Any) -> Any:
    """A JSON value as the store can hold it: no lone surrogates, integers beyond 64 bits as floats, text keys."""
    match value:
        case str():
            return clean(value)
        case bool() | None | float():
            return value
        case int():
            return value if -(2**63) <= value < 2**64 else float(value)
        case Mapping():
            return {clean(str(name)): storable(item) for name, item in value.items()}
        case list() | tuple():
            return [storable(item) for item in value]
        case _:
            return clean(str(value))


def log_entry(items: Iterable[Sequence[Any]]) -> bytes:
    """The bytes of one log entry."""
    return pack(list(items))
