"""What providers' refusals mean, and how long they ask to wait."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

import pytest

from vv_agent.errors import LlmError, RetryLater
from vv_agent.llm.failures import from_error_object, from_status

NOW = 1_000_000.0


def status(number: int, body: str = "", **headers: str) -> LlmError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return from_status(number, named, body, "here", NOW)


@pytest.mark.parametrize(
    ("number", "kind", "retryable", "definite"),
    [
        (301, "protocol", False, False),
        (400, "invalid_request", False, True),
        (401, "authentication", False, True),
        (402, "invalid_request", False, True),
        (403, "authentication", False, True),
        (404, "invalid_request", False, True),
        (408, "timeout", True, False),
        (413, "context_length", False, True),
        (422, "invalid_request", False, True),
        (429, "rate_limited", True, True),
        (500, "provider_internal", True, False),
        (529, "provider_internal", True, False),
    ],
)
def test_a_status_has_a_kind(number: int, kind: str, retryable: bool, definite: bool) -> None:
    error = status(number)
    assert (error.kind, error.retryable, error.definite, error.status) == (kind, retryable, definite, number)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("0", 0.0), ("1.5", 1.5), ("5", 5.0), (formatdate(NOW + 3, usegmt=True), 3.0), (formatdate(NOW - 9), 0.0)],
)
def test_a_short_retry_after_is_kept(header: str, seconds: float) -> None:
    error = status(429, retry_after=header)
    assert not isinstance(error, RetryLater)
    assert error.retry_after == seconds


@pytest.mark.parametrize("number", [429, 503])
@pytest.mark.parametrize(("header", "seconds"), [("6", 6.0), (formatdate(NOW + 60, usegmt=True), 60.0)])
def test_a_long_retry_after_asks_to_come_back(number: int, header: str, seconds: float) -> None:
    error = status(number, retry_after=header)
    assert isinstance(error, RetryLater)
    assert error.retry_after == seconds


@pytest.mark.parametrize("header", ["", "soon", "-3", "1e3", "²", "nan", "Wed, 99 Foo 2026 00:00:00 GMT"])
def test_an_unreadable_retry_after_is_ignored(header: str) -> None:
    assert status(429, retry_after=header).retry_after is None


def test_milliseconds_are_understood() -> None:
    assert status(429, retry_after_ms="250").retry_after == 0.25


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('{"error": {"code": "c", "message": "m"}}', "here: HTTP 400 c: m"),
        ('{"error": "plain words"}', "here: HTTP 400: plain words"),
        ('{"message": "m", "type": "t"}', "here: HTTP 400 t: m"),
        ("<html>\n Bad </html>", "here: HTTP 400: <html> Bad </html>"),
        ("[1]", "here: HTTP 400: [1]"),
        ("", "here: HTTP 400"),
    ],
)
def test_the_text_says_what_the_provider_said(body: str, text: str) -> None:
    assert status(400, body).message == text


def test_a_long_text_is_cut() -> None:
    assert len(status(500, "x" * 10_000).message) == 500


@pytest.mark.parametrize(
    "said", ["Your prompt is too long", "exceeds the context window", "maximum context length is 8192 tokens"]
)
def test_a_full_context_is_recognised_by_its_words(said: str) -> None:
    assert status(400, said).kind == "context_length"


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        ({"code": 429, "message": "slow"}, "rate_limited", True),
        ({"code": "429"}, "rate_limited", True),
        ({"type": "rate_limit_error"}, "rate_limited", True),
        ({"type": "overloaded_error", "message": "x"}, "provider_internal", True),
        ({"type": "authentication_error"}, "authentication", False),
        ({"type": "invalid_request_error", "message": "no"}, "invalid_request", False),
        ({"code": "context_length_exceeded"}, "context_length", False),
        ({"status": 503}, "provider_internal", True),
        ({"message": "odd", "code": 7}, "provider_internal", True),
        ("just words", "provider_internal", True),
    ],
)
def test_an_error_object_has_a_kind(error: Any, kind: str, retryable: bool) -> None:
    found = from_error_object(error, "here")
    assert (found.kind, found.retryable) == (kind, retryable)
