"""The session memory: facts a model extracts from a conversation, shown at the end of the system message."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from vv_agent.errors import ToolError
from vv_agent.memory.summary import first_array, shortened, within
from vv_agent.memory.tokens import estimate
from vv_agent.messages import Message
from vv_agent.workspace.base import WorkspaceBackend

CATEGORIES = ("user_intent", "decision", "file_change", "error_fix", "key_fact")
FILE = "session_memory.json"
_OPEN, _CLOSE = "<Session Memory>", "</Session Memory>"
_BLOCK = re.compile(rf"\n*{re.escape(_OPEN)}.*?{re.escape(_CLOSE)}", re.DOTALL)
_SAFE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_PROMPT = {
    "en-US": "Read this part of a conversation between a user, an agent and its tools. Answer with a JSON array and "
    "nothing else: the facts worth remembering for the rest of the work, each an object with category (user_intent, "
    "decision, file_change, error_fix or key_fact), content (one sentence; names, numbers and paths word for word) and "
    "importance (1 to 10). An empty array if there are none.",
    "zh-CN": "阅读用户、智能体及其工具之间的这段对话。只回答一个 JSON 数组：后续工作值得记住的事实。"
    "每项是一个对象，含 category（user_intent、decision、file_change、error_fix 或 key_fact）、"
    "content（一句话，名称、数字、路径原样保留）和 importance（1 到 10）。没有就回答空数组。",
}  # fmt: skip


@dataclass(frozen=True)
class SessionMemoryConfig:
    """When facts are extracted, and how many are kept. Tokens are those of the conversation."""

    min_tokens: int = 10_000
    max_tokens: int = 40_000
    """Tokens the facts may have when they are shown; the least important, then the oldest go first."""
    min_text_messages: int = 5
    growth_ratio: float = 0.5
    """Part of `min_tokens` the conversation must grow by until facts are extracted again."""
    storage_dir: str = ".memory/session"
    language: str = "en-US"


@dataclass(frozen=True)
class SessionMemoryEntry:
    """One fact. `importance` is 1 to 10, `source_cycle` the cycle it was extracted in."""

    category: str
    content: str
    source_cycle: int = 0
    importance: int = 5

    @classmethod
    def read(cls, value: Any, cycle: int) -> SessionMemoryEntry | None:
        """What a model, a file or a host wrote; None if it is no fact."""
        value = {"content": value} if isinstance(value, str) else value
        if not isinstance(value, Mapping) or not isinstance(value.get("content"), str) or not value["content"].strip():
            return None
        category, importance, source = (value.get(name) for name in ("category", "importance", "source_cycle"))
        weight = importance if isinstance(importance, int) and not isinstance(importance, bool) else 5
        return cls(
            category if category in CATEGORIES else "key_fact",
            shortened(value["content"].strip().replace(_OPEN[1:], _OPEN[1:-1])).encode("utf-8", "replace").decode(),
            source if isinstance(source, int) else cycle,
            min(max(weight, 1), 10),
        )


@dataclass(frozen=True)
class SessionMemoryState:
    """The facts, and where the last extraction stood."""

    entries: tuple[SessionMemoryEntry, ...] = ()
    initialized: bool = False
    last_message_index: int = -1
    last_tokens: int = 0

    def to_wire(self) -> dict[str, Any]:
        return {**asdict(self), "entries": [asdict(entry) for entry in self.entries]}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> SessionMemoryState:
        entries = (SessionMemoryEntry.read(value, 0) for value in wire.get("entries", ()))
        known = {name: wire[name] for name in ("initialized", "last_message_index", "last_tokens") if name in wire}
        return cls(tuple(entry for entry in entries if entry), **known)


@dataclass
class SessionMemory:
    """Keeps the facts of one conversation. `ask` sends a prompt to a model; without it nothing is extracted. With a
    `workspace` the facts also lie in a file below `storage_dir`/`scope`; `check` is called before it is written."""

    config: SessionMemoryConfig = field(default_factory=SessionMemoryConfig)
    ask: Callable[[Sequence[Message]], str | None] | None = None
    workspace: WorkspaceBackend | None = None
    scope: str = "default"
    state: SessionMemoryState = field(default_factory=SessionMemoryState)
    check: Callable[[], None] = lambda: None
    room: int = sys.maxsize
    """Tokens a request for facts may have."""

    @property
    def path(self) -> str:
        """Where the facts lie in the workspace."""
        safe = _SAFE.fullmatch(self.scope)
        name = self.scope if safe else hashlib.sha256(self.scope.encode("utf-8", "replace")).hexdigest()[:32]
        return f"{self.config.storage_dir}/{name}/{FILE}"

    def load(self) -> None:
        """Add the facts that lie in the file; one that cannot be read has none."""
        if self.workspace is None:
            return
        try:
            stored = json.loads(self.workspace.read_text(self.path)) if self.workspace.is_file(self.path) else {}
            self.add(stored.get("entries", ()), 0)
        except Exception:  # a damaged file, a storage that does not answer: the run goes on without
            return

    def add(self, facts: Sequence[Any], cycle: int) -> list[SessionMemoryEntry]:
        """Merge facts by category and content, and drop what is too much; the facts that were read."""
        new = [entry for value in facts if (entry := SessionMemoryEntry.read(value, cycle)) is not None]
        merged = {_identity(entry): entry for entry in self.state.entries}
        for entry in new:
            before = merged.get(_identity(entry))
            merged[_identity(entry)] = replace(
                entry, importance=max(entry.importance, before.importance if before else 1)
            )
        self.state = replace(self.state, entries=_pruned(tuple(merged.values()), self.config.max_tokens))
        return new

    def should_extract(self, current_tokens: int, message_count: int) -> bool:
        """Whether it is time. `message_count` counts messages with text of the user and the assistant."""
        config = self.config
        if not self.state.initialized:
            return current_tokens >= config.min_tokens and message_count >= config.min_text_messages
        growth = max(1, math.floor(config.min_tokens * config.growth_ratio))
        return current_tokens - self.state.last_tokens >= growth

    def extract(
        self, messages: Sequence[Message], *, current_cycle: int, current_tokens: int
    ) -> list[SessionMemoryEntry]:
        """Ask for the facts of the messages that were not looked at yet, keep them, and give them. An answer that
        cannot be read has none; without an answer these messages are looked at again when there are more."""
        if self.ask is None:
            return []
        raw = self.ask(self.prompt(messages))
        new = self.add(first_array(raw or ""), current_cycle)
        index = self.state.last_message_index if raw is None else len(messages) - 1
        self.state = replace(self.state, initialized=True, last_message_index=index, last_tokens=current_tokens)
        self.save()
        return new

    def prompt(self, messages: Sequence[Message]) -> tuple[Message, Message]:
        """The request for facts; long texts are cut."""
        text = within(strip(messages)[self.state.last_message_index + 1 :], self.room)
        return Message("system", _PROMPT.get(self.config.language, _PROMPT["en-US"])), Message("user", text)

    def save(self) -> None:
        """Write the file; where that fails the facts are in the run's record all the same."""
        if self.workspace is None:
            return
        data = json.dumps(self.state.to_wire(), ensure_ascii=False, indent=1).encode("utf-8", "replace")
        try:
            self.workspace.write_bytes(self.path, data, before_rename=self.check)
        except (OSError, ToolError):
            return

    def on_compaction(self, *, current_tokens: int | None = None) -> None:
        """The messages are others now: look at all of them next time, and count growth from here."""
        baseline = self.state.last_tokens if current_tokens is None else current_tokens
        self.state = replace(self.state, initialized=True, last_message_index=-1, last_tokens=baseline)

    def shorter(self, current_tokens: int) -> None:
        """The conversation was made shorter: growth counts from here."""
        self.state = replace(self.state, last_tokens=min(self.state.last_tokens, current_tokens))

    def render_as_system_context(self) -> str:
        """The facts as the block of the system message; "" if there are none."""
        lines = []
        for category in CATEGORIES:
            facts = [entry.content for entry in self.state.entries if entry.category == category]
            lines += [f"## {category}", *(f"- {fact}" for fact in facts)] if facts else []
        return "\n".join([_OPEN, *lines, _CLOSE]) if lines else ""

    def applied(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with exactly this block in the first system message."""
        bare, block = strip(messages), self.render_as_system_context()
        if not block:
            return bare
        place = next((n for n, message in enumerate(bare) if message.role == "system"), None)
        if place is None:
            return [Message("system", block), *bare]
        told = bare[place]
        bare[place] = replace(told, content=f"{told.content}\n\n{block}".lstrip("\n"))
        return bare


def strip(messages: Sequence[Message]) -> list[Message]:
    """The messages without the block."""
    return [
        replace(message, content=_BLOCK.sub("", message.content))
        if message.role == "system" and _OPEN in message.content
        else message
        for message in messages
    ]


def text_messages(messages: Sequence[Message]) -> int:
    """Messages with text of the user and the assistant."""
    return sum(message.role in ("user", "assistant") and bool(message.content.strip()) for message in messages)


def _identity(entry: SessionMemoryEntry) -> tuple[str, str]:
    return entry.category, entry.content.casefold()


def _pruned(entries: tuple[SessionMemoryEntry, ...], max_tokens: int) -> tuple[SessionMemoryEntry, ...]:
    """Without the least important, then the oldest, until they fit."""
    sizes = {_identity(entry): estimate(entry.content) + 1 for entry in entries}
    total = sum(sizes.values())
    kept = dict.fromkeys(entries)
    for entry in sorted(entries, key=lambda entry: (entry.importance, entry.source_cycle)):
        if total <= max_tokens:
            break
        total -= sizes[_identity(entry)]
        del kept[entry]
    return tuple(kept)
