"""Results too long for a model: the whole text goes into a file of the workspace, the result keeps both ends of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

from vv_agent.errors import ClaimLost
from vv_agent.results import ToolExecutionResult
from vv_agent.workspace.base import WorkspaceBackend

ARTIFACTS = ".memory/tool_results"
"""Folder of the workspace for texts that were cut."""
MAX_CHARS = 100_000
"""Code points of a result that go to the model as they are; it reads the text again in every later request."""
HEAD, TAIL = 40_000, 10_000
"""Code points of a cut text that stay."""
_WRAP = 2_000
"""Code points of a line in the file at most: the tools read files by lines."""
_SAFE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


def shortened(
    result: ToolExecutionResult, workspace: WorkspaceBackend | None, cycle: int, check_claim: Callable[[], None]
) -> ToolExecutionResult:
    """The result, cut to both ends if it is longer than `MAX_CHARS`; metadata then has `result_chars`, and
    `result_artifact` if the whole text could be kept. Only the end of the worker's claim is raised."""
    text = result.content
    if len(text) <= MAX_CHARS:
        return result
    metadata = {**(result.metadata or {}), "result_chars": len(text)}
    try:
        path = keep(workspace, cycle, result.tool_call_id, text, check_claim)
    except ClaimLost:
        raise
    except Exception as error:
        where = f"the rest could not be kept ({error}); ask for less at a time"
    else:
        metadata["result_artifact"] = path
        where = f"the whole text is in {path}, in lines of at most {_WRAP} characters: read parts of it with read_file"
    cut = f"\n\n[{len(text) - HEAD - TAIL} of {len(text)} characters are left out here; {where}]\n\n"
    return result.model_copy(update={"content": text[:HEAD] + cut + text[-TAIL:], "metadata": metadata})


def keep(
    workspace: WorkspaceBackend | None, cycle: int, tool_call_id: str, text: str, check_claim: Callable[[], None],
    *, folder: str = ARTIFACTS,
) -> str:  # fmt: skip
    """Write a text into the workspace and give its path. The same call writes the same file again; another call with
    the same id, which some providers give to each first call, has a file of its own."""
    if workspace is None:
        raise OSError("this run has no workspace")
    name = tool_call_id if _SAFE.fullmatch(tool_call_id) else f"tool_result_{_hex(f'{tool_call_id}{chr(0)}{text}')}"
    path, data = f"{folder}/cycle_{cycle}/{name}.txt", _wrapped(text).encode()
    if workspace.is_file(path) and workspace.read_bytes(path) != data:
        path = f"{folder}/cycle_{cycle}/{name}-{_hex(text)[:8]}.txt"
    check_claim()
    workspace.write_bytes(path, data, before_rename=check_claim)
    return path


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _wrapped(text: str) -> str:
    lines = text.split("\n")
    return "\n".join(
        "\n".join(line[at : at + _WRAP] for at in range(0, len(line), _WRAP)) if len(line) > _WRAP else line
        for line in lines
    )
