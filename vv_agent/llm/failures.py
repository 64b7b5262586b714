"""What a provider's refusal means: HTTP status or error object -> `LlmError`.

kind               retryable  definite  seen as
network            yes        *         no connection (definite), a connection or stream that broke (not definite)
timeout            yes        no        the provider was silent too long; HTTP 408
rate_limited       yes        yes       HTTP 429 (not retryable when a quota is used up)
provider_internal  yes        no        HTTP 5xx, an error object without a better word
protocol           yes        no        an answer that is not chat completions (a gateway's page, half JSON)
authentication     no         yes       HTTP 401, 403
context_length     no         yes       HTTP 413, or 400 with such a code or text
invalid_request    no         yes       other HTTP 4xx
cancelled          no         *         the caller cancelled
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from vv_agent.errors import LlmError, RetryLater

SHORT_WAIT_SECONDS = 5.0
"""A provider's Retry-After up to this is waited for; a longer one is `RetryLater`, so that nobody blocks a thread."""

_OTHER_ENDPOINT_MAY_SERVE = frozenset({401, 402, 403, 404})
_CONTEXT_WORDS = (
    "context_length",
    "context length",
    "context window",
    "maximum context",
    "prompt is too long",
    "prompt too long",
    "input is too long",
    "request too large",
    "too many tokens",
)
_QUOTA_WORDS = ("insufficient_quota", "billing", "exceeded your current quota")
_WORDS: tuple[tuple[str, int], ...] = (
    ("rate_limit", 429),
    ("rate limit", 429),
    ("too_many_requests", 429),
    ("overloaded", 503),
    ("authentication", 401),
    ("invalid_api_key", 401),
    ("permission", 403),
    ("timeout", 408),
    ("invalid_request", 400),
)
_TEXT_LIMIT = 500


def from_status(status: int, headers: Mapping[str, str], body: str, where: str, now: float) -> LlmError:
    """The error for an HTTP status that is not 200. `where` names endpoint and model; `now` is Unix time."""
    code, said = _reading(body)
    return _classify(status, code, said, where, _retry_after(headers, now))


def from_error_object(error: Any, where: str) -> LlmError:
    """The error for an error object inside an answer that began as a success (never definite: it was being served)."""
    code, said = _fields(error)
    status = _as_status(error)
    if status is None:
        text = f"{code} {said}".lower()
        status = next((number for word, number in _WORDS if word in text), None)
        if status is None:
            status = 400 if any(word in text for word in _CONTEXT_WORDS) else 500
    return _classify(status, code, said, where, None)


def fails_over(error: LlmError) -> bool:
    """Whether another endpoint of the same model may do better.

    Besides what is retryable: a wrong key, no credit, or a model that this endpoint does not know are the
    endpoint's own faults. A bad request is bad everywhere.
    """
    return error.retryable or error.kind == "rate_limited" or error.status in _OTHER_ENDPOINT_MAY_SERVE


def _classify(status: int, code: str, said: str, where: str, retry_after: float | None) -> LlmError:
    text = f"{code} {said}".lower()
    detail = f"{where}: HTTP {status}{f' {code}' if code else ''}{f': {said}' if said else ''}"[:_TEXT_LIMIT]
    if status in (429, 503) and retry_after is not None and retry_after > SHORT_WAIT_SECONDS:
        return RetryLater(f"{detail} (come back in {retry_after:g} s)", retry_after)
    match status:
        case 429:
            out_of_credit = any(word in text for word in _QUOTA_WORDS)
            return LlmError(
                "rate_limited", detail, retryable=not out_of_credit, definite=True, retry_after=retry_after, status=429
            )
        case 408:
            return LlmError("timeout", detail, retryable=True, status=status)
        case 401 | 403:
            return LlmError("authentication", detail, definite=True, status=status)
        case 413:
            return LlmError("context_length", detail, definite=True, status=status)
        case _ if 400 <= status < 500:
            kind = "context_length" if any(word in text for word in _CONTEXT_WORDS) else "invalid_request"
            return LlmError(kind, detail, definite=True, status=status)
        case _ if status >= 500:
            return LlmError("provider_internal", detail, retryable=True, retry_after=retry_after, status=status)
    return LlmError("protocol", detail, status=status)


def _reading(body: str) -> tuple[str, str]:
    """(code, text) of an error body; a body that is not the usual JSON is quoted as it is."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return "", " ".join(body.split())
    if isinstance(value, dict):
        return _fields(value.get("error", value))
    return "", " ".join(body.split())


def _fields(error: Any) -> tuple[str, str]:
    if not isinstance(error, dict):
        return "", str(error)
    code = error.get("code") or error.get("type") or ""
    return str(code), str(error.get("message") or error.get("detail") or "")


def _as_status(error: Any) -> int | None:
    """An HTTP status that an error object carries in `status` or `code`."""
    if not isinstance(error, dict):
        return None
    for name in ("status", "code"):
        text = str(error.get(name, ""))
        if text.isascii() and text.isdigit() and 400 <= int(text[:4]) < 600:
            return int(text[:4])
    return None


def _retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds from `retry-after-ms` or `Retry-After` (seconds or an HTTP date); None if absent or unreadable."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        if text.replace(".", "", 1).isascii() and text.replace(".", "", 1).isdigit():
            return float(text) / unit
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)
