"""builtin_tool_behavior.json, as far as it is about files; and for each file tool what wrong arguments get."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract.fixtures import load
from vv_agent.messages import ToolCall
from vv_agent.results import ToolExecutionResult
from vv_agent.tools.base import ToolContext
from vv_agent.tools.builtin import build_default_registry
from vv_agent.tools.builtin.baselines import MAX_BYTES
from vv_agent.workspace import (
    DiscoveryFilteredWorkspaceBackend,
    LocalWorkspaceBackend,
    MemoryWorkspaceBackend,
    WorkspaceBackend,
)

FIXTURE = load("builtin_tool_behavior.json")
REGISTRY = build_default_registry()
FORBIDDEN = set(FIXTURE["canonical"]["metadata_policy"]["forbidden_large_keys"])


def run(workspace: WorkspaceBackend | None, tool: str, arguments: dict[str, Any], **fields: Any) -> ToolExecutionResult:
    return REGISTRY.execute(ToolCall("call", tool, json.dumps(arguments)), ToolContext(workspace=workspace, **fields))


def check(result: ToolExecutionResult, expected: dict[str, Any]) -> None:
    wire = result.to_wire()
    wire["content"] = json.loads(wire["content"])
    assert wire == {"tool_call_id": "call", **expected}


def test_arguments_of_file_info_are_checked_first(tmp_path: Path) -> None:
    case = FIXTURE["tools"]["file_info"]["missing_path"]
    for tool in ("file_info", "read_file", "read_image"):
        check(run(LocalWorkspaceBackend(tmp_path), tool, case["arguments"]), case["result"])


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    case = FIXTURE["tools"]["find_files"]["missing_directory"]
    for workspace in (LocalWorkspaceBackend(tmp_path), MemoryWorkspaceBackend()):
        check(run(workspace, "find_files", case["arguments"]), case["result"])


def test_an_image_too_large_for_a_message_says_both_sizes(tmp_path: Path) -> None:
    case = FIXTURE["tools"]["read_image"]["too_large"]
    (tmp_path / case["path"]).write_bytes(b"\0" * case["actual_bytes"])
    check(run(LocalWorkspaceBackend(tmp_path), "read_image", {"path": case["path"]}), case["result"])


def _sparse(root: Path, name: str, size: int) -> None:
    with open(root / name, "wb") as file:
        file.truncate(size)


def _prepare(root: Path) -> None:
    """One of each thing a path can lead to."""
    (root / "root/dir").mkdir(parents=True)
    inside = root / "root"
    (root / "secret.txt").write_text("secret")
    (inside / "a.txt").write_text("one\ntwo\none\n")
    (inside / "latin.txt").write_bytes(b"caf\xe9\n")
    (inside / "a.png").write_bytes(b"png")
    (inside / "link.txt").symlink_to(root / "secret.txt")
    (inside / "link.png").symlink_to(root / "secret.txt")
    (inside / "out").symlink_to(root)
    os.mkfifo(inside / "pipe")
    os.mkfifo(inside / "pipe.png")
    _sparse(inside, "huge.txt", MAX_BYTES + 1)


ESCAPES = "path_escapes_workspace"
OUTSIDE = ["../secret.txt", "/etc/passwd", "~/x", "out/secret.txt", "link.txt", "a\0b", "dir/../../secret.txt"]
WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    "find_files": [
        *(({"path": path}, ESCAPES) for path in ("..", "/etc", "~", "out", "a\0b")),
        ({"path": "no"}, "path_not_found"),
        ({"path": "a.txt"}, "not_a_directory"),
        ({"max_results": 0}, "invalid_arguments"),
        ({"max_results": 5001}, "invalid_arguments"),
        ({"scan_limit": 99}, "invalid_arguments"),
        ({"max_results": 10, "scan_limit": 9}, "invalid_arguments"),
        ({"offset": -1}, "invalid_tool_arguments"),
        ({"sort": "size"}, "invalid_tool_arguments"),
        ({"pattern": "*"}, "invalid_tool_arguments"),
        ({"max_results": "10"}, "invalid_tool_arguments"),
    ],
    "file_info": [
        *(({"path": path}, ESCAPES) for path in OUTSIDE),
        ({"path": "no"}, "path_not_found"),
        ({"path": "a.txt/no"}, "path_not_found"),
        ({"path": "x" * 300}, "workspace_backend_error"),
        ({"path": 1}, "invalid_tool_arguments"),
        ({"path": "a.txt", "more": 1}, "invalid_tool_arguments"),
    ],
    "read_file": [
        *(({"path": path}, ESCAPES) for path in OUTSIDE),
        ({"path": "no"}, "file_not_found"),
        ({"path": "dir"}, "file_not_found"),
        ({"path": "pipe"}, "file_not_found"),
        ({"path": ""}, "file_not_found"),
        ({"path": "a.txt", "start_line": 3, "end_line": 2}, "invalid_arguments"),
        ({"path": "a.txt", "start_line": 9}, "invalid_arguments"),
        ({"path": "a.txt", "start_line": 0}, "invalid_tool_arguments"),
        ({"path": "latin.txt"}, "unsupported_encoding"),
        ({"path": "huge.txt"}, "workspace_backend_error"),
    ],
    "write_file": [
        *(({"path": path, "content": "x"}, ESCAPES) for path in OUTSIDE),
        ({"path": "a.txt", "content": "x"}, "file_not_read"),
        ({"path": "latin.txt", "content": "x"}, "file_not_read"),
        ({"path": "dir", "content": "x"}, "workspace_backend_error"),
        ({"path": "pipe", "content": "x"}, "workspace_backend_error"),
        ({"path": "a.txt/b", "content": "x"}, "workspace_backend_error"),
        ({"path": "", "content": "x"}, "workspace_backend_error"),
        ({"path": "huge.txt", "content": "x", "append": True}, "workspace_backend_error"),
        ({"path": ".vv-agent-workspace", "content": "x"}, "workspace_backend_error"),
        ({"path": "new"}, "invalid_tool_arguments"),
        ({"path": "new", "content": 1}, "invalid_tool_arguments"),
    ],
    "edit_file": [
        *(({"path": path, "old_string": "a", "new_string": "b"}, ESCAPES) for path in OUTSIDE),
        ({"path": "no", "old_string": "a", "new_string": "b"}, "file_not_found"),
        ({"path": "dir", "old_string": "a", "new_string": "b"}, "workspace_backend_error"),
        ({"path": "a.txt", "old_string": "", "new_string": "b"}, "old_string_empty"),
        ({"path": "a.txt", "old_string": "one", "new_string": "one"}, "no_changes"),
        ({"path": "latin.txt", "old_string": "c", "new_string": "b"}, "unsupported_encoding"),
        ({"path": "a.txt", "old_string": "two", "new_string": "b"}, "file_not_read"),
        ({"path": "huge.txt", "old_string": "a", "new_string": "b"}, "workspace_backend_error"),
        ({"path": "a.txt", "old_string": "two"}, "invalid_tool_arguments"),
        ({"path": "a.txt", "old_string": "a", "new_string": "b", "replace_all": "yes"}, "invalid_tool_arguments"),
    ],
    "search_files": [
        *(({"pattern": "x", "path": path}, ESCAPES) for path in OUTSIDE),
        ({"pattern": "x", "path": "no"}, "path_not_found"),
        *(({"pattern": pattern}, "invalid_arguments") for pattern in ("", "(", "[z-a]", "a\nb", "a\\nb", "*", "x" * 10_001)),
        ({"pattern": "(?:(?:a{999}){999}){999}"}, "invalid_arguments"),
        ({"pattern": "(" * 5_000}, "invalid_arguments"),
        ({"pattern": "x", "type": "cobol"}, "invalid_arguments"),
        *(({"pattern": "x", name: value}, "invalid_arguments") for name in "abc" for value in (-1, 101)),
        ({"pattern": "x", "output_mode": "lines"}, "invalid_tool_arguments"),
        ({"pattern": "x", "head_limit": -1}, "invalid_tool_arguments"),
        ({"pattern": "x", "offset": -1}, "invalid_tool_arguments"),
        ({"path": "a.txt"}, "invalid_tool_arguments"),
    ],
    "read_image": [
        *(({"path": path}, ESCAPES) for path in ("../a.png", "/a.png", "~/a.png", "link.png", "out/a.png", "a\0.png")),
        ({"path": " "}, "path_required"),
        ({"path": "no.png"}, "image_not_found"),
        ({"path": "pipe.png"}, "image_not_found"),
        ({"path": "a.txt"}, "unsupported_image_format"),
        ({"path": "dir"}, "unsupported_image_format"),
        ({"path": "file:///etc/passwd"}, "unsupported_image_format"),
        ({}, "invalid_tool_arguments"),
    ],
}  # fmt: skip


def _state(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() and path.stat().st_size < 99 else b"")
        for path in sorted(root.rglob("*"))
    }


@pytest.mark.parametrize("tool", WRONG)
def test_wrong_arguments_get_their_code_and_nothing_is_done(tmp_path: Path, tool: str) -> None:
    _prepare(tmp_path)
    before, baselines = _state(tmp_path), {"dir": "x"}
    got = []
    for arguments, code in WRONG[tool]:
        result = run(LocalWorkspaceBackend(tmp_path / "root"), tool, arguments, file_baselines=baselines)
        assert result.status_code == "ERROR", arguments
        content = json.loads(result.content)
        assert (content["ok"], content["error_code"], result.metadata and result.metadata["error_code"]) == (
            False, result.error_code, result.error_code,
        )  # fmt: skip
        assert content["error"]
        got.append((arguments, result.error_code))
        assert code
    assert got == WRONG[tool]
    assert _state(tmp_path) == before
    assert baselines == {"dir": "x"}


@pytest.mark.parametrize("tool", WRONG)
def test_a_run_without_a_workspace_has_no_files(tool: str) -> None:
    arguments = {"path": "a.png", "content": "x", "old_string": "a", "new_string": "b", "pattern": "x"}
    known = {name: arguments[name] for name in REGISTRY.get(tool).params_json_schema["properties"] if name in arguments}
    assert run(None, tool, known).error_code == "workspace_backend_error"


OPENED: list[Callable[[Path], WorkspaceBackend]] = [
    LocalWorkspaceBackend,
    lambda root: DiscoveryFilteredWorkspaceBackend(LocalWorkspaceBackend(root), "^never$"),
]


@pytest.mark.parametrize("open_it", OPENED, ids=["local", "filtered"])
@pytest.mark.parametrize("said", [True, "true", "1", "yes", "ON", 1])
def test_the_host_may_let_a_run_out_of_its_workspace(
    tmp_path: Path, open_it: Callable[[Path], WorkspaceBackend], said: object
) -> None:
    _prepare(tmp_path)
    (tmp_path / "shared.txt").write_text("shared")
    workspace, there = open_it(tmp_path / "root"), str(tmp_path / "shared.txt")
    metadata = {"workspace_allow_outside": said}
    assert json.loads(run(workspace, "read_file", {"path": "../shared.txt"}, metadata=metadata).content)["content"]
    found = run(workspace, "search_files", {"pattern": "shared", "path": str(tmp_path)}, metadata=metadata)
    assert found.metadata is not None
    assert there in found.metadata["files"]
    listed = json.loads(run(workspace, "find_files", {"path": ".."}, metadata=metadata).content)["files"]
    assert there in listed
    denied = run(workspace, "read_file", {"path": "../shared.txt"}, metadata={"workspace_allow_outside": "no"})
    assert denied.error_code == ESCAPES


def test_no_metadata_of_a_file_tool_holds_what_the_model_reads(tmp_path: Path) -> None:
    _prepare(tmp_path)
    workspace, baselines = LocalWorkspaceBackend(tmp_path / "root"), dict[str, str]()
    for tool, arguments in [
        ("read_file", {"path": "a.txt"}),
        ("edit_file", {"path": "a.txt", "old_string": "two", "new_string": "2"}),
        ("write_file", {"path": "a.txt", "content": "x"}),
        ("search_files", {"pattern": "x", "output_mode": "content"}),
        ("find_files", {}),
        ("file_info", {"path": "a.txt"}),
        ("read_image", {"path": "a.png"}),
    ]:
        result = run(workspace, tool, arguments, file_baselines=baselines)
        assert result.status_code == "SUCCESS", result
        assert not FORBIDDEN & set(result.metadata or {})
