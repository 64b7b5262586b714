"""The stages of compaction below a summary: each is a function from messages to messages."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from vv_agent.memory.config import MemoryConfig
from vv_agent.messages import Message

Keep = Callable[[str, str], str | None]
"""Writes (tool call id, text) into the workspace and gives the path; None when it could not be written."""
CLEARED = "[Old tool result content cleared by microcompact]"
IMAGE_NOTE = "[image payload compacted]"
EXCERPT = "[Tool result compacted]"
"""The first line of a large result that was moved into a file."""
NO_PATH = "N/A"
MAX_DROP_RATIO = 0.95
_PATH = re.compile(r"^artifact_path: (.+)$", re.MULTILINE)
_WARNINGS = {
    "zh-CN": "[记忆提示] 上下文已使用约 {percentage}%。较早的内容可能很快被压缩："
    "请用 compress_memory 记下不能忘记的信息。",
    "en-US": "[Memory warning] About {percentage}% of the context is used. Older content may soon be compacted: write "
    "down with compress_memory what must not be forgotten.",
}
_RECENT_FOR_WARNING = 10


def _tools(messages: Sequence[Message]) -> list[str | None]:
    """The tool whose result each message is: that of the nearest call before it, for ids may be used again."""
    names: dict[str, str] = {}
    tools = []
    for message in messages:
        names.update((call.id, call.name) for call in message.tool_calls)
        tools.append(names.get(message.tool_call_id or ""))
    return tools


def cleared(messages: Sequence[Message], config: MemoryConfig) -> list[Message]:
    """Old tool results of tools that can be called again, without their content. A cycle is a message of the assistant
    and what follows it; the last `microcompact_keep_recent_cycles` are left alone."""
    tools = _tools(messages)
    old = _before_cycles(messages, config.microcompact_keep_recent_cycles)

    def clears(message: Message, tool: str | None) -> bool:
        return (
            message.role == "tool"
            and len(message.content) > config.microcompact_min_result_length
            and tool in config.microcompact_compactable_tools
            and not message.metadata.get("microcompacted")
        )

    marked = enumerate(zip(messages, tools, strict=True))
    return [_cleared(m) if place < old and clears(m, tool) else m for place, (m, tool) in marked]


def _before_cycles(messages: Sequence[Message], kept: int) -> int:
    """The place where the last `kept` cycles begin."""
    begins = [place for place, message in enumerate(messages) if message.role == "assistant"]
    if kept <= 0:
        return len(messages)
    return begins[-kept] if len(begins) >= kept else 0


def _cleared(message: Message) -> Message:
    noted = {**message.metadata, "microcompacted": True, "microcompact_original_chars": len(message.content)}
    return replace(message, content=CLEARED, image_url=None, metadata=noted)


def without_images(messages: Sequence[Message]) -> list[Message]:
    """The messages with a note in place of each image the model has answered to."""
    answered = max((place for place, message in enumerate(messages) if message.role == "assistant"), default=0)
    return [_noted(m) if m.image_url and place < answered else m for place, m in enumerate(messages)]


def _noted(message: Message) -> Message:
    return replace(message, content=f"{message.content}\n{IMAGE_NOTE}".lstrip("\n"), image_url=None)


def moved(
    messages: Sequence[Message], config: MemoryConfig, keep: Keep, *, kept_last: int, large: int | None = None
) -> list[Message]:
    """Large tool results, but for the last ones, moved into files of the workspace. `large` is what the config says, or
    less where even that is too much."""
    places = [place for place, message in enumerate(messages) if message.role == "tool"]
    old = set(places[: max(0, len(places) - kept_last)] if kept_last > 0 else places)
    large = config.tool_result_compact_threshold if large is None else large
    return [
        _moved(m, config, keep) if place in old and len(m.content) > large and not m.content.startswith(EXCERPT) else m
        for place, m in enumerate(messages)
    ]


def _moved(message: Message, config: MemoryConfig, keep: Keep) -> Message:
    text = message.content
    path = keep(message.tool_call_id or "", text) or NO_PATH
    head, tail = text[: config.tool_result_excerpt_head], text[len(text) - config.tool_result_excerpt_tail :]
    hint = "read parts of the file with read_file if you need them" if path != NO_PATH else "call the tool again"
    left_out = max(0, len(text) - len(head) - len(tail))
    content = (
        f"{EXCERPT}\nartifact_path: {path}\ntotal_chars: {len(text)}\ntruncated_chars: {left_out}\nhint: {hint}\n"
        f"--- head ---\n{head}\n--- tail ---\n{tail}"
    )
    return replace(message, content=content) if len(content) < len(text) else message


def artifacts(messages: Sequence[Message]) -> Iterator[str]:
    """The paths of the files that results were moved into."""
    for message in messages:
        if message.role == "tool" and message.content.startswith(EXCERPT):
            yield from (path for path in _PATH.findall(message.content)[:1] if path != NO_PATH)


def warned(messages: Sequence[Message], percentage: int, language: str) -> list[Message]:
    """The messages with a warning at the end, unless there is one among the last."""
    text = _WARNINGS.get(language, _WARNINGS["en-US"])
    opening = text.split("]")[0]
    if any(message.content.startswith(opening) for message in messages[-_RECENT_FOR_WARNING:]):
        return list(messages)
    return [*messages, Message("user", text.format(percentage=percentage))]


HINT = "Continue working on the task."
"""What the program says after a cycle in which the model called no tool."""
PICTURE = "The image you asked for: "
"""How the program shows the image of a tool's result."""


def said_by_program(message: Message) -> bool:
    """Whether the program said this in the user's place: it is not the user's word."""
    return message.role == "user" and (message.content == HINT or message.content.startswith(PICTURE))


def is_warning(message: Message) -> bool:
    """Whether the program said this about its memory."""
    return message.role == "user" and message.content.startswith(tuple(w.split("]")[0] for w in _WARNINGS.values()))


def unread(messages: Sequence[Message]) -> int:
    """The place where what the model has not read begins, with the message of its own that led to it (its calls): the
    results of its last calls, what the user said since. The length of the messages if it has read all."""
    last = max((place for place, message in enumerate(messages) if message.role == "assistant"), default=None)
    if last is None:
        first = next((place for place, message in enumerate(messages) if message.role == "user"), len(messages))
        return min(first + 1, len(messages))
    return last if last + 1 < len(messages) else len(messages)


def dropped(messages: Sequence[Message], ratio: float, keep_recent: int) -> list[Message]:
    """The messages without the oldest ones: an emergency. System messages and the first of the user (the task, or what
    became of it), what the model has not read, and `keep_recent` at least stay; what is left never begins with a tool's
    result."""
    first = next((place for place, message in enumerate(messages) if message.role == "user"), -1)
    kept = [place for place, message in enumerate(messages) if message.role == "system" or place == first]
    rest = [place for place in range(len(messages)) if place not in set(kept)]
    known = sum(place < unread(messages) for place in rest)
    count = min(math.floor(len(rest) * min(ratio, MAX_DROP_RATIO)), max(len(rest) - keep_recent, 0))
    while 0 < count < known and messages[rest[count]].role == "tool":
        count += 1
    return [messages[place] for place in (*kept, *rest[min(count, known) :])]


def tidied(messages: Sequence[Message]) -> list[Message]:
    """Without earlier summaries that stand in system messages, and without empty messages of the assistant."""
    return [
        message
        for place, message in enumerate(messages)
        if not (message.role == "assistant" and message.is_empty)
        and not (place and message.role == "system" and "<Compressed Agent Memory>" in message.content)
    ]
