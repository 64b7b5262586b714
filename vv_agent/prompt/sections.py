"""Sections of a system prompt, and how they become one text with a hash of its stable part."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from vv_agent.context import ContextFragment

SEPARATOR = "\n\n"


@dataclass(frozen=True)
class PromptSection:
    """One labelled part of a prompt; a function as `text` is called when the prompt is built."""

    id: str
    text: str | Callable[[], str]
    stable: bool = False
    priority: int | None = None
    source: str | None = None
    cache_hint: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, fragment: ContextFragment) -> PromptSection:
        """The section of a context fragment."""
        return cls(**{item.name: getattr(fragment, item.name) for item in fields(ContextFragment)})

    def rendered(self) -> PromptSection:
        """This section with its text as it is now, stripped."""
        text = self.text if isinstance(self.text, str) else self.text()
        return replace(self, text=text.strip())

    def label(self) -> dict[str, Any]:
        """What is set, without the text."""
        label: dict[str, Any] = {"id": self.id, "stable": self.stable}
        if self.priority is not None:
            label["priority"] = self.priority
        return label | {name: value for name in ("source", "cache_hint", "metadata") if (value := getattr(self, name))}

    def to_wire(self) -> dict[str, Any]:
        """`id`, `text`, `stable`, then what else is set."""
        return {"id": self.id, "text": self.text} | self.label()


@dataclass(frozen=True)
class PromptBundle:
    """A system prompt and the sections it was made of; none of them is blank."""

    parts: tuple[PromptSection, ...]
    omitted_section_ids: tuple[str, ...] = ()
    """Sections the limit left no room for."""

    @property
    def prompt(self) -> str:
        return SEPARATOR.join(str(part.text) for part in self.parts)

    @property
    def sections(self) -> list[dict[str, Any]]:
        return [part.to_wire() for part in self.parts]

    @property
    def stable_hash(self) -> str:
        """Hex SHA-256 of the stable texts, one behind the other without anything between."""
        stable = "".join(str(part.text) for part in self.parts if part.stable)
        return hashlib.sha256(stable.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def sources(self) -> dict[str, str]:
        """Where sections come from, by id."""
        return {part.id: part.source for part in self.parts if part.source}

    @property
    def total_chars(self) -> int:
        """Length of the prompt in code points."""
        return len(self.prompt)

    def to_metadata(self) -> dict[str, Any]:
        """What a run keeps of its prompt beside the text: each section's label and length, never its text again."""
        metadata: dict[str, Any] = {
            "system_prompt_sections": [part.label() | {"chars": len(str(part.text))} for part in self.parts],
            "system_prompt_sources": self.sources,
            "system_prompt_stable_hash": self.stable_hash,
        }
        if self.omitted_section_ids:
            metadata["system_prompt_omitted_sections"] = list(self.omitted_section_ids)
        return metadata


def assemble(sections: Iterable[PromptSection], limit: int | None = None) -> PromptBundle:
    """The bundle of sections in the order given.

    Texts are stripped, blank ones vanish. A section that would take the prompt beyond `limit` code points is left out
    as a whole, and later ones still get their chance.
    """
    parts: list[PromptSection] = []
    omitted: list[str] = []
    length = 0
    for section in sections:
        part = section.rendered()
        if not part.text:
            continue
        added = len(str(part.text)) + (len(SEPARATOR) if parts else 0)
        if limit is not None and length + added > limit:
            omitted.append(part.id)
            continue
        parts.append(part)
        length += added
    return PromptBundle(tuple(parts), tuple(omitted))


def assemble_fragments(fragments: Iterable[ContextFragment], limit: int | None = None) -> PromptBundle:
    """The bundle of context fragments: by priority, then stable ones first, then by id."""
    ordered = sorted(fragments, key=lambda fragment: (fragment.priority, not fragment.stable, fragment.id))
    return assemble(map(PromptSection.of, ordered), limit)


class SystemPromptBuilder:
    """Builds a prompt of sections again and again, as they were added.

    The text of a stable section is computed once, until it is invalidated; that of another one at each build.
    """

    def __init__(self, sections: Iterable[PromptSection] = ()) -> None:
        self._sections = list(sections)
        self._known: dict[int, PromptSection] = {}

    def add(self, section: PromptSection) -> SystemPromptBuilder:
        self._sections.append(section)
        return self

    def invalidate(self, section_id: str | None = None) -> None:
        """Compute the stable sections of this id (all of them without one) again at the next build."""
        for place, known in tuple(self._known.items()):
            if section_id in (None, known.id):
                del self._known[place]

    def build(self) -> PromptBundle:
        return assemble(self._current(place, section) for place, section in enumerate(self._sections))

    def _current(self, place: int, section: PromptSection) -> PromptSection:
        if not section.stable:
            return section
        if place not in self._known:
            self._known[place] = section.rendered()
        return self._known[place]


class CacheBreakTracker:
    """Notices when the stable part of a prompt changes, which costs the provider's prompt cache."""

    def __init__(self) -> None:
        self._last: dict[str, str] | None = None

    def observe(self, bundle: PromptBundle) -> tuple[str, ...]:
        """The ids of stable sections that are new, changed or gone since the last bundle; none for the first one."""
        current = {part.id: str(part.text) for part in bundle.parts if part.stable}
        last, self._last = self._last, current
        if last is None:
            return ()
        return tuple(name for name in {**last, **current} if last.get(name) != current.get(name))
