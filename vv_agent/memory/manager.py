"""The manager: one pass of compaction over a list of messages, cheap stages first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from vv_agent.memory import stages, summary
from vv_agent.memory.config import Capacity, MemoryConfig, capacity
from vv_agent.memory.session import SessionMemory, strip, text_messages
from vv_agent.memory.tokens import count_messages, estimate, estimate_message
from vv_agent.messages import Message
from vv_agent.workspace.base import WorkspaceBackend

Mode = Literal["none", "micro", "structural", "summary", "emergency"]
_NONE: Mode = "none"
MAX_FILES, FILE_TOKENS, FILES_TOKENS = 10, 5_000, 30_000
"""Files put back after a summary, and tokens of each and of all; a quarter of the threshold at most."""
_BYTES = 8
"""Bytes of a token at most."""
_WORTH_A_SUMMARY = 8
"""What could be summarised is at least the room's 8th: else a long task would have each cycle pay for a summary."""
_LARGE = (None, 500)
"""Lengths from which results are moved into files: the config's, then less."""
_LEAST = 200
"""Tokens a summary has in the smallest room."""
_PART_OF_A_SUMMARY = 3
"""A summary has at most this part of the room."""
DROP_STEP = 0.2
"""Part of the messages an emergency drops more at each attempt."""


@dataclass(frozen=True)
class Compaction:
    """What a pass came to: the messages, the strongest stage that was applied, and the tokens of the summary."""

    messages: tuple[Message, ...]
    mode: Mode = "none"
    summary_tokens: int | None = None


@dataclass
class MemoryManager:
    """Keeps messages within a model's room.

    `ask` has a model summarise (a request of two messages -> its answer; None or "" for none, then rules make the
    summary); `keep` writes a large result into the workspace and gives its path; `count` counts the tokens of messages.
    """

    config: MemoryConfig = field(default_factory=MemoryConfig)
    capacity: Capacity | None = None
    ask: Callable[[Sequence[Message]], str | None] | None = None
    session_memory: SessionMemory | None = None
    workspace: WorkspaceBackend | None = None
    keep: stages.Keep | None = None
    count: Callable[[Sequence[Message]], int] = count_messages
    ask_room: int | None = None
    """Tokens a request for a summary may have; None: what makes a compaction."""
    task: str = ""
    """The input the work is about; a summary keeps it whole."""

    def __post_init__(self) -> None:
        self.room = self.capacity or capacity(self.config)

    # The public face.

    @property
    def effective_context_window(self) -> int:
        """Tokens a prompt may have before it is compacted."""
        return self.room.effective_threshold

    def compact(
        self, messages: Sequence[Message], *, cycle_index: int | None = None, total_tokens: int | None = None,
        recent_tool_call_ids: Collection[str] | None = None, force: bool = False,
    ) -> tuple[list[Message], bool]:  # fmt: skip
        """The pass of a cycle; the messages, and whether their content changed. `total_tokens` are those of the
        previous prompt, `recent_tool_call_ids` the calls whose results came since."""
        shown = self.apply_session_memory_context(stages.tidied(messages))
        length = self.length(shown, total_tokens, recent_tool_call_ids)
        session = self.session_memory
        if session is not None and session.ask and session.should_extract(length, text_messages(shown)):
            session.extract(shown, current_cycle=cycle_index or 0, current_tokens=length)
            shown = self.apply_session_memory_context(shown)
        done = list(self.run(shown, length, force=force).messages)
        return done, done != list(messages)

    def emergency_compact(
        self, messages: Sequence[Message], *, cycle_index: int | None = None, drop_ratio: float = DROP_STEP
    ) -> tuple[list[Message], bool]:
        """The messages without that part of the oldest ones; where none may go, with all large results in files."""
        done = stages.dropped(messages, drop_ratio, self.config.keep_recent_messages)
        for large in _LARGE:
            done = done if done != list(messages) else self._moved(done, large)
        if len(done) < len(messages) and self.session_memory is not None:
            self.session_memory.on_compaction(current_tokens=self.count(done))
        return done, done != list(messages)

    def microcompact_messages(
        self, messages: Sequence[Message], *, cycle_index: int | None = None
    ) -> tuple[list[Message], bool]:
        """The messages with old tool results cleared, whatever their length together."""
        done = stages.cleared(messages, self.config)
        return done, done != list(messages)

    def estimate_memory_usage_percentage(
        self, messages: Sequence[Message], *, total_tokens: int | None = None,
        recent_tool_call_ids: Collection[str] | None = None,
    ) -> int:  # fmt: skip
        """How full the room is, in percent of what makes a compaction."""
        return self._percentage(self.length(messages, total_tokens, recent_tool_call_ids))

    def apply_session_memory_context(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with the session memory at the end of the first system message, once."""
        return self.session_memory.applied(messages) if self.session_memory else list(messages)

    def strip_session_memory_context(self, messages: Sequence[Message]) -> list[Message]:
        """The messages without it."""
        return strip(messages)

    def length(
        self, messages: Sequence[Message], total_tokens: int | None = None, recent: Collection[str] | None = None
    ) -> int:
        """Tokens of the next prompt: those of the previous one and of the results since, else all are counted."""
        if not total_tokens:
            return self.count(messages)
        newest = [message for message in messages if message.role == "tool" and message.tool_call_id in (recent or ())]
        return total_tokens + (self.count(newest) if newest else 0)

    # The pass.

    def run(self, messages: Sequence[Message], length: int, *, force: bool = False) -> Compaction:
        """Apply stages until the prompt fits; `length` is its tokens. `force` goes on to the summary."""
        now, mode = list(messages), _NONE
        if force or length > self.room.microcompact_threshold:
            now, mode, length = self._stage(now, stages.cleared(now, self.config), "micro", mode, length)
        if not force and length <= self.room.effective_threshold:
            return Compaction(tuple(self.warned(now, length)), mode)
        shown = stages.without_images(now)
        known, unread = shown[: stages.unread(shown)], shown[stages.unread(shown) :]
        recent = self.config.tool_result_keep_last - sum(message.role == "tool" for message in unread)
        shrunk = stages.moved(known, self.config, self._keep, kept_last=max(recent, 0))
        now, mode, length = self._stage(now, [*shrunk, *unread], "structural", mode, length)
        # Just below the threshold, the next cycles would have to do the same again, each for a little.
        if not force and length <= self.room.microcompact_threshold:
            return Compaction(tuple(now), mode)
        known = now[: stages.unread(now)]
        if len(known) > 2 and (force or self._is_worth_a_summary(known)):
            return self._summarised(known, now[len(known) :], files=not force)
        for large in _LARGE if force or length > self.room.effective_threshold else ():
            now, mode, length = self._stage(now, self._moved(now, large), "structural", mode, length)
            if length <= self.room.effective_threshold:  # else what the model has not read is too long by itself
                break
        return Compaction(tuple(now), mode)

    def _is_worth_a_summary(self, known: list[Message]) -> bool:
        return self.count(known) - self.count(self._head(known)) >= self.room.effective_threshold // _WORTH_A_SUMMARY

    def _moved(self, messages: Sequence[Message], large: int | None = None) -> list[Message]:
        return stages.moved(messages, self.config, self._keep, kept_last=0, large=large)

    def _head(self, messages: Sequence[Message]) -> list[Message]:
        """What a summary leaves as it is: the system messages, and the first of the user."""
        first = next((place for place, message in enumerate(messages) if message.role == "user"), -1)
        return [message for place, message in enumerate(messages) if message.role == "system" or place == first]

    def _stage(
        self, before: list[Message], after: list[Message], name: Mode, mode: Mode, length: int
    ) -> tuple[list[Message], Mode, int]:
        """The messages after a stage, the mode and the length; as before if the stage changed nothing."""
        return (after, name, self.count(after)) if after != before else (before, mode, length)

    def _summarised(self, known: list[Message], unread: list[Message], *, files: bool) -> Compaction:
        """A summary in the place of what the model knows, and then what it has not read; `files` of the work are put
        back unless a prompt was just refused."""
        config, room = self.config, self.room.effective_threshold
        bare = self._moved(strip(known))
        raw = self.ask(summary.prompt(bare, config.language, self.ask_room or room)) if self.ask else None
        made = summary.made(raw or "", bare, config.summary_event_limit, self.task)
        made = summary.bounded(made, max(room // _PART_OF_A_SUMMARY, _LEAST), self.task)
        restored = self._files(made) if files else {}
        done = summary.compressed(bare, made, files=restored, artifacts=stages.artifacts(bare))
        tokens = estimate_message(done[-1])
        if self.count([*done, *unread]) > room:
            unread = self._moved(unread)
        done += unread
        if self.session_memory is not None:
            done = self.session_memory.applied(done)
            self.session_memory.on_compaction(current_tokens=self.count(done))
        return Compaction(tuple(done), "summary", tokens)

    def warned(self, messages: list[Message], length: int) -> list[Message]:
        """The messages, with a warning for the model if it is to be told that the room is nearly used up."""
        percentage = self._percentage(length)
        if not self.config.include_memory_warning or percentage < self.config.warning_threshold_percentage:
            return messages
        return stages.warned(messages, percentage, self.config.language)

    def _percentage(self, length: int) -> int:
        return length * 100 // self.room.effective_threshold if self.room.effective_threshold else 100

    def _keep(self, call_id: str, text: str) -> str | None:
        return self.keep(call_id, text) if self.keep else None

    def _files(self, made: dict[str, object]) -> dict[str, str]:
        """The texts of the summary's files as they are now, as far as there is room."""
        found: dict[str, str] = {}
        room = min(FILES_TOKENS, self.room.effective_threshold // 4)
        workspace = self.workspace
        if workspace is None:
            return found
        for path in summary.key_files(made):
            try:
                info = workspace.file_info(path)
                small = info is not None and info.is_file and info.size <= FILE_TOKENS * _BYTES
                text = workspace.read_text(path) if small else ""
            except Exception:  # outside the workspace, gone, no text: it is not put back
                continue
            tokens = estimate(text)
            if not text or tokens > FILE_TOKENS or tokens > room:
                continue
            found[path], room = text, room - tokens
            if len(found) == MAX_FILES:
                break
        return found
