"""JSON-RPC 2.0 over lines of JSON: the four messages, how a line is read, and the errors a request is answered with."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias

from pydantic import Field, RootModel, ValidationError

from vv_agent._json import loads_strict, plain
from vv_agent._wire import Wire
from vv_agent.app_server.protocol import METHODS, Part
from vv_agent.errors import CheckpointError

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
OVERLOADED, NOT_INITIALIZED, ALREADY_INITIALIZED = -32001, -32010, -32011
EXPERIMENTAL_NEEDED, UNSUPPORTED_METHOD = -32012, -32013
"""Reserved; nothing is answered with them."""
THREAD_NOT_FOUND, THREAD_ARCHIVED, NO_ACTIVE_TURN, OTHER_TURN_ACTIVE = -32020, -32021, -32030, -32031
MAX_LINE = 8 * 1024 * 1024
"""Longest line that a server reads, in bytes."""

RequestId: TypeAlias = int | str


class Request(Wire):
    jsonrpc: Literal["2.0"]
    id: RequestId
    method: str
    params: Any = None


class Notification(Wire):
    jsonrpc: Literal["2.0"]
    method: str
    params: Any = None


class Response(Wire):
    jsonrpc: Literal["2.0"]
    id: RequestId
    result: Any


class ErrorObject(Wire):
    code: int
    message: str
    data: Any = None


class ErrorResponse(Wire):
    jsonrpc: Literal["2.0"]
    id: RequestId | None
    error: ErrorObject


Message: TypeAlias = Request | Notification | Response | ErrorResponse


class JsonRpcMessage(RootModel[Message]):
    """Any one of the four. Ids are integers or strings and keep their type; only an error may have a null id."""

    root: Message = Field(union_mode="left_to_right")

    @classmethod
    def parse(cls, line: str | bytes) -> Message:
        """Read a line; raises `RpcError` with the code and the id to answer with."""
        try:
            value = loads_strict(line, ValueError)
        except ValueError as error:
            raise RpcError(PARSE_ERROR, f"the line is not JSON: {_short(error)}") from None
        return cls.read(value)

    @classmethod
    def read(cls, value: Any) -> Message:
        """Read a JSON value, as `parse` reads a line."""
        try:
            return cls.model_validate(plain(value, code="message_invalid", wide_as_float=True)).root
        except CheckpointError as error:
            problem = error.message
        except ValidationError:
            problem = "it must be a JSON-RPC 2.0 request, notification or response, with no other keys"
        raise RpcError(INVALID_REQUEST, f"the message is not valid: {problem}", request_id=_id_of(value))


class RpcError(Exception):
    """A request is refused; `data` goes along."""

    def __init__(self, code: int, message: str, *, data: Any = None, request_id: RequestId | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.request_id = request_id


def too_long() -> RpcError:
    return RpcError(PARSE_ERROR, f"the line is longer than {MAX_LINE} bytes")


def read_params(method: str, params: Any) -> Part:
    """The parameters of a request; `RpcError` -32601 or -32602."""
    known = METHODS.get(method)
    if known is None:
        raise RpcError(METHOD_NOT_FOUND, f"there is no method {method[:200]!r}", data={"method": method})
    try:
        return known.params.from_wire({} if params is None and known.bare else params)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, fault["loc"])) or "params"
        raise RpcError(INVALID_PARAMS, f"the parameters of {method} are wrong: {place}: {fault['msg']}") from None


def response(request_id: RequestId, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def error_response(error: RpcError, request_id: RequestId | None) -> dict[str, Any]:
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return {"jsonrpc": "2.0", "id": request_id, "error": body}


def notification(method: str, params: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params})


def request(request_id: RequestId, method: str, params: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method} | ({} if params is None else {"params": params})


def encode(message: dict[str, Any]) -> bytes:
    """One line, without its end. A lone surrogate is written as the escape it came as."""
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def _id_of(value: Any) -> RequestId | None:
    found = value.get("id") if isinstance(value, dict) else None
    whole = isinstance(found, int) and not isinstance(found, bool) and abs(found) < 2**53
    return found if whole or (isinstance(found, str) and len(found) <= 1000 and found.isprintable()) else None


def _short(error: Exception) -> str:
    return str(error)[:200]
