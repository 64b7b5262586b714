"""The settings file: strict, never executed, and keys stay hidden."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

from vv_agent.errors import SettingsError
from vv_agent.llm import EndpointTarget, LlmSettings, ModelRef, Secret, find_settings, load_settings

KEY = "sk-very-secret-0123456789"


def mapping(**root: Any) -> dict[str, Any]:
    return {
        "VERSION": "2",
        "backends": {
            "deepseek": {
                "models": {
                    "chat": {
                        "id": "chat",
                        "endpoints": [
                            {"endpoint_id": "b", "model_id": "chat-b"},
                            {"endpoint_id": "off", "model_id": "chat-off"},
                            {"endpoint_id": "a", "model_id": "chat-a", "enabled": False},
                            {"endpoint_id": "a", "model_id": "chat-a2"},
                        ],
                        "function_call_available": True,
                    },
                    "dark": {"id": "dark", "endpoints": [{"endpoint_id": "off", "model_id": "dark"}]},
                }
            }
        },
        "endpoints": [
            {"id": "a", "api_base": "http://a.invalid/v1", "api_key": KEY, "rpm": 60},
            {"id": "b", "api_base": "http://b.invalid/v1", "api_key": KEY},
            {"id": "off", "api_base": "http://off.invalid/v1", "api_key": "", "enabled": False},
        ],
        **root,
    }


def broken(change: Any) -> dict[str, Any]:
    value = mapping()
    change(value)
    return value


def everything_said(error: BaseException) -> str:
    said: list[str] = ["".join(traceback.format_exception(error))]
    link: BaseException | None = error
    while link is not None:
        said += [repr(link), repr(link.args), repr(vars(link))]
        link = link.__cause__ or link.__context__
    return "".join(said)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.update(VERSION=2), "LLM_SETTINGS.VERSION must be '2'"),
        (lambda v: v.update(backends=[]), "LLM_SETTINGS.backends must be an object"),
        (lambda v: v.update(endpoints={}), "LLM_SETTINGS.endpoints must be an array"),
        (lambda v: v["backends"].update(opnai={"models": {}}), "unsupported chat backend: opnai"),
        (lambda v: v["endpoints"].append(v["endpoints"][0]), "LLM_SETTINGS.endpoints[3].id 'a' is there twice"),
        (lambda v: v["endpoints"][0].update(api_key=5), "LLM_SETTINGS.endpoints[0].api_key must be a string"),
        (lambda v: v["endpoints"][0].pop("api_base"), "LLM_SETTINGS.endpoints[0].api_base must be a non-blank string"),
        (lambda v: v.update(endpoints=[KEY]), "LLM_SETTINGS.endpoints[0] must be an object"),
        (
            lambda v: v["backends"]["deepseek"]["models"]["chat"].update(context_length=True),
            "LLM_SETTINGS.backends.deepseek.models.chat.context_length must be a whole number above 0",
        ),
        (
            lambda v: v["backends"]["deepseek"]["models"]["chat"].update(native_multimodal=1),
            "LLM_SETTINGS.backends.deepseek.models.chat.native_multimodal must be true or false",
        ),
        (
            lambda v: v["backends"]["deepseek"]["models"]["chat"].update(endpoints=[{"endpoint_id": "x"}]),
            "LLM_SETTINGS.backends.deepseek.models.chat.endpoints[0].endpoint_id 'x' is not the id of an endpoint",
        ),
        (
            lambda v: v["backends"].update(qwen={"models": []}),
            "LLM_SETTINGS.backends.qwen.models must be an object",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_the_place_of_its_fault(change: Any, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        LlmSettings.from_mapping(broken(change))
    assert caught.value.message == message
    assert KEY not in everything_said(caught.value)


def test_the_root_must_be_an_object(tmp_path: Path) -> None:
    (path := tmp_path / "s.json").write_text("[]")
    with pytest.raises(SettingsError) as caught:
        load_settings(path)
    assert caught.value.message == "LLM_SETTINGS must be an object"


def test_extra_keys_at_the_root_pass() -> None:
    assert LlmSettings.from_mapping(mapping(embedding_backends={}, rerank_backends=5)).backends


def test_enabled_endpoints_are_kept_in_binding_order() -> None:
    resolved = LlmSettings.from_mapping(mapping()).resolve("deepseek", "chat")
    assert [(option.endpoint.endpoint_id, option.model_id) for option in resolved.endpoint_options] == [
        ("b", "chat-b"),
        ("a", "chat-a2"),
    ]
    assert resolved.model_id == "chat-b"
    assert resolved.function_call_available
    assert resolved.context_length is None
    assert resolved.to_public() == {
        "backend": "deepseek",
        "requested_model": "chat",
        "selected_model": "chat",
        "model_id": "chat-b",
        "endpoint": "b",
    }


@pytest.mark.parametrize(
    ("backend", "model", "code"),
    [
        ("openai", "chat", "backend_not_found"),
        ("opnai", "chat", "backend_unsupported"),
        ("deepseek", "Chat", "model_not_found"),
        ("deepseek", "dark", "model_has_no_endpoint"),
    ],
)
def test_a_miss_is_an_error(backend: str, model: str, code: str) -> None:
    with pytest.raises(SettingsError) as caught:
        LlmSettings.from_mapping(mapping()).resolve(backend, model)
    assert caught.value.code == code


def test_keys_are_in_no_repr() -> None:
    settings = LlmSettings.from_mapping(mapping())
    resolved = settings.resolve("deepseek", "chat")
    for value in (settings, resolved, resolved.endpoint_options, dataclasses.asdict(resolved)):
        assert KEY not in f"{value!r} {value}"
    assert resolved.endpoint_options[0].endpoint.api_key.reveal() == KEY
    assert settings.reveal() == mapping()


def test_a_secret_is_copied_but_never_pickled() -> None:
    secret = Secret(KEY)
    assert copy.deepcopy(secret) == copy.copy(secret) == secret
    assert len({secret, Secret(KEY)}) == 1
    assert KEY not in f"{secret} {secret!r} {[secret]}"
    assert not Secret("")
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(secret)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.json", '{"api_key": "' + KEY + '",}'),
        ("s.toml", 'api_key = "' + KEY),
        ("s.toml", f"{KEY} {KEY}"),
        ("s.py", f"LLM_SETTINGS = {{'api_key': '{KEY}'"),
        ("s.py", f"LLM_SETTINGS = dict(api_key='{KEY}')"),
        ("s.py", f"LLM_SETTINGS = {{'api_key': '{KEY}', ['a']: 1}}"),
        ("s.py", f"SETTINGS = {{'api_key': '{KEY}'}}"),
        ("s.py", f"LLM_SETTINGS = 1\nLLM_SETTINGS = '{KEY}'"),
        ("s.py", f"x = '{KEY}\0'"),
        ("s.json", "[" * 100_000),
        ("s.yaml", KEY),
        ("missing.json", None),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_its_text_is_not(tmp_path: Path, name: str, text: str | None) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(path)
    assert caught.value.code == "settings_invalid"
    assert name in caught.value.message
    assert KEY not in everything_said(caught.value)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "s.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(SettingsError, match="UTF-8"):
        load_settings(path)


def test_a_python_file_is_never_executed(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    path = tmp_path / "local_settings.PY"
    path.write_text(
        f'"""doc"""\nimport pathlib\npathlib.Path({str(marker)!r}).touch()\nLLM_SETTINGS: dict = {mapping()!r}\n'
    )
    assert load_settings(path) == LlmSettings.from_mapping(mapping())
    assert not marker.exists()


def test_the_settings_file_is_the_explicit_one_then_the_environments_then_a_default(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        find_settings(None, " ", tmp_path)
    assert all(f"local_settings{suffix}" in caught.value.message for suffix in (".py", ".json", ".toml"))
    for name in ("local_settings.toml", "local_settings.json", "local_settings.py", "env.json", "flag.json"):
        (tmp_path / name).write_text(json.dumps(mapping()))
    assert find_settings(Path("flag.json"), "env.json", tmp_path).name == "flag.json"
    assert find_settings(None, "env.json", tmp_path).name == "env.json"
    for name in ("local_settings.py", "local_settings.json", "local_settings.toml"):
        assert find_settings(None, None, tmp_path).name == name
        (tmp_path / name).unlink()


def test_a_named_settings_file_that_is_missing_is_not_replaced_by_a_default(tmp_path: Path) -> None:
    (tmp_path / "local_settings.json").write_text("{}")
    for arguments in ((Path("x.json"), None), (None, "x.json")):
        with pytest.raises(SettingsError, match=r"x\.json does not exist"):
            find_settings(*arguments, tmp_path)


def test_references_are_parsed_at_the_first_slash() -> None:
    assert ModelRef.parse("openai/org/model") == ModelRef.backend("openai", "org/model")
    assert ModelRef.parse("model") == ModelRef.named("model")
    assert str(ModelRef.backend("a", "b")) == "a/b"
    with pytest.raises(ValueError, match="backend must be"):
        ModelRef.parse("/model")
    with pytest.raises(ValueError, match="nothing else"):
        ModelRef.from_wire({"type": "named", "model": "m", "backend": "b"})


def test_an_endpoint_made_by_hand_hides_its_key_too() -> None:
    target = EndpointTarget("e", KEY, "http://x/v1")  # type: ignore[arg-type]
    assert KEY not in repr(target)
    assert target.api_key.reveal() == KEY
