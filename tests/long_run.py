"""A run of hundreds of cycles against a provider that counts tokens with a real vocabulary and refuses what is too long.

The provider plays the model: in each cycle it calls `fetch`, whose result is 10 KB. What cycle 20 says has a fact; the
model notes it in its next words, and nobody says it again. When it is asked for a summary it knows only what it is
shown. As a process of its own: `python -m tests.long_run CYCLES LANGUAGE`; a line on its input makes it report.
"""

from __future__ import annotations

import json
import random
import re
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests import fake_openai
from tests.fake_openai import Exchange, FakeOpenAI, tool
from tests.fake_openai import text as words
from tests.vocabulary import counter
from vv_agent import Agent, NoToolPolicy, function_tool
from vv_agent.llm.provider import VvLlmModelProvider

WINDOW = 128_000
FACT_CYCLE = 20
TASKS = {"en": "Find out who moved the boundary stones of the upper valley.", "zh": "查明是谁移动了上游山谷的界石。"}
FACTS = {"en": "the surveyor's seal is number QX-4711", "zh": "测量员的印章编号是 QX-4711"}
NOTED = {"en": "Noted", "zh": "已记录"}
VOCABULARY = "cl100k_base"


@cache
def page(n: int, language: str) -> str:
    """A result of 10 KB, different in each cycle."""
    dice = random.Random(n)
    if language == "zh":
        return "".join(dice.choices([chr(c) for c in range(0x4E00, 0x5200)], k=3_333))
    made = ["".join(dice.choices("abcdefghijklmnoprstuvw", k=dice.randint(2, 9))) for _ in range(2_000)]
    return " ".join(made)[:10_000]


@function_tool(idempotency="supported")
def fetch(n: int, language: str) -> str:
    """Fetch a page of the land register."""
    text = page(n, language)
    return text[:5_000] + f"\n{FACTS[language]}\n" + text[5_000:] if n == FACT_CYCLE else text


AGENT = Agent(
    name="surveyor", instructions="Read the register page by page.", tools=[fetch], no_tool_policy=NoToolPolicy.FINISH
)


@dataclass
class Provider:
    """The model's side. `summarises`: whether it answers when it is asked for a summary."""

    cycles: int
    language: str = "en"
    window: int = WINDOW
    summarises: bool = True
    writes_down: bool = False
    """Whether the model notes the fact with `compress_memory`, not in its words."""
    turns: int = 0
    summaries: int = 0
    refused: int = 0
    peak: int = 0
    sizes: list[int] = field(default_factory=list)
    """Tokens of each prompt."""
    shared: list[float] = field(default_factory=list)
    """Part of each body that the next one begins with, from the second turn on."""
    last: dict[str, Any] = field(default_factory=dict)
    _before: bytes = b""

    def play(self, x: Exchange) -> None:
        body = x.received.body
        tokens = self.count(body)
        self.peak = max(self.peak, tokens)
        usage = {"prompt_tokens": tokens, "completion_tokens": 20, "total_tokens": tokens + 20}
        if tokens > self.window:
            self.refused += 1
            x.error(400, "context_length_exceeded", f"maximum context length is {self.window} tokens, not {tokens}")
        elif "tools" not in body:
            self.summaries += 1
            x.stream([words(self.summary(body))] if self.summarises else [], usage=usage)
        else:
            self.turns += 1
            self.sizes.append(tokens)
            if self._before:
                self.shared.append(common(self._before, x.received.raw) / len(self._before))
            self._before = x.received.raw
            self.answer(x, usage)

    def count(self, body: Any) -> int:
        """Tokens of a request, by somebody else's vocabulary."""
        total = known(json.dumps(body.get("tools", [])))
        for message in body["messages"]:
            content = message.get("content") or ""
            total += 4 + known(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))
            total += sum(4 + known(json.dumps(call["function"])) for call in message.get("tool_calls", ()))
        return total

    def answer(self, x: Exchange, usage: dict[str, Any]) -> None:
        notes = self.turns == FACT_CYCLE + 1
        said = f"{NOTED[self.language]}: {FACTS[self.language]}." if notes and not self.writes_down else "On with it."
        if self.turns >= self.cycles:
            self.last = x.received.body
            x.stream([words("done")], usage=usage)
            return
        name, arguments = "fetch", {"n": self.turns, "language": self.language}
        if notes and self.writes_down:
            name, arguments = "compress_memory", {"core_information": FACTS[self.language]}
        x.stream([words(said), tool(0, f"call_{self.turns}", name, json.dumps(arguments))], "tool_calls", usage)

    def summary(self, body: Any) -> str:
        """What a model makes of the prompt: the notes it can see in it."""
        shown = body["messages"][-1]["content"]
        notes = re.findall(rf"{NOTED[self.language]}: [^\n\"]*?\.", shown)
        return json.dumps({"summary_version": "2.0", "key_facts": list(dict.fromkeys(notes))}, ensure_ascii=False)

    def knows(self, text: str) -> bool:
        """Whether the last prompt holds a text."""
        return any(text in json.dumps(message, ensure_ascii=False) for message in self.last["messages"])

    def report(self) -> dict[str, Any]:
        names = ("turns", "summaries", "refused", "peak", "sizes", "shared")
        told: dict[str, Any] = {name: getattr(self, name) for name in names}
        return {**told, "task": self.knows(TASKS[self.language]), "fact": self.knows(FACTS[self.language])}


@cache
def known(text: str) -> int:
    return counter(VOCABULARY)(text)


def common(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def serving(provider: Provider) -> FakeOpenAI:
    """A server that plays this provider as the model `long`."""
    fake_openai.SCENARIOS["long"] = provider.play
    return FakeOpenAI()


def models(url: str, folder: Path, window: int = WINDOW) -> VvLlmModelProvider:
    """The provider of a settings file that names the server."""
    there = {"endpoint_id": "here", "model_id": "long"}
    model = {"id": "long", "endpoints": [there], "context_length": window, "function_call_available": True}
    endpoint = {"id": "here", "api_base": url, "api_key": "none"}
    settings = {"VERSION": "2", "backends": {"local": {"models": {"long": model}}}, "endpoints": [endpoint]}
    file = folder / "local_settings.json"
    file.write_text(json.dumps(settings))
    return VvLlmModelProvider.from_settings_file(file).with_default_backend("local")


def main() -> None:
    provider = Provider(int(sys.argv[1]), sys.argv[2])
    counter(VOCABULARY)
    with serving(provider) as server:
        print(server.url, flush=True)
        sys.stdin.readline()
        print(json.dumps(provider.report()), flush=True)


if __name__ == "__main__":
    main()
