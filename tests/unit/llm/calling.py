"""Helpers to call a client at the fake provider without waiting for real."""

from __future__ import annotations

from typing import Any

from vv_agent.cancellation import CancellationToken
from vv_agent.llm.base import ModelRequest
from vv_agent.llm.openai_compatible import OpenAICompatibleModel
from vv_agent.llm.reference import EndpointOption, EndpointTarget, ResolvedModelConfig, Secret
from vv_agent.llm.retry import Waiting
from vv_agent.messages import Message

KEY = "sk-very-secret-0123456789"


class Waits:
    """A `Waiting` that notes the waits instead of taking them; chance 0 means the full back-off."""

    def __init__(self, cancel_at: int | None = None, now: float = 1_000_000.0, chance: float = 0.0) -> None:
        self.seconds: list[float] = []
        self._cancel_at = cancel_at
        self.waiting = Waiting(sleep=self._sleep, now=lambda: now, chance=lambda: chance)

    def _sleep(self, cancellation: CancellationToken, seconds: float) -> bool:
        self.seconds.append(seconds)
        if self._cancel_at == len(self.seconds):
            cancellation.cancel("enough")
        return cancellation.cancelled


def resolved(*places: tuple[str, str] | str) -> ResolvedModelConfig:
    """A model at these (url, model name there) places; endpoint ids are e1, e2, ..."""
    pairs = [place if isinstance(place, tuple) else (place, "m") for place in places]
    options = tuple(
        EndpointOption(EndpointTarget(f"e{number}", Secret(KEY), url), name)
        for number, (url, name) in enumerate(pairs, 1)
    )
    return ResolvedModelConfig("local", "m", "m", pairs[0][1], endpoint_options=options)


def model(*places: tuple[str, str] | str, waits: Waits | None = None, timeout: float = 10.0) -> OpenAICompatibleModel:
    return OpenAICompatibleModel(resolved(*places), timeout_seconds=timeout, waiting=(waits or Waits()).waiting)


def request(**fields: Any) -> ModelRequest:
    return ModelRequest(**{"model_id": "m", "messages": [Message("user", "Hi")], **fields})
