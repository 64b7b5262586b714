"""The arguments of the direct task, `vv-agent --prompt ...`, and the small parser for them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vv_agent.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Task:
    """One direct task. `model_settings` are the options given for the model's calls, not validated yet."""

    user_prompt: str
    backend: str = "moonshot"
    model: str = "kimi-k3"
    settings_file: str | None = None
    workspace: str = "./workspace"
    max_cycles: int = 80
    language: str = "en-US"
    agent_type: str | None = None
    verbose: bool = False
    distributed: bool = False
    checkpoint_key: str | None = None
    detach: bool = False
    stream: bool = False
    model_settings: dict[str, Any] = field(default_factory=dict)


class Option(NamedTuple):
    """One option: what it takes (None: nothing) and what it does."""

    name: str
    takes: str | None
    help: str
    convert: Callable[[str], Any] = str


OPTIONS = (
    Option("--prompt", "WORDS", "The task; words up to the next option."),
    Option("--backend", "NAME", "Backend of the settings file (moonshot)."),
    Option("--model", "NAME", "Model of that backend (kimi-k3)."),
    Option("--settings-file", "PATH", "Settings file (VV_AGENT_LOCAL_SETTINGS, else local_settings.py, .json, .toml)."),
    Option("--workspace", "PATH", "Folder of the file tools (./workspace)."),
    Option("--max-cycles", "N", "Model turns at most (80).", int),
    Option("--language", "TAG", "Language of the answers, such as zh-CN (en-US)."),
    Option("--agent-type", "NAME", "Kind of agent, such as computer (none)."),
    Option("--temperature", "X", "Sampling temperature, 0 or more.", float),
    Option("--top-p", "X", "Nucleus sampling, 0 to 1.", float),
    Option("--max-tokens", "N", "Tokens of one answer at most.", int),
    Option("--checkpoint-key", "KEY", "Key of the run; the same command goes on with it."),
    Option("--distributed", None, "Let workers carry the run out."),
    Option("--detach", None, "With --distributed: print the key and do not wait."),
    Option("--stream", None, "Show text and progress on stderr, also when it is no terminal."),
    Option("--verbose", None, "One line for each event on stderr."),
)
_BY_NAME = {option.name: option for option in OPTIONS}
_OF_THE_MODEL = ("temperature", "top_p", "max_tokens")
_NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}


def parse(argv: Sequence[str]) -> Task:
    """Read the arguments; `ConfigError` with code `usage_invalid` names the option, what is wrong and what to do."""
    given: dict[str, Any] = {}
    for option, values in _groups(argv):
        name = option.name.removeprefix("--").replace("-", "_")
        if name in given:
            raise usage(f"{option.name} is given twice; give it once")
        given[name] = _value(option, values)
    prompt = given.pop("prompt", "")
    if not prompt.strip():
        raise usage('there is no task; give one with --prompt "WORDS"')
    if given.get("detach") and not given.get("distributed"):
        raise usage("--detach leaves the run to workers; give --distributed with it, or leave it out")
    of_model = {name: given.pop(name) for name in _OF_THE_MODEL if name in given}
    if "max_cycles" in given:
        given["max_cycles"] = max(1, given["max_cycles"])
    return Task(user_prompt=prompt, model_settings=of_model, **given)


def usage(problem: str) -> ConfigError:
    """The error for a command that cannot be understood."""
    return ConfigError("usage_invalid", f"{problem} (vv-agent --help lists everything)")


def _groups(argv: Sequence[str]) -> Iterator[tuple[Option, list[str]]]:
    """Each option with the words that follow it."""
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            raise usage(f"{word!r} belongs to no option; put the words of the task behind --prompt")
        name, given, value = word.partition("=")
        option = _BY_NAME.get(name)
        if option is None:
            near = difflib.get_close_matches(name, _BY_NAME, 1)
            hint = f"did you mean {near[0]}?" if near else "for a prompt that begins so, write --prompt=TEXT"
            raise usage(f"there is no option {name}; {hint}")
        values = [value] if given else []
        takes_more = option.takes == "WORDS" or (option.takes is not None and not given)
        while takes_more and words and not words[0].startswith("--"):
            values.append(words.pop(0))
            takes_more = option.takes == "WORDS"
        yield option, values


def _value(option: Option, values: list[str]) -> Any:
    if option.takes is None:
        if values:
            raise usage(f"{option.name} takes no value, {values[0]!r} was given; leave it out")
        return True
    text = " ".join(values)
    if not text.strip():
        raise usage(f"{option.name} needs a value; write {option.name} {option.takes}")
    try:
        return option.convert(text)
    except ValueError:
        raise usage(f"{option.name} {text!r} must be {_NUMBERS[option.convert]}") from None
