"""The provider behind a settings file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vv_agent
from tests.fake_openai import FakeOpenAI
from tests.unit.llm.calling import KEY, request
from vv_agent.errors import ConfigError, LlmError, SettingsError
from vv_agent.llm import LLMClient, Model, ModelProvider, ModelRef, ModelSettings, VvLlmModelProvider, load_settings
from vv_agent.messages import Message

EXAMPLE = Path(__file__).parents[2] / "dev_settings.example.json"


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as fake:
        yield fake


def write(folder: Path, url: str) -> Path:
    names = ("stream", "never_answers")
    models = {name: {"id": name, "endpoints": [{"endpoint_id": "here", "model_id": name}]} for name in names}
    root: dict[str, Any] = {"VERSION": "2", "backends": {"local": {"models": models}, "qwen": {"models": {}}}}
    root["endpoints"] = [{"id": "here", "api_base": url, "api_key": KEY}]
    path = folder / "local_settings.json"
    path.write_text(json.dumps(root))
    return path


def test_a_model_of_the_file_can_be_called(tmp_path: Path, server: FakeOpenAI) -> None:
    provider = vv_agent.VvLlmModelProvider.from_settings_file(write(tmp_path, server.url)).with_default_backend("local")
    assert isinstance(provider, ModelProvider)
    resolved = provider.resolve(ModelRef.named("stream"))
    client = provider.client(resolved)
    assert isinstance(client, Model)
    assert isinstance(client, LLMClient)
    settings = provider.default_settings(resolved)
    assert settings == ModelSettings()
    response = client.complete(
        model=resolved.model_id, messages=[Message("user", "Hi")], tools=[], model_settings=settings
    )
    assert response.content == "Hello, wörld. 你好"
    assert KEY not in f"{provider!r} {client!r} {resolved!r}"


def test_the_time_limit_is_at_least_a_second(tmp_path: Path, server: FakeOpenAI) -> None:
    provider = VvLlmModelProvider.from_settings_file(write(tmp_path, server.url), timeout_seconds=0.001)
    client = provider.client(provider.resolve(ModelRef.backend("local", "never_answers")))
    once = ModelSettings.from_wire({"retry": {"max_attempts": 1}})
    with pytest.raises(LlmError, match="no answer for 1 s"):
        list(client.stream(request(settings=once)))


def test_names_are_exact_and_the_backend_must_be_known(tmp_path: Path) -> None:
    provider = VvLlmModelProvider.from_settings_file(write(tmp_path, "http://127.0.0.1:9"))
    with pytest.raises(ConfigError) as caught:
        provider.resolve(ModelRef.named("stream"))
    assert caught.value.code == "model_backend_required"
    with pytest.raises(SettingsError) as missing:
        provider.with_default_backend("openai")
    assert missing.value.code == "backend_not_found"
    with pytest.raises(SettingsError):
        provider.with_default_backend("qwen").resolve(ModelRef.named("stream"))


def test_a_provider_knows_how_a_definition_names_it(tmp_path: Path) -> None:
    provider = VvLlmModelProvider.from_settings_file(write(tmp_path, "http://127.0.0.1:9"))
    assert provider.reference(ModelRef.backend("local", "stream")) == "settings:local/stream"
    assert provider.default_model_ref() is None
    named = provider.with_default_backend("local").with_default_model("stream")
    assert named.reference(ModelRef.named("stream")) == "settings:local/stream"
    assert named.default_model_ref() == ModelRef.backend("local", "stream")


def test_an_unknown_transport_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="http, vv-llm"):
        VvLlmModelProvider.from_settings_file(write(tmp_path, "http://x"), "carrier-pigeon")  # type: ignore[arg-type]


def test_the_example_settings_are_valid() -> None:
    assert load_settings(EXAMPLE).resolve("moonshot", "kimi-k3").native_multimodal


def test_endpoints_of_another_wire_are_left_to_the_other_transport(tmp_path: Path) -> None:
    path = write(tmp_path, "http://127.0.0.1:9")
    root = json.loads(path.read_text())
    root["endpoints"][0]["endpoint_type"] = "anthropic_bedrock"
    path.write_text(json.dumps(root))
    provider = VvLlmModelProvider.from_settings_file(path)
    with pytest.raises(ConfigError, match="anthropic_bedrock"):
        provider.client(provider.resolve(ModelRef.backend("local", "stream")))
