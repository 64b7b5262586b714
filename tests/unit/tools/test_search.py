"""`search_files`: ripgrep and our own search give the same answers; hostile patterns end; pages, context and limits."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import servers
from vv_agent.cancellation import CancellationToken
from vv_agent.messages import ToolCall
from vv_agent.results import ToolExecutionResult
from vv_agent.tools.base import ToolContext
from vv_agent.tools.builtin import build_default_registry, counting
from vv_agent.workspace import DiscoveryFilteredWorkspaceBackend, LocalWorkspaceBackend, MemoryWorkspaceBackend

REGISTRY = build_default_registry()


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(tool_call_id="c", workspace=LocalWorkspaceBackend(tmp_path))


@pytest.fixture
def rg() -> str:
    """The folder of ripgrep, for PATH."""
    if (found := servers.ripgrep()) is None:
        pytest.skip(servers.MISSING["ripgrep"])
    return os.path.dirname(found)


def search(context: ToolContext, pattern: str, **arguments: Any) -> ToolExecutionResult:
    call = ToolCall("c", "search_files", json.dumps({"pattern": pattern, **arguments}))
    return REGISTRY.execute(call, context)


def found(result: ToolExecutionResult) -> dict[str, Any]:
    assert result.status_code == "SUCCESS", result.content
    assert result.metadata is not None
    return result.metadata


# The same answers.

NAMES = st.sampled_from(
    ["a.txt", "b.py", "c", ".hid", "d.log", "x.png", "build", "node_modules", "src", ".env", "[b].txt"]
)
TEXT = st.lists(
    st.sampled_from(
        [
            "foo",
            "Foo",
            "bar",
            " ",
            "\t",
            "é",
            "E\u0301",
            "中",
            "-",
            "_",
            "7",
            "\n",
            "\r\n",
            "\r",
            "\n\n",
            "x" * 50,
            "ſ",
            "K",
        ]
    ),
    max_size=12,
).map(lambda parts: "".join(parts).encode())
CONTENT = st.one_of(
    TEXT,
    TEXT.map(lambda data: b"\xef\xbb\xbf" + data),
    st.tuples(TEXT, st.sampled_from([b"\xff", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f", b"\x80"]), TEXT).map(b"".join),
    st.tuples(TEXT, st.just(b"\0"), TEXT).map(b"".join),
    TEXT.map(lambda data: data.decode().encode("utf-16")),
)
IGNORES = st.lists(
    st.sampled_from(
        ["*.log", "b.py", "/a.txt", "src/", "/build", "!b.py", "!d.log", "src/*.txt", "**/c", "# no", "", "*", "!*/", "x?png",
         "[a-c].txt", "d.log\r", "src/**", "\\!x", "!src/"]
    ),
    max_size=4,
).map(lambda lines: "\n".join(lines).encode())  # fmt: skip
FOLDERS = st.lists(st.sampled_from(["src", "build", "node_modules", ".hidden", "deep"]), max_size=3).map("/".join)
TREES = st.tuples(
    st.dictionaries(st.tuples(FOLDERS, NAMES), CONTENT, max_size=8), st.dictionaries(FOLDERS, IGNORES, max_size=3)
)
PATTERNS = st.sampled_from(
    ["foo", "Foo", "f.o", "^foo", "foo$", "^$", "bar|foo", r"\bfoo\b", r"\w+", r"\W", r"\s", r"\S+$", r"\d", r"\D", "[a-f]+",
     "[^a-z]", r"[\w-]x", "(?:foo|bar) ?", "fo{2}", ".", "..", "^.$", ".*", "a*", "é", "中.", "[é中]", r"^\s*$", r"\r", "s", "k",
     r"\.", r"foo\s+bar", "(?=foo)", "(?<=f)oo", r"(o)\1", r"\Bo", "foo$|^bar", "$", "^", r"[^\s]", r"\x66", "a{", "(?i)FOO",
     "f[^o]", r"\bé", r"[^\w]$"]
)  # fmt: skip
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "case_sensitive": st.booleans(), "literal": st.booleans(), "multiline": st.booleans(),
        "include_hidden": st.booleans(), "include_ignored": st.booleans(), "include_sensitive": st.booleans(),
        "output_mode": st.sampled_from(["files_with_matches", "count", "content"]), "c": st.integers(0, 2),
        "path": st.sampled_from([".", "src", "build", "src/deep", "node_modules", "a.txt"]),
        "glob": st.sampled_from(["**/*", "*.txt", "**/*.py", "**/src/*", "**/[b].txt", "**", "*.txt/.", "src/", "**/?.*", "include:x"]),
        "type": st.sampled_from(["py", "txt", "log"]), "head_limit": st.integers(0, 3), "offset": st.integers(0, 2),
    },
)  # fmt: skip


def plant(root: Path, tree: tuple[dict[tuple[str, str], bytes], dict[str, bytes]]) -> None:
    files, ignores = tree
    for (folder, name), data in [*files.items(), *(((folder, ".gitignore"), data) for folder, data in ignores.items())]:
        try:
            (root / folder).mkdir(parents=True, exist_ok=True)
            (root / folder / name).write_bytes(data)
        except OSError:  # a file is where a folder should be, or the reverse
            continue
    (root / "link.txt").symlink_to("a.txt")
    (root / "loop").symlink_to(".")
    (root / os.fsdecode(b"n\xff.txt")).write_bytes(b"foo\n")


def both(root: Path, rg: str, pattern: str, arguments: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The answer with ripgrep and without; how many files were looked into may differ."""
    answers = []
    context = ToolContext(tool_call_id="c", workspace=LocalWorkspaceBackend(root))
    for path in (rg, ""):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", path)
            result = search(context, pattern, **arguments)
        metadata = dict(result.metadata or {})
        metadata.get("summary", {}).pop("files_searched", None)
        answers.append((result.content, metadata))
    return answers


@settings(
    max_examples=int(os.environ.get("VV_TEST_EXAMPLES", "150")), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(tree=TREES, pattern=PATTERNS, arguments=OPTIONS)
def test_ripgrep_and_our_own_search_give_the_same_answers(
    rg: str, tmp_path_factory: pytest.TempPathFactory, tree: Any, pattern: str, arguments: dict[str, Any]
) -> None:
    root = tmp_path_factory.mktemp("tree")
    plant(root, tree)
    with_ripgrep, without = both(root, rg, pattern, arguments)
    assert with_ripgrep == without
    shutil.rmtree(root)


# What the model sees.


@pytest.fixture(params=["ripgrep", "alone"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With ripgrep on PATH, and with nothing there."""
    monkeypatch.setenv("PATH", request.getfixturevalue("rg") if request.param == "ripgrep" else "")
    return str(request.param)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    for path, text in {
        "a.py": "import os\n\ndef Total(x):\n    return x\n",
        "src/b.py": "total = 1\nTOTAL = 2\nother\nmore\ntotal\n",
        "src/deep/c.txt": "subtotal\r\nlast",
        "node_modules/d.py": "total",
        ".hidden/e.py": "total",
        "config/api_token.txt": "total",
        "log.log": "total",
        ".gitignore": "*.log\n",
        "pic.png": "total",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(text.encode())
    return tmp_path


def test_files_with_matches_are_sorted_and_the_first_line_says_how_many(
    engine: str, context: ToolContext, shop: Path
) -> None:
    result = search(context, "total")
    assert result.content.splitlines() == [
        "Found 5 matches of 'total' in 3 files; 1 sensitive with matches left out (include_sensitive shows them)",
        "a.py",
        "src/b.py",
        "src/deep/c.txt",
    ]
    metadata = found(result)
    summary = metadata.pop("summary")
    assert summary.pop("files_searched") >= 3
    assert summary == {"files_with_matches": 3, "total_matches": 5}
    assert metadata == {
        "pattern": "total", "path": ".", "glob": "**/*", "type": None, "output_mode": "files_with_matches", "literal": False,
        "offset": 0, "head_limit": 250, "head_limited": False, "total_result_items": 3, "returned_count": 3,
        "content_truncated": False, "structured_truncated": False, "truncated": False, "sensitive_files_omitted": 1,
        "files": ["a.py", "src/b.py", "src/deep/c.txt"],
    }  # fmt: skip


def test_capital_letters_make_a_pattern_exact_unless_told_otherwise(
    engine: str, context: ToolContext, shop: Path
) -> None:
    assert found(search(context, "Total"))["files"] == ["a.py"]
    assert found(search(context, "Total", case_sensitive=False))["summary"]["total_matches"] == 5
    assert found(search(context, "total", case_sensitive=True))["summary"]["total_matches"] == 3


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        ({"type": "py"}, ["a.py", "src/b.py"]),
        ({"type": "txt"}, ["src/deep/c.txt"]),
        ({"glob": "*.py"}, ["a.py"]),
        ({"glob": "**/*.txt"}, ["src/deep/c.txt"]),
        ({"path": "src"}, ["src/b.py", "src/deep/c.txt"]),
        ({"path": "src", "glob": "*"}, ["src/b.py"]),
        ({"path": "node_modules"}, ["node_modules/d.py"]),
        ({"path": "log.log"}, ["log.log"]),
        ({"path": "pic.png"}, ["pic.png"]),
        ({"path": "config/api_token.txt"}, []),
        ({"include_hidden": True, "type": "py"}, [".hidden/e.py", "a.py", "src/b.py"]),
        ({"include_ignored": True, "glob": "**/*o*/*"}, ["node_modules/d.py"]),
        ({"include_ignored": True, "type": "log"}, ["log.log"]),
        ({"include_sensitive": True, "path": "config"}, ["config/api_token.txt"]),
    ],
    ids=str,
)
def test_a_search_is_narrowed_and_widened(
    engine: str, context: ToolContext, shop: Path, arguments: dict[str, Any], files: list[str]
) -> None:
    assert found(search(context, "total", **arguments))["files"] == files


def test_lines_come_with_numbers_and_those_around_them(engine: str, context: ToolContext, shop: Path) -> None:
    result = search(context, "TOTAL", output_mode="content", path="src", case_sensitive=True, a=1, b=5)
    assert result.content.splitlines()[1:] == ["src/b.py-1-total = 1", "src/b.py:2:TOTAL = 2", "src/b.py-3-other"]
    assert found(result)["matches"] == [
        {"path": "src/b.py", "line": 1, "text": "total = 1", "is_match": False},
        {"path": "src/b.py", "line": 2, "text": "TOTAL = 2", "is_match": True},
        {"path": "src/b.py", "line": 3, "text": "other", "is_match": False},
    ]
    plain = search(context, "subtotal$", output_mode="content", n=False, c=0, a=9)
    assert found(plain)["matches"] == [{"path": "src/deep/c.txt", "text": "subtotal", "is_match": True}]
    assert plain.content.splitlines()[1:] == ["src/deep/c.txt:subtotal"]
    near = found(search(context, "total", output_mode="content", path="src/b.py", c=1))["matches"]
    assert [(row["line"], row["is_match"]) for row in near] == [(1, True), (2, True), (3, False), (4, False), (5, True)]


def test_a_multiline_pattern_gives_one_row_for_each_match(engine: str, context: ToolContext, shop: Path) -> None:
    result = found(search(context, r"def.*?return \w", multiline=True, output_mode="content", c=1))
    assert result["matches"] == [
        {"path": "a.py", "line": 2, "text": "", "is_match": False},
        {"path": "a.py", "line": 3, "text": "def Total(x):\n    return x", "is_match": True},
    ]
    assert result["summary"]["total_matches"] == 1
    assert found(search(context, "^total$", multiline=True))["files"] == ["src/b.py"]


def test_counts_and_pages(engine: str, context: ToolContext, shop: Path) -> None:
    assert found(search(context, "total", output_mode="count"))["file_counts"] == [
        {"path": "a.py", "count": 1}, {"path": "src/b.py", "count": 3}, {"path": "src/deep/c.txt", "count": 1},
    ]  # fmt: skip
    page = search(context, "total", head_limit=1, offset=1)
    assert "go on with offset" in page.content
    assert {name: found(page)[name] for name in ("files", "head_limited", "truncated", "total_result_items")} == {
        "files": ["src/b.py"], "head_limited": True, "truncated": True, "total_result_items": 3,
    }  # fmt: skip
    rows = found(search(context, "total", output_mode="content", head_limit=2, offset=2))
    assert [(row["path"], row["line"]) for row in rows["matches"]] == [("src/b.py", 2), ("src/b.py", 5)]
    assert (rows["returned_count"], rows["total_result_items"], rows["head_limited"]) == (2, 5, True)
    last = found(search(context, "total", offset=2))
    assert (last["files"], last["truncated"]) == (["src/deep/c.txt"], False)


def test_text_and_rows_are_bounded(engine: str, context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("match\n" * 5_000 + "match " + "x" * 50_000)
    result = search(context, "match", output_mode="content", head_limit=0)
    metadata = found(result)
    assert result.content.endswith("--- TRUNCATED ---")
    assert len(result.content.splitlines()) <= 501
    assert (len(metadata["matches"]), metadata["structured_item_limit"]) == (200, 200)
    assert metadata["content_truncated"]
    assert metadata["structured_truncated"]
    assert metadata["summary"]["total_matches"] == metadata["total_result_items"] == 5_001
    long = search(context, "match x", output_mode="content")
    assert len(long.content) < 1_200
    assert "49006 more characters" in long.content
    (tmp_path / "b.txt").write_text(("match " + "y" * 900 + "\n") * 100)
    wide = found(search(context, "match y", output_mode="content"))
    assert wide["structured_char_limit"] == 20_000
    assert sum(len(row["text"]) for row in wide["matches"]) <= 20_000


def test_memory_is_searched_like_a_folder_without_ignore_files() -> None:
    workspace = MemoryWorkspaceBackend()
    for path in ("a.txt", "node_modules/b.txt", ".h/c.txt", ".env"):
        workspace.write_text(path, "needle")
    context = ToolContext(tool_call_id="c", workspace=workspace)
    assert found(search(context, "needle"))["files"] == ["a.txt", "node_modules/b.txt"]


def test_a_filter_of_listings_counts_for_both_engines(engine: str, shop: Path) -> None:
    workspace = DiscoveryFilteredWorkspaceBackend(LocalWorkspaceBackend(shop), "^src/b")
    assert found(search(ToolContext(workspace=workspace), "total"))["files"] == ["a.py", "src/deep/c.txt"]
    assert found(search(ToolContext(workspace=workspace), "total", path="src/b.py"))["files"] == ["src/b.py"]


def test_a_ripgrep_in_the_workspace_is_never_started(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shop / "rg").write_text("#!/bin/sh\ntouch started\n")
    (shop / "rg").chmod(0o755)
    monkeypatch.chdir(shop)
    monkeypatch.setenv("PATH", ".:")
    assert found(search(ToolContext(workspace=LocalWorkspaceBackend(shop)), "total"))["files"][0] == "a.py"
    assert not (shop / "started").exists()


def test_a_ripgrep_that_fails_is_done_without(
    shop: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("bin")
    (folder / "rg").write_text("#!/bin/sh\necho 'rg: unrecognized flag' >&2\nexit 2\n")
    (folder / "rg").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    assert found(search(ToolContext(workspace=LocalWorkspaceBackend(shop)), "total"))["summary"]["total_matches"] == 5


def test_what_ripgrep_cannot_be_told_is_searched_for_without_it(engine: str, context: ToolContext, shop: Path) -> None:
    assert found(search(context, "total", glob="*\0"))["files"] == []
    assert found(search(context, "x\0", literal=True))["files"] == []
    assert found(search(context, "total", glob="*" * 200_000))["files"] == ["a.py"]
    missing = dataclasses.replace(context, workspace=LocalWorkspaceBackend(shop / "not-yet"))
    assert found(search(missing, "total"))["files"] == []


# Hostile input.

CATASTROPHIC = r"^(([a-z])+.)+[A-Z]([a-z])+$"


def test_a_catastrophic_pattern_ends_and_says_so(engine: str, context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 5_000)
    began = time.monotonic()
    result = search(context, CATASTROPHIC, case_sensitive=True)
    assert time.monotonic() - began < 15
    if engine == "ripgrep":  # it does not backtrack
        assert found(result)["files"] == []
    else:
        assert (result.error_code, "takes too long on a.txt" in result.content) == ("invalid_arguments", True)


def test_other_threads_go_on_while_a_pattern_backtracks(
    context: ToolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    (tmp_path / "a.txt").write_text("a" * 5_000)
    over, gaps = threading.Event(), [0.0]

    def beat() -> None:
        last = time.monotonic()
        while not over.wait(0.01):
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    thread = threading.Thread(target=beat)
    thread.start()
    search(context, CATASTROPHIC, case_sensitive=True)
    over.set()
    thread.join()
    assert len(gaps) > 50
    assert max(gaps) < 1


def test_a_cancelled_search_ends(engine: str, context: ToolContext, shop: Path) -> None:
    token = CancellationToken()
    token.cancel("enough")
    assert search(dataclasses.replace(context, cancellation=token), "total").error_code == "tool_cancelled"


def test_when_time_is_up_what_was_found_is_the_answer(
    engine: str, context: ToolContext, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vv_agent.tools.builtin.searching.SECONDS", -1.0)
    result = search(context, "total")
    assert "stopped after" in result.content
    assert found(result)["truncated"]


def test_a_file_swapped_for_a_link_while_it_is_searched_is_not_read(
    rg: str, context: ToolContext, shop: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path_factory.mktemp("outside") / "secret.txt"
    secret.write_text("total secret")
    monkeypatch.setenv("PATH", rg)
    counts = counting.Search.counts

    def swapped(self: counting.Search) -> counting.Counts:
        answer = counts(self)
        (shop / "a.py").unlink()
        (shop / "a.py").symlink_to(secret)
        return answer

    monkeypatch.setattr(counting.Search, "counts", swapped)
    result = search(context, "total", output_mode="content")
    assert "secret" not in result.content.replace("sensitive", "")
    assert "src/b.py:1:total = 1" in result.content
