"""The system prompt of a task, from facts about it: language, tools, sub-agents, skills, time."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from vv_agent.prompt.sections import PromptBundle, PromptSection, assemble
from vv_agent.prompt.texts import DEFAULT_LANGUAGE, WORKSPACE_TOOLS, text
from vv_agent.skills.catalog import normalize_skill_list, render_skills_xml
from vv_agent.skills.model import SkillEntry


@dataclass(frozen=True, kw_only=True)
class BuildSystemPromptOptions:
    """What a task may do and what it is told.

    `language` is `zh-CN`, or anything else for English. `available_sub_agents` maps ids to descriptions;
    `available_skills` is a list as `normalize_skill_list` takes it, its relative paths below `workspace`.
    `current_time_utc` is shown as it is (default: now, ISO 8601 with `Z`).
    """

    language: str = DEFAULT_LANGUAGE
    allow_interruption: bool = True
    use_workspace: bool = True
    enable_todo_management: bool = True
    agent_type: str | None = None
    available_sub_agents: Mapping[str, str] = field(default_factory=dict)
    available_skills: Sequence[Any] | None = None
    workspace: Any = None
    current_time_utc: str | None = None
    session_memory_context: str = ""


def build_system_prompt(original_system_prompt: str, **options: Any) -> str:
    """The whole prompt; `options` are the fields of `BuildSystemPromptOptions`."""
    return build_system_prompt_bundle(original_system_prompt, **options).prompt


def build_system_prompt_with_options(original_system_prompt: str, options: BuildSystemPromptOptions) -> str:
    """The whole prompt."""
    return assemble(_sections(original_system_prompt, options)).prompt


def build_system_prompt_sections(original_system_prompt: str, **options: Any) -> list[dict[str, Any]]:
    """The sections in their order: `id`, `text`, `stable` each."""
    return build_system_prompt_bundle(original_system_prompt, **options).sections


def build_system_prompt_bundle(original_system_prompt: str, **options: Any) -> PromptBundle:
    """Prompt, sections and stable hash.

    Example:
        >>> from vv_agent.prompt import build_system_prompt_bundle
        >>> bundle = build_system_prompt_bundle("Count words.", current_time_utc="2026-01-01T00:00:00Z")
        >>> [(section["id"], section["stable"]) for section in bundle.sections]
        [('agent_definition', True), ('tools', True), ('current_time', False)]
    """
    return assemble(_sections(original_system_prompt, BuildSystemPromptOptions(**options)))


def build_raw_system_prompt_sections(prompt: str) -> list[dict[str, Any]]:
    """The one section of a prompt that the host wrote as a whole; none when it is blank."""
    return assemble([PromptSection("raw_system_prompt", prompt, stable=True)]).sections


def skills_block(entries: Sequence[SkillEntry], language: str) -> str:
    """What the prompt says of skills; nothing when there are none."""
    listed = render_skills_xml(entries)
    return f"{text(language, 'skills')}\n{listed}" if listed else ""


def sub_agents_block(descriptions: Mapping[str, str], language: str = DEFAULT_LANGUAGE) -> str:
    """What the prompt says of sub-agents, by id; nothing when there are none."""
    if not descriptions:
        return ""
    line = text(language, "sub_agent")
    lines = (line.format(id=name, description=descriptions[name]) for name in sorted(descriptions))
    return "\n".join([text(language, "sub_agents"), *lines])


def _sections(original: str, options: BuildSystemPromptOptions) -> Iterator[PromptSection]:
    language = options.language
    if original.strip():
        yield PromptSection("agent_definition", _tagged("Agent Definition", original.strip()), stable=True)
    yield PromptSection("session_memory", options.session_memory_context)
    if options.agent_type == "computer":
        sentence = text(language, "environment").format(os=os_name())
        yield PromptSection("environment", _tagged("Environment", sentence), stable=True)
    yield PromptSection("tools", _tagged("Tools", "\n\n".join(filter(None, _tool_parts(options)))), stable=True)
    now = options.current_time_utc or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    yield PromptSection("current_time", _tagged("Current Time", f"{text(language, 'current_time')}\n{now}"))


def _tool_parts(options: BuildSystemPromptOptions) -> Iterator[str]:
    language = options.language
    if options.allow_interruption:
        yield text(language, "ask_user")
    if options.use_workspace:
        names = ("、" if language == "zh-CN" else ", ").join(f"`{name}`" for name in WORKSPACE_TOOLS)
        yield text(language, "workspace_tools").format(tools=names)
        yield text(language, "tool_priority")
    if options.enable_todo_management:
        yield text(language, "todo")
    yield sub_agents_block(options.available_sub_agents, language)
    yield skills_block(normalize_skill_list(options.available_skills, workspace=options.workspace), language)
    yield text(language, "task_finish")


def os_name() -> str:
    """The operating system in the words of the prompt."""
    name = platform.system()
    return {"Darwin": "macOS"}.get(name, name)


def _tagged(tag: str, content: str) -> str:
    return f"<{tag}>\n{content}\n</{tag}>"
