"""The one retry layer: endpoints in order, rounds with a growing wait, nothing after the first visible part."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from vv_agent.cancellation import CancellationToken
from vv_agent.errors import LlmError, RetryLater
from vv_agent.llm.base import Part
from vv_agent.llm.failures import SHORT_WAIT_SECONDS, fails_over
from vv_agent.llm.settings import RetrySettings

Endpoint = TypeVar("Endpoint")


@dataclass(frozen=True, slots=True)
class Waiting:
    """Time and chance, from outside: `sleep` is cancellable and True if cancelled; `now` is Unix time."""

    sleep: Callable[[CancellationToken, float], bool] = CancellationToken.wait
    now: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random


def stream_with_retries(
    ask: Callable[[Endpoint], Iterator[Part]],
    endpoints: Sequence[Endpoint],
    settings: RetrySettings,
    cancellation: CancellationToken,
    waiting: Waiting,
) -> Iterator[Part]:
    """Stream from the first endpoint that answers.

    A round asks the endpoints in order until one answers; what may work later is asked again in the next round, at
    most `settings.max_attempts` rounds. The error of a call is definite only if every try's was.
    """
    lost = False
    for attempt in range(1, settings.max_attempts + 1):
        failures: list[tuple[Endpoint, LlmError]] = []
        for endpoint in endpoints:
            visible = False
            try:
                for part in ask(endpoint):
                    visible = True
                    yield part
                return
            except LlmError as error:
                lost = lost or not error.definite
                error.definite = error.definite and not lost
                if visible or not fails_over(error) or cancellation.cancelled:
                    raise
                failures.append((endpoint, error))
        endpoints = [endpoint for endpoint, error in failures if error.retryable and not isinstance(error, RetryLater)]
        errors = [error for _, error in failures]
        if not endpoints or attempt == settings.max_attempts:
            raise _worth_telling(errors)
        if waiting.sleep(cancellation, _pause(errors, attempt, settings.backoff_seconds, waiting.chance)):
            raise LlmError("cancelled", f"cancelled between two tries: {cancellation.reason}", definite=not lost)


def _worth_telling(errors: Sequence[LlmError]) -> LlmError:
    """The most hopeful error of a round: the nearest time to come back, else what may work later, else the first."""
    times = [error for error in errors if isinstance(error, RetryLater)]
    if times:
        return min(times, key=lambda error: error.retry_after or 0.0)
    return next((error for error in errors if error.retryable), errors[0])


def _pause(errors: Sequence[LlmError], attempt: int, backoff: float, chance: Callable[[], float]) -> float:
    """Seconds to the next round: the provider's word if there is one, else doubled each time, less up to half."""
    named = [error.retry_after for error in errors if error.retry_after is not None and error.retryable]
    if named and min(named) <= SHORT_WAIT_SECONDS:
        return min(named)
    return backoff * 2.0 ** (attempt - 1) * (1.0 - 0.5 * chance())
