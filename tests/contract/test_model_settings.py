"""The settings file against the contract's example data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract import fixtures
from vv_agent.errors import SettingsError
from vv_agent.llm.settings_file import LlmSettings, load_settings

FIXTURE = fixtures.load("model_settings.json")


def write(folder: Path, suffix: str, settings: Any) -> Path:
    path = folder / f"local_settings{suffix}"
    path.write_text({".json": json.dumps, ".toml": _toml, ".py": _python}[suffix](settings))
    return path


def _python(settings: Any) -> str:
    return f"{FIXTURE['file_contract']['python_assignment']} = {settings!r}\n"


def _toml(settings: Any) -> str:
    """Inline form: every value of the fixture is text, a number, a list or a table."""
    return "".join(f"{key} = {_inline(value)}\n" for key, value in settings.items())


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value)


def test_every_extension_of_the_contract_reads_the_same(tmp_path: Path) -> None:
    settings = FIXTURE["canonical_settings"]
    read = [load_settings(write(tmp_path, suffix, settings)) for suffix in FIXTURE["file_contract"]["extensions"]]
    assert read == [LlmSettings.from_mapping(settings)] * len(read)


@pytest.mark.parametrize("suffix", FIXTURE["file_contract"]["extensions"])
@pytest.mark.parametrize("case", FIXTURE["invalid_settings"], ids=lambda case: case["name"])
def test_an_invalid_root_is_refused(tmp_path: Path, case: dict[str, Any], suffix: str) -> None:
    with pytest.raises(SettingsError):
        load_settings(write(tmp_path, suffix, case["settings"]))


def test_models_are_found_by_exact_keys_and_have_no_implicit_output_limit() -> None:
    contract = FIXTURE["resolution_contract"]
    assert contract["exact_backend_key"]
    assert contract["exact_model_key"]
    assert contract["missing_key_is_error"]
    settings = LlmSettings.from_mapping(FIXTURE["canonical_settings"])
    resolved = settings.resolve("openai", "contract-model")
    assert resolved.max_output_tokens == 100000
    assert resolved.endpoint_options[0].endpoint.endpoint_id == "contract-endpoint"
    for backend, model in (("OpenAI", "contract-model"), ("openai", "Contract-Model"), ("qwen", "contract-model")):
        with pytest.raises(SettingsError):
            settings.resolve(backend, model)
