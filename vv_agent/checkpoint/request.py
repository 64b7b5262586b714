"""The operation request: what is asked of a model or a tool; its digest is the identity of an operation.

A retry is the same request with the same digest; a changed request is another operation (spec 11, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vv_agent._json import digest, plain
from vv_agent.checkpoint.journal import ModelEntry, OperationKind, ToolEntry
from vv_agent.errors import CheckpointError

REQUEST_SCHEMA = "vv-agent.operation-request.v1"

_Text = Annotated[str, Field(pattern=r"\S")]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


def operation_request(kind: OperationKind, request: Mapping[str, Any]) -> dict[str, Any]:
    """The object whose digest identifies an operation; `operation_request_invalid` for any other set of fields.

    Coordinates (operation id, cycle, attempt) are no part of it: a retry is the same request.
    """
    return checked_request({"schema_version": REQUEST_SCHEMA, "kind": str(kind), "request": dict(request)})


def checked_request(value: Any) -> dict[str, Any]:
    """Read an operation request, or raise `operation_request_schema_unsupported`, `operation_request_not_i_json` or
    `operation_request_invalid`, in this order."""
    if not isinstance(value, Mapping):
        raise _bad_request(f"it is {type(value).__name__}, not an object")
    if value.get("schema_version") != REQUEST_SCHEMA:
        raise CheckpointError(
            "operation_request_schema_unsupported",
            f"operation request: schema is {value.get('schema_version')!r}, this program reads {REQUEST_SCHEMA!r}",
        )
    wire: dict[str, Any] = plain(value, code="operation_request_not_i_json", wide_as_float=True)
    try:
        _REQUESTS[wire["kind"]].model_validate(wire["request"])
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise _bad_request(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
    except (KeyError, TypeError):
        raise _bad_request("kind must be 'model' or 'tool', and request an object") from None
    if wire.keys() != {"schema_version", "kind", "request"}:
        raise _bad_request("it holds exactly schema_version, kind and request")
    return wire


def request_digest(request: Mapping[str, Any]) -> str:
    """Lowercase hex SHA-256 of the canonical form of an operation request."""
    return digest(checked_request(request), code="operation_request_not_i_json")


def check_request(entry: ModelEntry | ToolEntry, request: Mapping[str, Any], support: str | None = None) -> None:
    """Refuse an entry that belongs to another request, or whose tool now declares another idempotency.

    `checkpoint_journal_integrity_mismatch`; to be asked before a claim, and nothing is changed.
    """
    declared = entry.idempotency_support if isinstance(entry, ToolEntry) else None
    if request_digest(request) != entry.request_digest or (support is not None and support != declared):
        raise CheckpointError(
            "checkpoint_journal_integrity_mismatch",
            f"operation {entry.operation_id} was recorded for another request than the run makes now; "
            "continue it with the code and definition it was started with",
        )


class _ModelName(_Closed):
    backend: _Text
    model_id: _Text


class _ModelRequest(_Closed):
    model: _ModelName
    messages: list[Any]
    settings: dict[str, Any]
    tools: list[Any]
    output_schema: dict[str, Any] | None
    idempotency_key: str | None


class _ToolRequest(_Closed):
    tool_call_id: _Text
    tool_name: _Text
    arguments: dict[str, Any]
    idempotency_key: _Text


_REQUESTS: dict[str, type[_Closed]] = {"model": _ModelRequest, "tool": _ToolRequest}


def _bad_request(problem: str) -> CheckpointError:
    return CheckpointError("operation_request_invalid", f"operation request: {problem}")
