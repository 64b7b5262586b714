"""The built-in tools of the core: finishing, reading and writing, and a write that was interrupted."""

from __future__ import annotations

import dataclasses
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from vv_agent.errors import ClaimLost
from vv_agent.messages import ToolCall
from vv_agent.references import load, name_of
from vv_agent.results import ToolExecutionResult
from vv_agent.tools.base import CallSafety, Decidable, ToolContext, safety_of
from vv_agent.tools.builtin import build_default_registry, read_file, task_finish, write_file
from vv_agent.tools.builtin.baselines import MAX_BYTES
from vv_agent.workspace import LocalWorkspaceBackend

REGISTRY = build_default_registry()


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


class Crash(KeyboardInterrupt):
    """The process dies here. No other error leaves a tool."""


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(tool_call_id="c", workspace=LocalWorkspaceBackend(tmp_path))


def run(context: ToolContext, name: str, **arguments: Any) -> ToolExecutionResult:
    return REGISTRY.execute(ToolCall("c", name, json.dumps(arguments)), context)


def content(result: ToolExecutionResult) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(result.content)
    return loaded


def test_each_tool_is_named_by_its_module_and_declares_the_truth() -> None:
    tools = {"control:task_finish": task_finish, "reading:read_file": read_file, "writing:write_file": write_file}
    for path, tool in tools.items():
        assert name_of(tool) == f"vv_agent.tools.builtin.{path}"
        assert load(f"vv_agent.tools.builtin.{path}", []) is tool
    assert [safety_of(tool) for tool in tools.values()] == [
        CallSafety.REPEATABLE,
        CallSafety.REPEATABLE,
        CallSafety.DECIDABLE,
    ]
    declared = [tool.tool_metadata.to_wire() for tool in tools.values() if tool.tool_metadata]
    assert [(item["side_effect"], item["idempotency"], item["terminal"]) for item in declared] == [
        ("none", "supported", True),
        ("read", "supported", False),
        ("write", "unknown", False),
    ]


def test_finishing_says_what_was_made(context: ToolContext) -> None:
    result = run(context, "task_finish", message=" Done. ", exposed_files=[" a.txt ", " "])
    assert result.directive == "finish"
    assert content(result) == {"ok": True, "message": "Done."}
    assert result.metadata == {"final_message": "Done.", "exposed_files": ["a.txt"]}
    assert run(context, "task_finish", exposed_files=[" "]).metadata == {"final_message": "Task completed"}


def test_open_todos_keep_a_task_from_finishing_unless_told_otherwise(context: ToolContext) -> None:
    context.shared_state["todo_list"] = [
        {"title": "one", "status": "completed"},
        {"title": "two", "status": "in_progress"},
        {"title": "three"},
        "garbage",
    ]
    result = run(context, "task_finish")
    assert (result.error_code, result.directive) == ("todo_incomplete", "continue")
    assert content(result)["incomplete_todos"] == ["two", "three"]
    assert run(context, "task_finish", require_all_todos_completed=False).directive == "finish"
    context.shared_state["todo_list"] = "garbage"
    assert run(context, "task_finish").directive == "finish"


def test_a_whole_file_is_read_and_remembered(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntw\x0co\n")
    result = run(context, "read_file", path="./a.txt")
    assert content(result) == {
        "path": "./a.txt",
        "start_line": 1,
        "end_line": 2,
        "show_line_numbers": False,
        "content": "one\r\ntw\x0co\n",
    }
    assert context.file_baselines == {"a.txt": sha256((tmp_path / "a.txt").read_bytes()).hexdigest()}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"start_line": 2}, (2, 3, "two\nthree")),
        ({"end_line": 2}, (1, 2, "one\ntwo\n")),
        ({"start_line": 3, "end_line": 99}, (3, 3, "three")),
        ({"start_line": 2, "end_line": 2, "show_line_numbers": True}, (2, 2, "2: two")),
        ({"show_line_numbers": True}, (1, 3, "1: one\n2: two\n3: three")),
        ({"start_line": 2.0}, (2, 3, "two\nthree")),
    ],
    ids=str,
)
def test_lines_are_counted_from_one(
    context: ToolContext, tmp_path: Path, arguments: dict[str, Any], expected: tuple[int, int, str]
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree")
    found = content(run(context, "read_file", path="a.txt", **arguments))
    assert (found["start_line"], found["end_line"], found["content"]) == expected
    whole = "start_line" not in arguments and "end_line" not in arguments
    assert context.file_baselines == {"a.txt": ("" if whole else "partial:") + digest("one\ntwo\nthree")}


def test_an_empty_file_has_no_lines(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    found = content(run(context, "read_file", path="a.txt"))
    assert (found["start_line"], found["end_line"], found["content"]) == (1, 0, "")
    assert context.file_baselines == {"a.txt": digest("")}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"path": "none.txt"}, "file_not_found"),
        ({"path": "."}, "file_not_found"),
        ({"path": "../a.txt"}, "path_escapes_workspace"),
        ({"path": "binary"}, "unsupported_encoding"),
        ({"path": "a.txt", "start_line": 3, "end_line": 2}, "invalid_arguments"),
        ({"path": "a.txt", "start_line": 9}, "invalid_arguments"),
        ({"path": "a.txt", "start_line": 0}, "invalid_tool_arguments"),
        ({"path": "huge"}, "workspace_backend_error"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_an_error_with_its_code(
    context: ToolContext, tmp_path: Path, arguments: dict[str, Any], code: str
) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "binary").write_bytes(b"\x80\x81")
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(MAX_BYTES + 1)
    result = run(context, "read_file", **arguments)
    assert (result.error_code, content(result)["ok"], (result.metadata or {})["error_code"]) == (code, False, code)
    assert context.file_baselines == {}


@pytest.mark.parametrize(
    ("text", "suggested"),
    [("x\n" * 2001, 2000), ("y" * 29_999 + "\n" + "z" * 29_999 + "\n", 1), ("w" * 50_001, 1)],
    ids=["lines", "characters", "one line"],
)
def test_a_file_too_long_to_show_gives_its_size_and_a_range(
    context: ToolContext, tmp_path: Path, text: str, suggested: int
) -> None:
    (tmp_path / "a.txt").write_text(text)
    result = run(context, "read_file", path="a.txt")
    found = content(result)
    assert (result.status_code, found["content"]) == ("SUCCESS", None)
    assert found["file_info"] == {"total_lines": text.count("\n") or 1, "total_chars": len(text)}
    assert found["requested"] == {"start_line": 1, "end_line": found["file_info"]["total_lines"]}
    assert found["limits"] == {"max_lines": 2000, "max_chars": 50_000}
    assert found["suggested_range"] == {"start_line": 1, "end_line": suggested}
    assert found["message"]
    assert context.file_baselines == {"a.txt": "partial:" + digest(text)}


def test_a_new_file_is_written_and_may_be_written_again(context: ToolContext, tmp_path: Path) -> None:
    result = run(context, "write_file", path="sub/a.txt", content="größe")
    assert content(result) == {
        "ok": True,
        "path": "sub/a.txt",
        "append": False,
        "leading_newline": False,
        "trailing_newline": False,
        "written_bytes": 7,
        "written_chars": 5,
    }
    assert result.metadata == {"changed_files": ["sub/a.txt"], "operation": "write", "append": False}
    assert run(context, "write_file", path="./sub/a.txt", content="two").status_code == "SUCCESS"
    assert (tmp_path / "sub/a.txt").read_text() == "two"
    assert context.file_baselines == {"sub/a.txt": digest("two")}


def test_a_file_the_model_has_not_seen_as_it_is_stays(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("mine\nyours\n")
    assert run(context, "write_file", path="a.txt", content="x").error_code == "file_not_read"
    run(context, "read_file", path="a.txt", end_line=1)
    assert run(context, "write_file", path="a.txt", content="x").error_code == "file_not_read"
    run(context, "read_file", path="a.txt")
    (tmp_path / "a.txt").write_text("changed")
    assert run(context, "write_file", path=str(tmp_path / "a.txt"), content="x").error_code == "file_changed_since_read"
    assert (tmp_path / "a.txt").read_text() == "changed"


def test_appending_needs_no_reading_but_is_no_reading_either(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    result = run(
        context, "write_file", path="a.txt", content="two", append=True, leading_newline=True, trailing_newline=True
    )
    assert (tmp_path / "a.txt").read_text() == "one\ntwo\n"
    found = content(result)
    assert (found["append"], found["leading_newline"], found["trailing_newline"]) == (True, True, True)
    assert (found["written_bytes"], found["written_chars"]) == (5, 5)
    assert (result.metadata or {})["operation"] == "append"
    assert run(context, "write_file", path="a.txt", content="x").error_code == "file_not_read"
    run(context, "read_file", path="a.txt")
    run(context, "write_file", path="a.txt", content="three", append=True)
    assert run(context, "write_file", path="a.txt", content="x", leading_newline=True).status_code == "SUCCESS"
    assert (tmp_path / "a.txt").read_text() == "x"
    run(context, "write_file", path="new.txt", content="1", append=True)
    assert run(context, "write_file", path="new.txt", content="2").status_code == "SUCCESS"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("../a", "path_escapes_workspace"),
        (".", "workspace_backend_error"),
        ("", "workspace_backend_error"),
        (".vv-agent-workspace", "workspace_backend_error"),
    ],
)
def test_what_cannot_be_written_is_an_error_with_its_code(context: ToolContext, path: str, code: str) -> None:
    assert run(context, "write_file", path=path, content="x").error_code == code
    assert run(dataclasses.replace(context, workspace=None), "write_file", path="a", content="x").error_code is not None


def test_a_worker_that_lost_its_claim_leaves_the_file_as_it_was(context: ToolContext, tmp_path: Path) -> None:
    asked: list[int] = []

    def over() -> None:
        asked.append(1)
        if len(asked) > 1:  # it is lost between the start of the handler and the rename
            raise ClaimLost("taken over")

    (tmp_path / "a.txt").write_text("old")
    run(context, "read_file", path="a.txt")
    with pytest.raises(ClaimLost):
        run(dataclasses.replace(context, check_claim=over), "write_file", path="a.txt", content="new")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert context.file_baselines == {"a.txt": digest("old")}


def test_a_file_that_changes_while_it_is_written_is_not_overwritten(context: ToolContext, tmp_path: Path) -> None:
    write = dataclasses.replace(context, check_claim=lambda: (tmp_path / "a.txt").write_text("theirs"))
    assert run(write, "write_file", path="a.txt", content="x").error_code == "file_changed_since_read"
    assert (tmp_path / "a.txt").read_text() == "theirs"


CALLS: list[dict[str, Any]] = [
    {"path": "a.txt", "content": "new"},
    {"path": "a.txt", "content": "more", "append": True, "leading_newline": True},
    {"path": "made/b.txt", "content": "new"},
    {"path": "made/b.txt", "content": "", "append": True},
]


@pytest.mark.parametrize("arguments", CALLS, ids=str)
def test_an_interrupted_write_is_judged_by_the_file(
    context: ToolContext, tmp_path: Path, arguments: dict[str, Any]
) -> None:
    assert isinstance(write_file, Decidable)
    (tmp_path / "a.txt").write_text("old")
    run(context, "read_file", path="a.txt")
    known = dict(context.file_baselines)
    intent = json.loads(json.dumps(write_file.intend(context, arguments)))
    assert set(intent) == {"path", "before", "after"}
    assert write_file.examine(context, arguments, intent) == "not_done"

    direct = run(context, "write_file", **arguments)
    after = dict(context.file_baselines)
    context.file_baselines.clear()
    context.file_baselines.update(known)  # what the crashed worker had saved before the call
    assert write_file.examine(context, arguments, intent) == "done"
    assert write_file.replayed(context, arguments, intent) == direct
    assert context.file_baselines == after

    (tmp_path / arguments["path"]).write_text("somebody else's")
    assert write_file.examine(context, arguments, intent) == "ambiguous"


def test_a_crash_before_the_rename_is_not_done_and_after_it_is_done(context: ToolContext, tmp_path: Path) -> None:
    arguments = {"path": "a.txt", "content": "new"}
    intent = write_file.intend(context, arguments)

    def crash() -> None:
        if any(path.suffix == ".tmp" for path in tmp_path.iterdir()):
            raise Crash

    with pytest.raises(Crash):
        run(dataclasses.replace(context, check_claim=crash), "write_file", **arguments)
    assert write_file.examine(context, arguments, intent) == "not_done"
    run(context, "write_file", **arguments)
    assert write_file.examine(context, arguments, intent) == "done"


def test_an_intent_that_could_not_be_made_decides_nothing(context: ToolContext, tmp_path: Path) -> None:
    arguments = {"path": "a.txt", "content": "x", "append": True}
    for broken in (dataclasses.replace(context, workspace=None), context):
        intent = write_file.intend(broken, {**arguments, "path": "../a.txt"})
        assert intent == {"path": "../a.txt", "before": None, "after": None}
        assert write_file.examine(broken, arguments, intent) == "ambiguous"
