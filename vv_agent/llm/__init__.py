"""Model clients: one streaming protocol inside, providers and settings around it.

Names are loaded when they are first used: the HTTP client and the settings types are not cheap to import.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES: dict[str, str] = {}


def _home(module: str, names: str) -> None:
    _HOMES.update(dict.fromkeys(names.split(), module))


_home("vv_agent.errors", "LlmError RetryLater")
_home("vv_agent.llm.base", "Model ModelRequest ModelResponse Part TextDelta ReasoningDelta ToolCallDelta UsageReport")
_home("vv_agent.llm.base", "ToolCallPreview Finish collect")
_home("vv_agent.llm.settings", "ModelSettings RetrySettings ResponseFormat ToolChoice")
_home("vv_agent.llm.reference", "ModelRef ModelProvider ResolvedModelConfig EndpointTarget EndpointOption Secret")
_home("vv_agent.llm.client", "LLMClient LlmRequest StreamingClient as_model")
_home("vv_agent.llm.settings_file", "LlmSettings load_settings find_settings")
_home("vv_agent.llm.provider", "VvLlmModelProvider VvLlmClient")
_home("vv_agent.llm.openai_compatible", "OpenAICompatibleModel")
_home("vv_agent.llm.scripted", "ScriptedModel ScriptedLLM ScriptedProvider")

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module 'vv_agent.llm' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
