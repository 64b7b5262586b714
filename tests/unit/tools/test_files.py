"""`edit_file`, `find_files`, `file_info` and `read_image`: what they do, and an edit that was interrupted."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import servers
from vv_agent.cancellation import CancellationToken
from vv_agent.messages import ToolCall
from vv_agent.results import ToolExecutionResult
from vv_agent.tools.base import CallSafety, Decidable, ToolContext, safety_of
from vv_agent.tools.builtin import build_default_registry
from vv_agent.tools.builtin.base import lf_lines
from vv_agent.tools.builtin.editing import edit_file
from vv_agent.tools.builtin.selection import sensitive
from vv_agent.workspace import LocalWorkspaceBackend, MemoryWorkspaceBackend

REGISTRY = build_default_registry()


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(tool_call_id="c", workspace=LocalWorkspaceBackend(tmp_path))


def run(context: ToolContext, name: str, **arguments: Any) -> ToolExecutionResult:
    return REGISTRY.execute(ToolCall("c", name, json.dumps(arguments)), context)


def content(result: ToolExecutionResult) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(result.content)
    return loaded


def edit(context: ToolContext, old: str, new: str, **more: Any) -> ToolExecutionResult:
    run(context, "read_file", path="a.txt")
    return run(context, "edit_file", path="a.txt", old_string=old, new_string=new, **more)


def test_descriptions_say_when_what_and_how_to_narrow() -> None:
    for name in ("find_files", "file_info", "read_file", "write_file", "edit_file", "search_files", "read_image"):
        tool = REGISTRY.get(name)
        assert len(tool.description) > 150
        parameters = tool.params_json_schema["properties"]
        explained = [p for p in parameters if p in tool.description or len(p) == 1 or p in ("path", "content", "sort")]
        assert len(explained) >= len(parameters) - 4, name
    expected = {
        "edit_file": CallSafety.DECIDABLE, "write_file": CallSafety.DECIDABLE, "bash": CallSafety.UNSAFE,
    }  # fmt: skip
    for name in REGISTRY.list_tool_names():
        assert safety_of(REGISTRY.get(name)) is expected.get(name, CallSafety.REPEATABLE)


def test_an_edit_replaces_one_place_and_shows_it(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    result = edit(context, "two", "2")
    assert content(result) == {"ok": True, "path": "a.txt", "replaced_count": 1}
    assert result.metadata == {
        "changed_files": ["a.txt"], "operation": "edit", "additions": 1, "deletions": 1, "line_ending": "lf",
        "diff": "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n", "diff_truncated": False,
    }  # fmt: skip
    assert (tmp_path / "a.txt").read_text() == "one\n2\nthree\n"
    assert run(context, "write_file", path="a.txt", content="x").status_code == "SUCCESS"


def test_a_part_that_was_read_may_be_edited_again_and_again_but_not_overwritten(
    context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    run(context, "read_file", path="a.txt", start_line=2, end_line=2)
    for old, new in (("two", "2"), ("2", "zwei")):
        result = run(context, "edit_file", path="a.txt", old_string=old, new_string=new)
        assert result.status_code == "SUCCESS", result.content
    assert run(context, "write_file", path="a.txt", content="x").error_code == "file_not_read"
    (tmp_path / "a.txt").write_text("theirs")
    changed = run(context, "edit_file", path="a.txt", old_string="theirs", new_string="x")
    assert changed.error_code == "file_changed_since_read"
    run(context, "read_file", path="a.txt")
    run(context, "read_file", path="a.txt", end_line=1)
    assert run(context, "write_file", path="a.txt", content="x").status_code == "SUCCESS"  # it still knows the whole


def test_a_place_that_is_not_unique_or_not_there_changes_nothing(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("aaa\n")
    several = edit(context, "a", "b")
    assert (several.error_code, content(several)["match_count"]) == ("old_string_not_unique", 3)
    assert edit(context, "c", "b").error_code == "old_string_not_found"
    assert edit(context, "A", "b").error_code == "old_string_not_found"
    assert (tmp_path / "a.txt").read_text() == "aaa\n"
    assert content(edit(context, "aa", "b", replace_all=True))["replaced_count"] == 1
    assert (tmp_path / "a.txt").read_text() == "ba\n"


@pytest.mark.parametrize(
    ("before", "old", "new", "after", "ending"),
    [
        (b"one\r\ntwo\r\n", "one\ntwo", "1\n2\n3", b"1\r\n2\r\n3\r\n", "crlf"),
        (b"one\r\ntwo\n", "one", "1", b"1\r\ntwo\n", "mixed"),
        (b"one\r\ntwo\r\n", "one\r\ntwo", "x", b"x\r\n", "crlf"),
        (b"\xef\xbb\xbfone\n", "one", "1", b"\xef\xbb\xbf1\n", "lf"),
        ("größe".encode(), "ö", "oe", b"groe\xc3\x9fe", "lf"),
        (b"a\nb\nc", "\nb", "", b"a\nc", "lf"),
        (b"a\nb\n", "a\nb\n", "", b"", "lf"),
    ],
)
def test_line_endings_and_marks_are_kept(
    context: ToolContext, tmp_path: Path, *, before: bytes, old: str, new: str, after: bytes, ending: str
) -> None:
    (tmp_path / "a.txt").write_bytes(before)
    result = edit(context, old, new)
    assert (tmp_path / "a.txt").read_bytes() == after
    assert result.metadata
    assert result.metadata["line_ending"] == ending


LINES = st.lists(st.sampled_from(["a", "b", "ab", "\n", "\n\n", "c\n", "x\ny\n"]), max_size=30).map("".join)


@settings(
    max_examples=int(os.environ.get("VV_TEST_EXAMPLES", "150")), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(
    text=LINES,
    old=st.sampled_from(["a", "b\n", "\n", "c\nx", "ab"]),
    new=st.sampled_from(["", "q", "q\n", "\nr\ns", "\n"]),
)
def test_the_diff_of_an_edit_makes_the_new_file_of_the_old_one(
    tmp_path_factory: Any, text: str, old: str, new: str
) -> None:
    root: Path = tmp_path_factory.mktemp("edit")
    (root / "a.txt").write_text(text)
    context = ToolContext(tool_call_id="c", workspace=LocalWorkspaceBackend(root))
    if old == new or old not in text:
        return
    result = edit(context, old, new, replace_all=True)
    assert result.metadata is not None
    after = text.replace(old, new)
    assert (root / "a.txt").read_text() == after
    assert patched(text, result.metadata["diff"]) == after
    grown = len(lf_lines(after)) - len(lf_lines(text))
    assert result.metadata["additions"] - result.metadata["deletions"] == grown


def patched(text: str, diff: str) -> str:
    """The text with a unified diff applied."""
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    made: list[str] = []
    at = 0
    shown = diff.split("\n")[2:-1]
    for number, line in enumerate(shown):
        if line.startswith("@@"):
            start = int(line.split()[1].split(",")[0][1:]) - 1
            made, at = made + lines[at:start], start
        elif line.startswith("\\"):
            continue
        else:
            ends = "" if number + 1 < len(shown) and shown[number + 1].startswith("\\") else "\n"
            if line[0] in " -":
                assert lines[at] == line[1:] + ends
                at += 1
            if line[0] in " +":
                made.append(line[1:] + ends)
    return "".join(made + lines[at:])


def test_a_long_diff_is_cut(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old line\n" * 5_000)
    result = edit(context, "old", "new", replace_all=True)
    assert result.metadata is not None
    assert (len(result.metadata["diff"]), result.metadata["diff_truncated"]) == (12_000, True)
    assert (result.metadata["additions"], result.metadata["deletions"]) == (5_000, 5_000)


def test_an_interrupted_edit_is_judged_by_the_file(context: ToolContext, tmp_path: Path) -> None:
    assert isinstance(edit_file, Decidable)
    (tmp_path / "a.txt").write_text("one two one\r\n")
    arguments = {"path": "./a.txt", "old_string": "one", "new_string": "1", "replace_all": True}
    run(context, "read_file", path="a.txt")
    known = dict(context.file_baselines)
    intent = json.loads(json.dumps(edit_file.intend(context, arguments)))
    assert edit_file.examine(context, arguments, intent) == "not_done"
    direct = run(context, "edit_file", **arguments)
    assert direct.metadata is not None
    after = dict(context.file_baselines)
    context.file_baselines.clear()
    context.file_baselines.update(known)
    assert edit_file.examine(context, arguments, intent) == "done"
    replayed = edit_file.replayed(context, arguments, intent)
    assert replayed.content == direct.content
    assert replayed.metadata == {
        "changed_files": ["a.txt"], "operation": "edit", "line_ending": "crlf", "diff": "", "diff_truncated": True,
    }  # fmt: skip
    assert context.file_baselines == after == {"a.txt": sha256(b"1 two 1\r\n").hexdigest()}
    (tmp_path / "a.txt").write_text("somebody else's")
    assert edit_file.examine(context, arguments, intent) == "ambiguous"
    wrong = edit_file.intend(context, {**arguments, "old_string": "no"})
    assert edit_file.examine(context, arguments, wrong) == "ambiguous"


# find_files


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    for age, path in enumerate(
        ["new.py", "src/old.py", "src/deep/x.txt", "node_modules/m.js", "BUILD/b.py", ".git/config", ".hid/h.py", ".env",
         "keys/my_token.txt", ".env.example", "gen.log", "src/build/kept.py"]
    ):  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
        os.utime(tmp_path / path, (1_000_000 - age, 1_000_000 - age))
    (tmp_path / ".gitignore").write_text("*.log\n")
    return tmp_path


def test_files_are_found_newest_first_without_what_is_seldom_wanted(context: ToolContext, shop: Path) -> None:
    assert content(run(context, "find_files")) == {
        "files": ["new.py", "src/old.py", "src/deep/x.txt", "src/build/kept.py"], "count": 4, "returned_count": 4,
        "truncated": False, "max_results": 100, "offset": 0, "sort": "modified_desc", "sensitive_files_omitted": 1,
        "ignored_roots": [{"path": ".git"}, {"path": "BUILD"}, {"path": "node_modules"}],
        "message": "Folders of dependencies and products were left out; name one as `path` or set include_ignored.",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        ({"glob": "*.py"}, ["new.py"]),
        ({"glob": "**/*.py", "sort": "path_asc"}, ["new.py", "src/build/kept.py", "src/old.py"]),
        ({"path": "src", "glob": "*"}, ["src/old.py"]),
        ({"path": "node_modules"}, ["node_modules/m.js"]),
        ({"path": ".hid"}, [".hid/h.py"]),
        ({"include_ignored": True, "glob": "*/*.*"}, ["src/old.py", "node_modules/m.js", "BUILD/b.py"]),
        ({"include_ignored": True, "glob": "*.log"}, ["gen.log"]),
        ({"include_hidden": True, "glob": "**/.*"}, [".gitignore", ".env.example"]),
        ({"include_hidden": True, "include_sensitive": True, "glob": ".e*"}, [".env", ".env.example"]),
        ({"include_sensitive": True, "path": "keys"}, ["keys/my_token.txt"]),
        ({"max_results": 1}, ["new.py"]),
        ({"max_results": 2, "offset": 1}, ["src/old.py", "src/deep/x.txt"]),
        ({"offset": 99}, []),
        ({"glob": "no*"}, []),
    ],
    ids=str,
)
def test_a_listing_is_narrowed_and_widened(
    context: ToolContext, shop: Path, arguments: dict[str, Any], files: list[str]
) -> None:
    assert content(run(context, "find_files", **arguments))["files"] == files


def test_a_page_says_what_is_left(context: ToolContext, shop: Path) -> None:
    page = content(run(context, "find_files", max_results=1, offset=1))
    assert (page["truncated"], page["remaining_count"], page["count"]) == (True, 2, 4)


def test_the_scan_limit_bounds_the_work_and_is_said(context: ToolContext, shop: Path) -> None:
    found = content(run(context, "find_files", max_results=2, scan_limit=2))
    assert (found["count_is_estimate"], found["scan_limit"], found["truncated"]) == (True, 2, True)
    assert "narrow `path`" in found["message"]
    assert found["returned_count"] <= 2
    exact = content(run(context, "find_files", path="src", max_results=3, scan_limit=3))
    assert ("scan_limit" in exact, exact["count"]) == (False, 3)


def test_storage_without_times_is_listed_by_path() -> None:
    workspace = MemoryWorkspaceBackend()
    for path in ("b", "a", "node_modules/c"):
        workspace.write_text(path, "x")
    found = content(run(ToolContext(tool_call_id="c", workspace=workspace), "find_files"))
    assert (found["files"], found["sort"]) == (["a", "b", "node_modules/c"], "path_asc")
    assert "ignored_roots" not in found


def test_a_name_that_is_no_text_is_shown_and_does_no_harm(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"n\xff.txt")).write_text("x")
    (tmp_path / "line\nbreak.txt").write_text("x")
    found = content(run(context, "find_files", sort="path_asc"))["files"]
    assert found == ["line\nbreak.txt", "n\ufffd.txt"]
    assert run(context, "read_file", path="n\ufffd.txt").error_code == "file_not_found"


def test_a_cancelled_listing_ends(context: ToolContext, tmp_path: Path) -> None:
    for number in range(1_001):
        (tmp_path / f"{number}").touch()
    token = CancellationToken()
    token.cancel()
    assert run(dataclasses.replace(context, cancellation=token), "find_files").error_code == "tool_cancelled"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".env", True), ("a/.ENV", True), (".env.local", True), (".env.example", False), (".env.sample", False),
        ("prod.env", True), ("secrets.yaml", True), ("secret.txt", True), ("id_rsa", True), ("id_rsa.pub", False),
        ("a.key", True), ("a.pem", True), ("credentials", True), ("credentials.json", False),
        ("config/credentials.json", True), ("keys/my_token", True), ("token.py", False), ("src/tokenizer.py", False),
        (".aws/x/my-secret-thing", True), ("monkey", False), ("config/app.yaml", False),
    ],
)  # fmt: skip
def test_files_that_may_hold_credentials_are_known_by_their_name(path: str, expected: bool) -> None:
    assert sensitive(path) is expected


# file_info and read_image


def test_file_info_describes_a_file_and_a_folder(context: ToolContext, shop: Path) -> None:
    info = content(run(context, "file_info", path="./src/old.py"))
    assert info == {
        "path": "src/old.py", "exists": True, "is_file": True, "is_dir": False, "size": 1,
        "modified_at": "1970-01-12T13:46:39.000000+00:00", "suffix": ".py",
    }  # fmt: skip
    folder = content(run(context, "file_info", path="src"))
    assert (folder["is_dir"], "suffix" in folder) == (True, False)


def test_an_image_comes_as_a_data_url_or_as_its_address(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.PNG").write_bytes(b"png")
    result = run(context, "read_image", path="./a.PNG")
    assert content(result) == {
        "status": "loaded", "source": "workspace", "image_path": "a.PNG", "mime_type": "image/png",
        "inline_transport": "data_url",
    }  # fmt: skip
    assert (result.image_url, result.image_path) == ("data:image/png;base64,cG5n", "a.PNG")
    remote = run(context, "read_image", path=" https://example.org/a.svg ")
    assert content(remote) == {"status": "loaded", "source": "url", "image_url": "https://example.org/a.svg"}
    assert (remote.image_url, remote.image_path) == ("https://example.org/a.svg", None)


BOUNDED = """
import json, resource, sys, time
from vv_agent.messages import ToolCall
from vv_agent.tools.base import ToolContext
from vv_agent.tools.builtin import build_default_registry
from vv_agent.tools.builtin.base import lf_lines
from vv_agent.workspace import LocalWorkspaceBackend
registry, context = build_default_registry(), ToolContext(workspace=LocalWorkspaceBackend(sys.argv[1]))
registry.execute(ToolCall("c", "search_files", '{"pattern": "x", "path": "d0"}'), context)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
spent = []
for tool, arguments in json.loads(sys.argv[2]):
    began = time.monotonic()
    result = registry.execute(ToolCall("c", tool, json.dumps(arguments)), context)
    spent.append([time.monotonic() - began, result.status_code, len(result.content)])
print(json.dumps([spent, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("with_ripgrep", [True, False])
def test_200000_files_cost_bounded_time_and_memory(tmp_path: Path, with_ripgrep: bool) -> None:
    found = servers.ripgrep()
    if with_ripgrep and found is None:
        pytest.skip(servers.MISSING["ripgrep"])
    for folder in range(400):
        (tmp_path / f"d{folder}").mkdir()
        for number in range(500):
            (tmp_path / f"d{folder}/f{number}.txt").write_text("some text\nneedle\n")
    calls = [
        ["find_files", {}],
        ["find_files", {"scan_limit": 10**6, "glob": "**/f7.txt"}],
        ["search_files", {"pattern": "needle"}],
        ["search_files", {"pattern": "needle", "output_mode": "content", "head_limit": 0}],
    ]
    path = os.path.dirname(found) if with_ripgrep and found else ""
    command = [sys.executable, "-c", BOUNDED, str(tmp_path), json.dumps(calls)]
    began = time.monotonic()
    done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    spent, grown = json.loads(done.stdout)
    assert [status for _, status, _ in spent] == ["SUCCESS"] * 4
    assert max(size for _, _, size in spent) < 40_000
    assert max(seconds for seconds, _, _ in spent) < 60
    assert grown < 300
    assert time.monotonic() - began < 240
