"""Chat completions over HTTP, streamed: the client for every OpenAI-compatible endpoint, and the home of httpx."""

from __future__ import annotations

import json
import os
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpcore
import httpx
import httpx_sse

from vv_agent.errors import ConfigError, LlmError
from vv_agent.llm.base import ModelRequest, Part
from vv_agent.llm.chunks import ChunkReader
from vv_agent.llm.client import StreamingClient
from vv_agent.llm.connection import CuttableBackend, SocketHold
from vv_agent.llm.failures import from_status
from vv_agent.llm.projection import extra_headers, provider_body, silence_limit
from vv_agent.llm.reference import EndpointOption, ResolvedModelConfig
from vv_agent.llm.retry import Waiting, stream_with_retries
from vv_agent.llm.settings import RetrySettings

DEFAULT_TIMEOUT_SECONDS = 90.0
_CONNECT_SECONDS = 10.0
_ERROR_BODY_BYTES = 64 * 1024
_IDLE_LANES = 64
_AFTER_FINISH_SECONDS = 5.0
_AFTER_DONE_SECONDS = 0.5
_KEEP_ALIVE_SECONDS = 30.0


class OpenAICompatibleModel(StreamingClient):
    """A `Model` at the endpoints of one resolved model.

    It is cheap and thread safe: connections belong to the process. `timeout_seconds` is how long the provider may be
    silent when the call's settings do not say. Errors name endpoint and model, never the key or a header.
    """

    def __init__(
        self,
        resolved: ResolvedModelConfig,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        waiting: Waiting | None = None,
    ) -> None:
        if not resolved.endpoint_options:
            raise ConfigError("model_has_no_endpoint", f"model {resolved.selected_model!r} has no endpoint to call")
        self._resolved = resolved
        self._timeout = timeout_seconds
        self._waiting = waiting or Waiting()

    def stream(self, request: ModelRequest) -> Iterator[Part]:
        """Parts as they come; see `Model` for the contract and `failures` for the errors."""
        retry = (request.settings.retry if request.settings else None) or RetrySettings()
        return stream_with_retries(
            lambda option: self._ask(option, request),
            self._resolved.endpoint_options,
            retry,
            request.cancellation,
            self._waiting,
        )

    def _ask(self, option: EndpointOption, request: ModelRequest) -> Iterator[Part]:
        """One try at one endpoint. A kept connection that broke before any byte of a reply is replaced at once."""
        exchange = _Exchange(option, request, silence_limit(request, self._timeout), self._waiting)
        while True:
            hold = SocketHold()
            try:
                yield from exchange.run(hold)
                return
            except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, UnicodeError) as error:
                problem = exchange.problem(error, hold)
            except LlmError:
                if not request.cancellation.cancelled:
                    raise
                problem = exchange.cancelled(definite=not hold.sent)
            # Raised out here: the library's error carries the request with its Authorization header.
            if problem is not None:
                raise problem


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One request to one endpoint and its reply."""

    option: EndpointOption
    request: ModelRequest
    timeout: float
    waiting: Waiting

    @property
    def where(self) -> str:
        return f"endpoint {self.option.endpoint.endpoint_id!r}, model {self.option.model_id!r}"

    def run(self, hold: SocketHold) -> Iterator[Part]:
        target = self.option.endpoint
        url = f"{target.api_base.rstrip('/')}/chat/completions"
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if target.api_key:
            headers["Authorization"] = f"Bearer {target.api_key.reveal()}"
        headers.update(extra_headers(self.request))
        timeout = httpx.Timeout(self.timeout, connect=min(self.timeout, _CONNECT_SECONDS))
        detach = self.request.cancellation.on_cancel(hold.cut)
        try:
            with (
                _process_lanes().lane(url, hold) as client,
                client.stream("POST", url, content=self._body(), headers=headers, timeout=timeout) as response,
            ):
                yield from self._reply(response, hold)
        finally:
            detach()

    def _body(self) -> bytes:
        body = provider_body(self.request, self.option.model_id)
        try:
            text = json.dumps(body, ensure_ascii=False, allow_nan=False, default=dict)
        except (TypeError, ValueError) as error:
            raise LlmError("invalid_request", f"{self.where}: not a JSON request: {error}", definite=True) from None
        return text.encode("utf-8", "replace")  # half a surrogate pair has no bytes

    def _reply(self, response: httpx.Response, hold: SocketHold) -> Iterator[Part]:
        if response.status_code != 200:
            said = self._scrubbed(_limited_body(response))
            raise from_status(response.status_code, response.headers, said, self.where, self.waiting.now())
        reader = ChunkReader(self.where, self.request.turn)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/event-stream":
            yield from self._events(response, reader, hold)
        elif kind == "application/json":  # the provider cannot stream, or tells of an error with status 200
            yield from reader.feed(self._json(response.read()))
        else:
            raise LlmError("protocol", f"{self.where}: the reply is {kind or 'untyped'}, not a stream", retryable=True)
        yield from reader.end()

    def _events(self, response: httpx.Response, reader: ChunkReader, hold: SocketHold) -> Iterator[Part]:
        done = False
        try:
            for event in httpx_sse.EventSource(response).iter_sse():
                if self.request.cancellation.cancelled:
                    raise self.cancelled(definite=False)
                done = done or event.data == "[DONE]"
                if event.data and not done:
                    yield from reader.feed(self._json(event.data))
                # Read to the end of the reply, or its connection cannot be used again, but do not wait long for it.
                if done or reader.finish is not None:
                    hold.patience = _AFTER_DONE_SECONDS if done else _AFTER_FINISH_SECONDS
        except httpx.TransportError:
            # After the finish reason the answer is whole; a connection that breaks now costs at most the usage.
            if reader.finish is None and not done:
                raise

    def _json(self, text: str | bytes) -> object:
        try:
            value: object = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise LlmError("protocol", f"{self.where}: the reply is not a JSON object", retryable=True)
        return value

    def problem(self, error: Exception, hold: SocketHold) -> LlmError | None:
        """What a library error means; None: the kept connection was stale, try on a fresh one."""
        if self.request.cancellation.cancelled:
            return self.cancelled(definite=not hold.sent)
        match error:
            case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.ProxyError():
                text = f"{self.where}: cannot connect to {_host(self.option)}: {error}"
                return LlmError("network", self._scrubbed(text), retryable=True, definite=True)
            case httpx.LocalProtocolError() | httpx.UnsupportedProtocol() | httpx.InvalidURL() | UnicodeError():
                # The library's text may quote a header, so it is not repeated.
                text = f"{self.where}: the request cannot be sent; check api_base, api_key and extra_headers"
                return LlmError("invalid_request", text, definite=True)
            case httpx.TimeoutException():
                text = f"{self.where}: no answer for {self.timeout:g} s"
                return LlmError("timeout", text, retryable=True)
        if not hold.fresh and not hold.received:
            return None
        text = f"{self.where}: the connection broke: {self._scrubbed(str(error)) or type(error).__name__}"
        return LlmError("network", text, retryable=True)

    def cancelled(self, *, definite: bool) -> LlmError:
        return LlmError("cancelled", f"{self.where}: {self.request.cancellation.reason}", definite=definite)

    def _scrubbed(self, text: str) -> str:
        """A provider's text without our secrets: some repeat the key they refuse."""
        secrets = [self.option.endpoint.api_key.reveal(), *extra_headers(self.request).values()]
        for secret in secrets:
            if len(secret) >= 8:
                text = text.replace(secret, "**********")
        return text


def _limited_body(response: httpx.Response) -> str:
    body = b""
    for piece in response.iter_bytes():
        body += piece
        if len(body) >= _ERROR_BODY_BYTES:
            break
    return body.decode("utf-8", "replace")


def _host(option: EndpointOption) -> str:
    """Host of the endpoint without user info."""
    return httpx.URL(option.endpoint.api_base).host


class _Transport(httpx.HTTPTransport):
    """httpx's transport on a pool with our backend (its constructor has no parameter for one)."""

    def __init__(self, backend: CuttableBackend, context: ssl.SSLContext, proxy: str | None) -> None:
        through = httpx.Proxy(proxy) if proxy else None
        self._pool = httpcore.ConnectionPool(
            ssl_context=context,
            proxy=httpcore.Proxy(str(through.url), auth=through.raw_auth) if through else None,
            keepalive_expiry=_KEEP_ALIVE_SECONDS,
            network_backend=backend,
        )


@dataclass(frozen=True, slots=True)
class _Lane:
    """A client for one call at a time, with its own connections."""

    client: httpx.Client
    backend: CuttableBackend


class _Lanes:
    """The idle clients of this process, by proxy.

    One client per running call, not one for all: a shared pool's lock costs more than the calls (200 threads), and a
    helper thread that lives for one call still finds a warm connection. They share one TLS context.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str | None, list[_Lane]] = {}
        self._context: ssl.SSLContext | None = None

    @contextmanager
    def lane(self, url: str, hold: SocketHold) -> Iterator[httpx.Client]:
        proxy = _proxy_for(url)
        with self._lock:
            idle = self._idle.setdefault(proxy, [])
            lane = idle.pop() if idle else None
        lane = lane or self._open(proxy)
        lane.backend.current = hold
        try:
            yield lane.client
        finally:
            lane.client.cookies.clear()
            with self._lock:
                keep = len(idle) < _IDLE_LANES
                if keep:
                    idle.append(lane)
            if not keep:
                lane.client.close()

    def _open(self, proxy: str | None) -> _Lane:
        with self._lock:
            if self._context is None:
                self._context = httpx.create_ssl_context()
            context = self._context
        backend = CuttableBackend()
        return _Lane(httpx.Client(transport=_Transport(backend, context, proxy), trust_env=False), backend)


def _proxy_for(url: str) -> str | None:
    """The system's HTTP proxy for a URL (environment or system settings), as the standard library reads it."""
    parsed = httpx.URL(url)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parsed.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(parsed.host):
        return None
    scheme, there, _ = proxy.partition("://")
    if there and scheme != "http":
        raise LlmError("invalid_request", f"the system's proxy is a {scheme} proxy; use an http one", definite=True)
    return proxy if there else f"http://{proxy}"


_registry: dict[int, _Lanes] = {}


def _process_lanes() -> _Lanes:
    """This process's clients; a fork starts with none (two processes on one connection would mix their bytes)."""
    pid = os.getpid()
    if pid not in _registry:
        _registry.clear()
    return _registry.setdefault(pid, _Lanes())
