"""What a hostile repository or a confused model makes of the tools: nothing is held, filled or given away."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pathspec import GitIgnoreSpec

from vv_agent import Agent, NoToolPolicy, Runner
from vv_agent.messages import ToolCall
from vv_agent.results import ToolExecutionResult
from vv_agent.skills.catalog import normalize_skill_list
from vv_agent.testing import ScriptedProvider, call
from vv_agent.tools.base import ToolContext
from vv_agent.tools.builtin import build_default_registry
from vv_agent.workspace import LocalWorkspaceBackend
from vv_agent.workspace.ignored import Ignored, linear

STORE = "sqlite:////srv/secret.db"


def run(folder: Path, tool: str, **arguments: Any) -> ToolExecutionResult:
    context = ToolContext(workspace=LocalWorkspaceBackend(folder), file_baselines={})
    if tool == "edit_file":
        build_default_registry().execute(ToolCall("r", "read_file", json.dumps({"path": arguments["path"]})), context)
    return build_default_registry().execute(ToolCall("c", tool, json.dumps(arguments)), context)


def told(result: ToolExecutionResult) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.content)
    return found


@pytest.mark.parametrize("line", ["*a" * 9 + "*b", "**/a" * 30, "x*y/**/" + "*a" * 9 + "b"])
def test_a_line_of_a_gitignore_holds_nobody(tmp_path: Path, line: str) -> None:
    (tmp_path / ".gitignore").write_text(f"{line}\nbuilt\n")
    (tmp_path / ("a" * 200)).write_text("")
    (tmp_path / "built").write_text("")
    began = time.monotonic()
    assert told(run(tmp_path, "find_files"))["files"] == ["a" * 200]
    assert time.monotonic() - began < 5


def test_lines_of_a_gitignore_match_as_before_in_linear_time(tmp_path: Path) -> None:
    dice = random.Random(7)
    for _ in range(3_000):
        line = "".join(dice.choice("ab*?") for _ in range(dice.randint(1, 9)))
        line = line.replace("**", "*") + dice.choice(["", "/b*a"])
        (tmp_path / ".gitignore").write_text(line)
        ours, theirs = Ignored(LocalWorkspaceBackend(tmp_path)), GitIgnoreSpec.from_lines([line])
        for _ in range(5):
            path = "/".join(
                "".join(dice.choice("ab") for _ in range(dice.randint(1, 6))) for _ in range(dice.randint(1, 2))
            )
            assert ours.file(path) == theirs.match_file(path), (line, path)
    assert "(?>" in linear("^[^/]*a[^/]*b[^/]*c$")


@pytest.mark.parametrize("line", ["[z-a]", "foo\\", "x" * 5])
def test_a_line_that_is_no_pattern_leaves_the_others_in_force(tmp_path: Path, line: str) -> None:
    (tmp_path / ".gitignore").write_text(f"{line}\nbuilt\n")
    for name in ("built", "kept"):
        (tmp_path / name).write_text("")
    assert told(run(tmp_path, "find_files"))["files"] == ["kept"]


@pytest.mark.parametrize(
    ("pattern", "literal"), [("-" * 1_001, True), ("-" * 1_001, False), ("(?R)?a", False), ("(a(?1)?b)", False)]
)
def test_a_pattern_that_would_take_the_worker_is_refused(tmp_path: Path, pattern: str, literal: bool) -> None:
    result = run(tmp_path, "search_files", pattern=pattern, literal=literal)
    assert result.error_code == "invalid_arguments"


def test_an_edit_makes_no_file_that_no_tool_can_take(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 100_000)
    result = run(tmp_path, "edit_file", path="a.txt", old_string="x", new_string="y" * 1_000, replace_all=True)
    assert result.error_code == "workspace_backend_error"
    assert "100000000 bytes" in result.content
    assert (tmp_path / "a.txt").stat().st_size == 100_000


def test_new_lines_of_an_edit_end_as_the_files_do(tmp_path: Path) -> None:
    (tmp_path / "a.bat").write_bytes(b"one\r\ntwo\r\n")
    assert run(tmp_path, "edit_file", path="a.bat", old_string="two", new_string="two\nthree").status_code == "SUCCESS"
    assert (tmp_path / "a.bat").read_bytes() == b"one\r\ntwo\r\nthree\r\n"


def test_many_places_are_shown_in_linear_time(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\n" + "\n" * 7 * 1 + "x\n" * 60_000)
    began = time.monotonic()
    result = run(tmp_path, "edit_file", path="a.txt", old_string="x", new_string="y", replace_all=True)
    assert result.status_code == "SUCCESS"
    assert time.monotonic() - began < 10


def test_a_command_does_not_read_where_the_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VV_AGENT_STORE", STORE)
    result = run(tmp_path, "bash", command="tr '\\0' '\\n' </proc/$PPID/environ; env")
    assert result.status_code == "SUCCESS"
    assert STORE not in result.content


def test_variables_of_a_command_stand_on_no_command_line(tmp_path: Path) -> None:
    context = ToolContext(workspace=LocalWorkspaceBackend(tmp_path), metadata={"bash_env": {"TOKEN": "hunter2"}})
    command = json.dumps({"command": 'echo "$TOKEN"; tr "\\0" " " </proc/$PPID/cmdline'})
    result = build_default_registry().execute(ToolCall("c", "bash", command), context)
    assert told(result)["output"].startswith("hunter2\n")
    assert result.content.count("hunter2") == 1


@pytest.mark.parametrize("folder", ["a\0b", "x" * 5_000])
def test_a_folder_that_cannot_be_is_refused_before_anything_starts(tmp_path: Path, folder: str) -> None:
    assert run(tmp_path, "bash", command="true", exec_dir=folder).error_code == "invalid_exec_dir"


@pytest.mark.parametrize("tool", ["nope", "read_file"])
def test_deep_arguments_are_refused_and_the_run_goes_on(tmp_path: Path, tool: str) -> None:
    deep: Any = "x"
    for _ in range(600):
        deep = [deep]
    agent = Agent(name="a", instructions="A.", no_tool_policy=NoToolPolicy.FINISH)
    provider = ScriptedProvider([call(tool, {"path": deep}), "done"])
    result = Runner(model_provider=provider, workspace=tmp_path).run_sync(agent, "Go.")
    assert result.final_output == "done"
    (given,) = [message for message in result.messages if message.role == "tool"]
    assert "invalid_arguments_json" in given.content


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are UTF-8")
@pytest.mark.parametrize("tool", ["read_file", "write_file"])
def test_a_link_to_a_name_that_is_no_text_is_no_end_of_the_run(tmp_path: Path, tool: str) -> None:
    target = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    with open(target, "wb") as file:
        file.write(b"hello\n")
    os.symlink(target, tmp_path / "readme.txt")
    more = {"content": "x", "append": True} if tool == "write_file" else {}
    agent = Agent(name="a", instructions="A.", no_tool_policy=NoToolPolicy.FINISH)
    steps = [call("read_file", {"path": "readme.txt"}), call(tool, {"path": "readme.txt", **more}), "done"]
    result = Runner(model_provider=ScriptedProvider(steps), workspace=tmp_path).run_sync(agent, "Go.")
    assert result.final_output == "done"
    assert [m for m in result.messages if m.role == "tool" and '"ok": false' in m.content] == []


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are UTF-8")
def test_a_skill_in_a_folder_whose_name_is_no_text_is_not_offered(tmp_path: Path) -> None:
    for folder, name in ((b"caf\xe9", "cafe"), (b"good", "good")):
        os.mkdir(os.fsencode(tmp_path) + b"/" + folder)
        with open(os.fsencode(tmp_path) + b"/" + folder + b"/SKILL.md", "w") as file:
            file.write(f"---\nname: {name}\ndescription: d\n---\nDo it.\n")
    (tmp_path / "big").mkdir()
    (tmp_path / "big/SKILL.md").write_text(f"---\nname: big\ndescription: d\nlicense: 0x{'f' * 4_500}\n---\n")
    found = {entry.name: entry.load_error for entry in normalize_skill_list([str(tmp_path)])}
    assert found.pop("good") is None
    assert len(found) == 2
    assert all(found.values())
    json.dumps([*found]).encode()


def test_a_file_that_is_too_large_to_be_searched_is_no_file_without_matches(tmp_path: Path) -> None:
    (tmp_path / "big.log").write_text("ERROR here\n" * 1_600_000)
    result = run(tmp_path, "search_files", pattern="ERROR", path="big.log")
    assert (result.status_code, "are searched" in result.content) == ("ERROR", True)


def test_a_skill_that_cannot_be_loaded_does_not_hide_one_that_can(tmp_path: Path) -> None:
    for folder, text in (("a/good", "no header"), ("b/good", "---\nname: good\ndescription: d\n---\nDo it.\n")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "SKILL.md").write_text(text)
    (found,) = normalize_skill_list([str(tmp_path / "a"), str(tmp_path / "b")])
    assert (found.name, found.load_error) == ("good", None)


def test_threads_that_append_to_one_file_lose_nothing(tmp_path: Path) -> None:
    space = LocalWorkspaceBackend(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: space.write_text("log", f"{n}\n", append=True), range(60)))
    assert sorted(map(int, (tmp_path / "log").read_text().split())) == [*range(60)]
