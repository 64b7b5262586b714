"""Code by import path: what has a name, what a worker may load, and what the developer is told otherwise."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vv_agent.errors import ReferenceInvalid
from vv_agent.references import load, name_of, version_of, why_unnamed


def plain(value: int) -> int:
    return value


class Outer:
    class Inner:
        pass

    @classmethod
    def make(cls) -> Outer:
        return cls()

    def method(self) -> None: ...


class Wrapping:
    """Stands in the place of a function, as a function tool does."""

    def __init__(self, function: Any) -> None:
        self.__wrapped__ = function


@Wrapping
def tool() -> None: ...


INSTANCE = Outer()
SECOND = functools.partial(plain, 1)
plain_lambda = lambda: None  # noqa: E731


@pytest.mark.parametrize(
    ("obj", "qualname"),
    [
        (plain, "plain"),
        (Outer, "Outer"),
        (Outer.Inner, "Outer.Inner"),
        (Outer.make, "Outer.make"),
        (tool, "tool"),
        (INSTANCE, "INSTANCE"),
        (SECOND, "SECOND"),
    ],
)
def test_a_name_leads_back_to_the_same_object(obj: Any, qualname: str) -> None:
    name = name_of(obj)
    assert name == f"{__name__}:{qualname}"
    assert load(name, [__name__]) == obj


def test_an_object_may_say_its_reference_and_version_itself() -> None:
    obj = Outer()
    obj.__vv_ref__ = "shop.tools:refund"  # type: ignore[attr-defined]
    obj.__vv_version__ = "7"  # type: ignore[attr-defined]
    assert (name_of(obj), version_of(obj)) == ("shop.tools:refund", "7")
    assert version_of(plain) == "1"
    obj.__vv_ref__ = "refund"  # type: ignore[attr-defined]
    assert name_of(obj) is None
    assert "module:qualname" in why_unnamed(obj)


def test_what_only_this_process_has_is_not_named_and_the_developer_hears_why() -> None:
    def local() -> None: ...

    replaced = functools.wraps(plain)(lambda value: value)
    cases: list[tuple[Any, str]] = [
        (local, "inside a function"),
        (lambda: None, "lambda"),
        (plain_lambda, "lambda"),
        (INSTANCE.method, "another object"),
        (replaced, "another object"),
        (Outer(), "no global"),
        ({"tenant": 1}, "plain data"),
        ("text", "plain data"),
        (sys, "plain data"),
    ]
    for obj, reason in cases:
        assert name_of(obj) is None
        assert reason in why_unnamed(obj)


def test_an_instance_is_named_by_the_module_that_made_it_not_by_one_that_imported_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zz_home.py").write_text("class P: ...\nprovider = P()\n")
    (tmp_path / "aa_user.py").write_text("from zz_home import provider\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = load("aa_user:provider", ["aa_user"])
    assert name_of(found) == "zz_home:provider"


@pytest.mark.parametrize("ref", ["", "os", "os:", ":x", "os:system()", "..os:x", "a b:c", "os:x\n", None])
def test_text_that_is_no_reference_is_unresolved(ref: Any) -> None:
    with pytest.raises(ReferenceInvalid) as caught:
        load(ref, ["os"])
    assert caught.value.code == "reference_unresolved"


def test_a_module_that_is_not_allowed_is_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "imported"
    (tmp_path / "intruder.py").write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()\nx = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for allowed in ([], ["intrude"], ["intruder.sub"]):
        with pytest.raises(ReferenceInvalid, match=r"intruder:x.*VV_AGENT_IMPORTS") as caught:
            load("intruder:x", allowed)
        assert caught.value.code == "reference_not_allowed"
    assert not mark.exists()
    assert load("intruder:x", ["intruder"]) == 1


def test_a_package_allows_its_submodules_and_vv_agent_is_always_allowed() -> None:
    assert load("vv_agent.references:load", []) is load
    assert load(f"{__name__}:plain", ["tests"]) is plain


@pytest.mark.parametrize(
    ("source", "path", "code"),
    [
        ("import os", "os.system", "reference_unresolved"),
        ("import os", "os", "reference_not_allowed"),
        ("from os import system", "system", "reference_not_allowed"),
        ("from subprocess import Popen", "Popen", "reference_not_allowed"),
        ("def f(): ...", "f.__globals__.get", "reference_unresolved"),
        ("x = []", "x.append", "reference_unresolved"),
        ("class C: ...", "C.mro", "reference_not_allowed"),
        ("class C: ...", "C.missing", "reference_unresolved"),
    ],
)
def test_an_allowed_module_does_not_lend_out_what_it_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, path: str, code: str
) -> None:
    (tmp_path / "lender.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "lender", raising=False)
    with pytest.raises(ReferenceInvalid) as caught:
        load(f"lender:{path}", ["lender"])
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import a_package_nobody_has", "ModuleNotFoundError: No module named 'a_package_nobody_has'"),
        ("def broken(:", "SyntaxError"),
        ("raise RuntimeError('no database')", "RuntimeError: no database"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_broken_module_is_unresolved_and_the_cause_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, cause: str
) -> None:
    (tmp_path / "broken.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ReferenceInvalid) as caught:
        load("broken:x", ["broken"])
    assert caught.value.code == "reference_unresolved"
    assert cause in caught.value.message
    assert "broken:x" in caught.value.message


SCRIPT = """
from vv_agent.references import load, name_of, why_unnamed

class Provider: ...
provider = Provider()
def hook(): ...

if __name__ == "__main__":
    print(name_of(hook), name_of(provider), name_of(Provider))
    print(name_of(hook) is not None and load(name_of(hook), ["job", "pkg"]) is hook)
    print(why_unnamed(hook))
"""


def run(*arguments: str, at: Path) -> list[str]:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=at,
        env={"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_script_is_named_through_its_file_and_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    assert run("job.py", at=tmp_path)[:2] == ["job:hook job:provider job:Provider", "True"]


def test_a_module_that_is_run_keeps_its_full_name(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "job.py").write_text(SCRIPT)
    assert run("-m", "pkg.job", at=tmp_path)[0] == "pkg.job:hook pkg.job:provider pkg.job:Provider"


@pytest.mark.parametrize("name", ["my-job.py", "json.py"])
def test_a_script_that_cannot_be_imported_by_its_name_gets_the_remedy(tmp_path: Path, name: str) -> None:
    """A name that is no identifier, and one under which another module is imported first."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / name).write_text("import sys; sys.path.pop(0)\n" + SCRIPT)
    lines = run(f"scripts/{name}", at=tmp_path)
    assert lines[0] == "None None None"
    assert "running script" in lines[2]
    assert "move it to the top level of a module" in lines[2]


def test_code_from_the_command_line_has_no_name(tmp_path: Path) -> None:
    assert run("-c", SCRIPT, at=tmp_path)[0] == "None None None"
