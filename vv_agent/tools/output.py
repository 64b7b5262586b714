"""What handlers may return, and how it becomes the result the model reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vv_agent.errors import ToolError
from vv_agent.results import ToolExecutionResult, ToolStatus


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool gives back, made by one of `text`, `json`, `image`, `file` and `error`.

    A handler that returns a string, a model or other JSON data needs none of these.
    """

    content: str
    status_code: ToolStatus = ToolStatus.SUCCESS
    error_code: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    image_url: str | None = None
    image_path: str | None = None

    @classmethod
    def text(cls, text: str) -> ToolOutput:
        """Text, as it is."""
        return cls(text)

    @classmethod
    def json(cls, data: Any) -> ToolOutput:
        """Data as JSON text; pydantic models, dataclasses, enums, dates and paths are understood."""
        return cls(json_text(data), metadata={"output_type": "json"})

    @classmethod
    def image(cls, *, url: str | None = None, path: str | None = None, mime_type: str | None = None) -> ToolOutput:
        """An image by URL or by workspace path; one of them is needed."""
        if url is None and path is None:
            raise ToolError("an image output needs a url or a path")
        content = _present(image_url=url, image_path=path, mime_type=mime_type)
        metadata = _present(output_type="image", mime_type=mime_type)
        return cls(json_text(content), metadata=metadata, image_url=url, image_path=path)

    @classmethod
    def file(cls, path: str, *, mime_type: str | None = None) -> ToolOutput:
        """A file of the workspace, by its path."""
        metadata = _present(output_type="file", path=path, mime_type=mime_type)
        return cls(json_text(_present(path=path, mime_type=mime_type)), metadata=metadata)

    @classmethod
    def error(cls, message: str, error_code: str = "tool_execution_failed", *, retryable: bool = False) -> ToolOutput:
        """A failure the model should read and react to."""
        content = json_text({**_error(message, error_code), "retryable": retryable})
        return cls(content, ToolStatus.ERROR, error_code, {"error_code": error_code})


def to_result(value: Any, tool_call_id: str) -> ToolExecutionResult:
    """The result of a call from whatever its handler returned.

    Strings are taken as they are, a `ToolOutput` or `ToolExecutionResult` says itself what it is, everything else
    becomes JSON text. A value that has no JSON form raises `ToolError`.
    """
    if isinstance(value, ToolExecutionResult):
        return value.model_copy(update={"tool_call_id": tool_call_id, "content": storable(value.content)})
    output = (
        value if isinstance(value, ToolOutput) else ToolOutput(value if isinstance(value, str) else json_text(value))
    )
    from pydantic import ValidationError

    try:
        return ToolExecutionResult(
            tool_call_id=tool_call_id,
            content=storable(output.content),
            status_code=output.status_code,
            error_code=output.error_code,
            metadata=dict(output.metadata) or None,
            image_url=output.image_url,
            image_path=output.image_path,
        )
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise ToolError(f"the tool's output has a wrong {problem['loc'][0]}: {problem['msg']}") from error


def error_result(
    tool_call_id: str,
    message: str,
    code: str,
    details: Mapping[str, Any] | None = None,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> ToolExecutionResult:
    """An ERROR result: content `{ok, error, error_code, ...details}`; metadata repeats the code unless it is given."""
    return ToolExecutionResult(
        tool_call_id=tool_call_id,
        content=json_text({**_error(message, code), **(details or {})}),
        status_code=ToolStatus.ERROR,
        error_code=code,
        metadata={"error_code": code} if metadata is None else dict(metadata),
    )


def json_text(value: Any) -> str:
    """JSON text of a value, without characters that could not be stored; `ToolError` when it has none."""
    from pydantic_core import to_jsonable_python

    try:
        return storable(json.dumps(to_jsonable_python(value), ensure_ascii=False, allow_nan=False))
    except (ValueError, TypeError, RecursionError) as error:
        raise ToolError(f"a value of type {type(value).__name__} has no JSON form: {error}") from error


def storable(text: str) -> str:
    """The text with every unpaired surrogate replaced by U+FFFD: such a text has no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _error(message: str, code: str) -> dict[str, Any]:
    return {"ok": False, "error": message, "error_code": code}


def _present(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}
