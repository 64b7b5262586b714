"""System prompts: ordered sections with a stable hash, in English and Chinese, and the fragments hosts add to them."""

from __future__ import annotations

from vv_agent.context import ContextFragment, ContextProvider, ContextRequest
from vv_agent.prompt.sections import (
    CacheBreakTracker,
    PromptBundle,
    PromptSection,
    SystemPromptBuilder,
    assemble,
    assemble_fragments,
)
from vv_agent.prompt.system import (
    BuildSystemPromptOptions,
    build_raw_system_prompt_sections,
    build_system_prompt,
    build_system_prompt_bundle,
    build_system_prompt_sections,
    build_system_prompt_with_options,
    skills_block,
    sub_agents_block,
)

__all__ = [
    "BuildSystemPromptOptions",
    "CacheBreakTracker",
    "ContextFragment",
    "ContextProvider",
    "ContextRequest",
    "PromptBundle",
    "PromptSection",
    "SystemPromptBuilder",
    "assemble",
    "assemble_fragments",
    "build_raw_system_prompt_sections",
    "build_system_prompt",
    "build_system_prompt_bundle",
    "build_system_prompt_sections",
    "build_system_prompt_with_options",
    "skills_block",
    "sub_agents_block",
]
