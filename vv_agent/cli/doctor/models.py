"""The settings file, and with --live a call of a model of each endpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vv_agent.cli.doctor.finding import Finding, note, ok, problem
from vv_agent.errors import LlmError, SettingsError, VVAgentError
from vv_agent.settings import Settings

if TYPE_CHECKING:
    from vv_agent.llm.reference import ResolvedModelConfig
    from vv_agent.llm.settings_file import LlmSettings


def check(settings: Settings, *, live: bool) -> Iterator[Finding]:
    """The settings file that a worker here would read. Keys are never shown."""
    from vv_agent.llm.settings_file import find_settings, load_settings

    try:
        path = find_settings(None, settings.local_settings, Path.cwd())
    except SettingsError as error:
        if settings.local_settings is None:
            yield note("models", f"{error.message}; only models of your own code can be called")
        else:
            yield problem("models", error.message, "correct VV_AGENT_LOCAL_SETTINGS, or write that file")
        return
    try:
        loaded = load_settings(path)
    except SettingsError as error:
        yield problem("models", f"{path}: {error.message}", "correct that place (docs/settings.md shows the form)")
        return
    names = [f"{backend}/{model}" for backend, models in loaded.backends.items() for model in models]
    yield ok("models", f"{path} has {len(names)}: {', '.join(names)}")
    for endpoint in loaded.endpoints.values():
        key = "set" if endpoint.api_key else "empty"
        yield ok("endpoint", f"{endpoint.endpoint_id} at {_without_password(endpoint.api_base)}, key {key}")
    if path.stat().st_mode & 0o077 and any(endpoint.api_key for endpoint in loaded.endpoints.values()):
        yield note("models", f"{path} holds keys and others on this machine may read it (chmod 600)")
    if live:
        for resolved in _one_of_each_endpoint(loaded):
            yield from call(loaded, resolved)


def _without_password(address: str) -> str:
    return re.sub(r"//[^/@]*@", "//***@", address)


def _one_of_each_endpoint(loaded: LlmSettings) -> Iterator[ResolvedModelConfig]:
    """A model for each endpoint that has one, narrowed to that endpoint."""
    seen: set[str] = set()
    for backend, models in loaded.backends.items():
        for name, entry in models.items():
            for option in entry.endpoint_options:
                if option.endpoint.endpoint_id not in seen:
                    seen.add(option.endpoint.endpoint_id)
                    resolved = loaded.resolve(backend, name)
                    yield replace(resolved, endpoint_options=(option,), model_id=option.model_id)


def call(loaded: LlmSettings, resolved: ResolvedModelConfig) -> Iterator[Finding]:
    """One call of at most one token."""
    from vv_agent.llm.provider import VvLlmModelProvider
    from vv_agent.llm.settings import ModelSettings, RetrySettings
    from vv_agent.messages import Message

    name = f"{resolved.endpoint_options[0].endpoint.endpoint_id} ({resolved.backend}/{resolved.selected_model})"
    options = ModelSettings(max_tokens=1, timeout_seconds=20, retry=RetrySettings(max_attempts=1))
    try:
        VvLlmModelProvider(loaded).client(resolved).complete(
            model=resolved.model_id, messages=[Message("user", "Say yes.")], tools=[], model_settings=options
        )
    except LlmError as error:
        yield problem("endpoint", f"{name} did not answer: {error.message}", "correct its address, key or model name")
    except VVAgentError as error:
        yield problem("endpoint", f"{name} cannot be called: {error.message}", "correct the settings file")
    else:
        yield ok("endpoint", f"{name} answered")
