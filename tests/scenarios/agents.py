"""A script for each agent, whoever of them is asked: what the scripted model plays where several agents work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vv_agent.llm.base import ModelRequest
from vv_agent.llm.scripted import Step


def by_agent(scripts: Mapping[str, Sequence[Step]]) -> list[Step]:
    """Steps of a provider: each agent, known by what its system prompt begins with, plays its own script; the n-th step
    answers the n-th turn of the conversation it is shown."""

    def step(request: ModelRequest) -> Any:
        prompt = request.messages[0].content
        script = next(steps for begins, steps in scripts.items() if prompt.startswith(begins))
        return script[sum(message.role == "assistant" for message in request.messages)]

    return [step] * 40


def heard(answer: Callable[[str], str]) -> Step:
    """A step that answers with a function of the last message."""
    return lambda request: answer(request.messages[-1].content)
