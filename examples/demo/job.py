"""The demo's agent. Workers load this module by its name, so everything they need stands at its top level.

The model has 135 million parameters: it can choose a tool for a plain sentence, but it cannot combine two files. So
the program does: it gives one sentence per cycle, and the third one quotes what the first two cycles read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vv_agent import Agent, Message, ModelRef, ModelSettings, NoToolPolicy, RunConfig
from vv_agent.llm.base import ModelRequest, ModelResponse
from vv_agent.messages import ToolCall
from vv_agent.testing import ScriptedProvider, call, say

FILES = {"a.txt": "grape", "b.txt": "south"}
"""What lies in the workspace before the run."""
RESULT = ("c.txt", "grape and south")
"""What the run must write."""
FIRST = "Read the file a.txt"
CALLS = (
    ("read_file", {"path": "a.txt"}),
    ("read_file", {"path": "b.txt"}),
    ("write_file", {"path": RESULT[0], "content": RESULT[1]}),
)
"""The tool calls the run must make, one a cycle; in the fourth cycle the model answers."""


def agent(model: ModelRef | None) -> Agent:
    """The agent; a change of these words, or of the built-in tools' descriptions, can confuse a model this small."""
    return Agent(
        name="demo",
        instructions="You work with files.",
        model=model,
        model_settings=ModelSettings(temperature=0, max_tokens=120, extra_body={"seed": 1}),
        no_tool_policy=NoToolPolicy.FINISH,
        max_cycles=6,
    )


def config(**more: Any) -> RunConfig:
    """What each run of the demo has in common."""
    return RunConfig(before_cycle_messages=next_sentence, **more)


def next_sentence(cycle: int, messages: Sequence[Message], state: Mapping[str, Any]) -> Sequence[Message]:
    """The sentence that begins a cycle (the input is that of the first one)."""
    del state
    match cycle:
        case 2:
            text = "Read the file b.txt"
        case 3:
            first, second = (json.loads(message.content)["content"] for message in messages if message.role == "tool")
            text = f"Write the text '{first} and {second}' to the file {RESULT[0]}"
        case 4:
            text = "What is the result?"
        case _:
            return ()
    return (Message("user", text),)


def _write_what_was_asked(request: ModelRequest) -> ModelResponse:
    found = re.fullmatch(r"Write the text '(.*)' to the file (.*)", request.messages[-1].content)
    text, path = found.groups() if found else ("?", "?")
    wanted = ToolCall("call_3_1", "write_file", json.dumps({"path": path, "content": text}))
    return ModelResponse("", (wanted,), finish_reason="tool_calls")


scripted = ScriptedProvider(
    [call(*CALLS[0]), call(*CALLS[1]), _write_what_was_asked, say(f"The result is: {RESULT[1]}")], delay=0.3
)
"""Stands in for the model where its packages cannot be installed."""
