"""`search_files`: ripgrep and our own search give the same answers; hostile patterns end; pages, context and limits."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import servers
from vv_agent.messages import ToolCall
from vv_agent.results import ToolExecutionResult
from vv_agent.tools.base import ToolContext
from vv_agent.tools.builtin import build_default_registry
from vv_agent.workspace import LocalWorkspaceBackend

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
        "glob": st.sampled_from(["**/*", "*.txt", "**/*.py", "**/src/*", "**/[b].txt", "**"]),
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
