"""The settings file: which endpoints and models exist, read strictly and never executed."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from vv_agent.errors import SettingsError
from vv_agent.llm.reference import EndpointOption, EndpointTarget, ResolvedModelConfig, Secret

BACKENDS = frozenset(
    {
        "openai",
        "zhipuai",
        "minimax",
        "moonshot",
        "anthropic",
        "mistral",
        "deepseek",
        "qwen",
        "groq",
        "local",
        "yi",
        "gemini",
        "baichuan",
        "stepfun",
        "xai",
        "xiaomi",
        "ernie",
    }
)
DEFAULT_NAMES = ("local_settings.py", "local_settings.json", "local_settings.toml")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model of a backend. `id` is its own name; each endpoint option has the name it goes by there."""

    key: str
    id: str
    endpoint_options: tuple[EndpointOption, ...]
    context_length: int | None = None
    max_output_tokens: int | None = None
    native_multimodal: bool = False
    function_call_available: bool = False
    response_format_available: bool = False


@dataclass(frozen=True, slots=True)
class LlmSettings:
    """A settings file of version 2. `reveal()` gives the mapping as it was written, keys included."""

    backends: Mapping[str, Mapping[str, ModelEntry]]
    endpoints: Mapping[str, EndpointTarget]
    _raw: Secret

    @classmethod
    def from_mapping(cls, root: Any) -> LlmSettings:
        """Read the mapping; `SettingsError` (code `settings_invalid`) names what is wrong, never a key's text."""
        if not isinstance(root, dict):
            _invalid("LLM_SETTINGS must be an object")
        if root.get("VERSION") != "2":
            _invalid("LLM_SETTINGS.VERSION must be '2'")
        if not isinstance(root.get("backends"), dict):
            _invalid("LLM_SETTINGS.backends must be an object")
        if not isinstance(root.get("endpoints"), list):
            _invalid("LLM_SETTINGS.endpoints must be an array")
        endpoints, disabled = _endpoints(root["endpoints"])
        backends = {name: dict(_models(name, entry, endpoints, disabled)) for name, entry in root["backends"].items()}
        return cls(backends, endpoints, Secret(json.dumps(root, default=str, skipkeys=True)))

    def reveal(self) -> dict[str, Any]:
        """The mapping as it was written, with its keys; for a transport that wants it whole."""
        mapping: dict[str, Any] = json.loads(self._raw.reveal())
        return mapping

    def resolve(self, backend: str, model: str) -> ResolvedModelConfig:
        """Look up by exact names; `SettingsError` says which name is missing and which there are."""
        if backend not in BACKENDS:
            raise _unsupported(backend)
        if (models := self.backends.get(backend)) is None:
            raise SettingsError(
                "backend_not_found", f"backend {backend!r} is not in the settings; there are: {_listed(self.backends)}"
            )
        if (entry := models.get(model)) is None:
            raise SettingsError(
                "model_not_found", f"backend {backend!r} has no model {model!r}; there are: {_listed(models)}"
            )
        if not entry.endpoint_options:
            raise SettingsError(
                "model_has_no_endpoint", f"model {backend}/{model} has no enabled endpoint; enable or add one"
            )
        return ResolvedModelConfig(
            backend=backend,
            requested_model=model,
            selected_model=entry.key,
            model_id=entry.endpoint_options[0].model_id,
            context_length=entry.context_length,
            max_output_tokens=entry.max_output_tokens,
            function_call_available=entry.function_call_available,
            response_format_available=entry.response_format_available,
            native_multimodal=entry.native_multimodal,
            endpoint_options=entry.endpoint_options,
        )


def find_settings(explicit: Path | str | None, named: str | None, folder: Path) -> Path:
    """The settings file to use: `explicit`, else `named` (the environment's value), else a default name in `folder`.

    Relative paths count from `folder`. `SettingsError` (code `settings_not_found`) if there is none.
    """
    chosen = explicit or (named.strip() if named else None)
    if chosen:
        path = folder / Path(chosen).expanduser()
        if path.is_file():
            return path
        raise SettingsError("settings_not_found", f"settings file {path} does not exist or is not a file")
    for name in DEFAULT_NAMES:
        if (folder / name).is_file():
            return folder / name
    raise SettingsError(
        "settings_not_found",
        f"no settings file in {folder}: looked for {', '.join(DEFAULT_NAMES)}; create one of them or set"
        " VV_AGENT_LOCAL_SETTINGS",
    )


def load_settings(path: Path | str) -> LlmSettings:
    """Read a `.json`, `.toml` or literal `.py` file; `SettingsError` names the file and the place."""
    path = Path(path)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise SettingsError(
            "settings_invalid", f"settings file {path} must end in .py, .json or .toml, not {path.suffix!r}"
        )
    # The parsers' own exceptions hold the text of the file, keys included: only their place leaves this function,
    # and the error is raised outside the handler so that they are not its context.
    value: Any = None
    try:
        value, fault = reader(path.read_text(encoding="utf-8")), None
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        fault = "is not UTF-8 text"
    except json.JSONDecodeError as error:
        fault = f"is not JSON: {error.msg} (at line {error.lineno}, column {error.colno})"
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at [^()]*\)$", str(error))
        fault = f"is not TOML {place[0] if place else ''}".rstrip()
    except SyntaxError as error:
        fault = f"is not a Python literal file (at line {error.lineno})"
    except _NotLiteral as error:
        fault = str(error)
    except (ValueError, RecursionError, MemoryError):
        fault = "cannot be parsed"
    if fault is not None:
        raise SettingsError("settings_invalid", f"settings file {path} {fault}")
    return LlmSettings.from_mapping(value)


class _NotLiteral(Exception):
    """A `.py` settings file without exactly one literal LLM_SETTINGS."""


def _python_literal(text: str) -> Any:
    """The value of the one top-level `LLM_SETTINGS = <literal>`; the file is parsed, never run."""
    values: list[ast.expr] = []
    for statement in ast.parse(text).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="LLM_SETTINGS")], value=value):
                values.append(value)
            case ast.AnnAssign(target=ast.Name(id="LLM_SETTINGS"), value=ast.expr() as value):
                values.append(value)
    if len(values) != 1:
        raise _NotLiteral("must assign LLM_SETTINGS exactly once at the top level")
    try:
        return ast.literal_eval(values[0])
    except (ValueError, TypeError):
        place = f"line {values[0].lineno}"
    raise _NotLiteral(f"must assign a literal to LLM_SETTINGS (no calls, no names; at {place})")


_READERS: dict[str, Callable[[str], Any]] = {".json": json.loads, ".toml": tomllib.loads, ".py": _python_literal}


def _endpoints(entries: list[Any]) -> tuple[dict[str, EndpointTarget], set[str]]:
    found: dict[str, EndpointTarget] = {}
    disabled: set[str] = set()
    for number, entry in enumerate(entries):
        fields = _Fields(f"LLM_SETTINGS.endpoints[{number}]", entry)
        target = EndpointTarget(
            endpoint_id=fields.text("id"),
            api_key=Secret(fields.text("api_key", blank=True)),
            api_base=fields.text("api_base"),
            endpoint_type=fields.text("endpoint_type", default="default"),
        )
        if target.endpoint_id in found:
            _invalid(f"{fields.where}.id {target.endpoint_id!r} is there twice")
        found[target.endpoint_id] = target
        if not fields.flag("enabled", default=True):
            disabled.add(target.endpoint_id)
    return found, disabled


def _models(
    backend: str, entry: Any, endpoints: Mapping[str, EndpointTarget], disabled: set[str]
) -> Iterator[tuple[str, ModelEntry]]:
    if backend not in BACKENDS:
        raise _unsupported(backend)
    models = _Fields(f"LLM_SETTINGS.backends.{backend}", entry).mapping("models")
    for key, value in models.items():
        fields = _Fields(f"LLM_SETTINGS.backends.{backend}.models.{key}", value)
        bindings = [_Fields(f"{fields.where}.endpoints[{n}]", item) for n, item in enumerate(fields.array("endpoints"))]
        options = []
        for binding in bindings:
            name = binding.text("endpoint_id")
            if name not in endpoints:
                _invalid(f"{binding.where}.endpoint_id {name!r} is not the id of an endpoint")
            if binding.flag("enabled", default=True) and name not in disabled:
                options.append(EndpointOption(endpoints[name], binding.text("model_id")))
        yield (
            key,
            ModelEntry(
                key=key,
                id=fields.text("id"),
                endpoint_options=tuple(options),
                context_length=fields.count("context_length"),
                max_output_tokens=fields.count("max_output_tokens"),
                native_multimodal=fields.flag("native_multimodal"),
                function_call_available=fields.flag("function_call_available"),
                response_format_available=fields.flag("response_format_available"),
            ),
        )


class _Fields:
    """Typed reading of one object; the errors say where the field is, not what it held.

    Fields that are not asked for pass: the file is shared with other programs that know more of them.
    """

    def __init__(self, where: str, value: Any) -> None:
        if not isinstance(value, dict):
            _invalid(f"{where} must be an object")
        self.where = where
        self._value = value

    def text(self, name: str, *, blank: bool = False, default: str | None = None) -> str:
        value = self._value.get(name, default)
        if not isinstance(value, str) or not (blank or value.strip()):
            _invalid(f"{self.where}.{name} must be a {'' if blank else 'non-blank '}string")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self._value.get(name, default)
        if not isinstance(value, bool):
            _invalid(f"{self.where}.{name} must be true or false")
        return value

    def count(self, name: str) -> int | None:
        value = self._value.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            _invalid(f"{self.where}.{name} must be a whole number above 0")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._value.get(name)
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            _invalid(f"{self.where}.{name} must be an object")
        return value

    def array(self, name: str) -> list[Any]:
        value = self._value.get(name)
        if not isinstance(value, list):
            _invalid(f"{self.where}.{name} must be an array")
        return value


def _invalid(message: str) -> NoReturn:
    raise SettingsError("settings_invalid", message)


def _unsupported(backend: str) -> SettingsError:
    return SettingsError("backend_unsupported", f"unsupported chat backend: {backend}")


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)) or "none"
