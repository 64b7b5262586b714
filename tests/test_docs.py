"""The documentation is true: its Python runs, its settings load, and every error code has an entry."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from vv_agent.llm.settings_file import LlmSettings
from vv_agent.process import store_at

PROJECT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (PROJECT / "docs").glob("*.md")))
NOT_RUN = {
    "make demo ": "tests/scenarios/test_demo.py plays it; `make test` is this",
    "pytest tests/test_public_api.py ": "the named files are tests themselves",
    "python3 -m venv .venv": "tests are not where packages are installed from",
    "export VV_AGENT_STORE=redis://db/0": "needs the machines db; tests/integration/test_celery.py starts such workers",
    "VV_AGENT_STORE=redis://db/0": "the same",
    "vv-agent --prompt List the files": "needs a key; tests/scenarios/test_cli_terminal.py runs the command on a fake provider",
    "vv-agent app-server --listen stdio": "needs a key; tests/scenarios/test_app_server.py starts the server and exports the schema",
    "kubectl create namespace": "needs a cluster; tests/integration/test_deploy.py holds the files against the schema",
    "cp deploy/systemd": "needs the machine's service manager; tests/integration/test_deploy.py reads the units",
    "vv-agent runs export KEY": "tests/scenarios/test_keeping.py moves runs between stores by these commands",
    "cp tests/dev_settings.example.json": "tests/live is run with the ordinary tests, without the variable",
}
"""Shell blocks that no test types, by how they begin, and why."""
TYPED = {"VV_AGENT_IMPORTS=shop vv-agent worker", "python start.py", "VV_AGENT_IMPORTS=trips vv-agent worker"}
"""Those that are, in this file."""


def every_block(page: str) -> list[tuple[str, str]]:
    """The blocks of a page in their order, each with its language."""
    text = (PROJECT / page).read_text(encoding="utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    return [text for name, text in every_block(page) if name == language]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as a wheel installs it, so that nothing is found that only the source tree has."""
    source, wheels, site = (tmp_path_factory.mktemp(name) for name in ("source", "wheel", "site"))
    shutil.copytree(PROJECT / "vv_agent", source / "vv_agent", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    isolated = [] if int(version("setuptools").partition(".")[0]) < 77 else ["--no-build-isolation"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", *isolated, "-w", str(wheels), str(source)], check=True, capture_output=True
    )
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True, capture_output=True)
    return site


def environment_of(site: Path) -> dict[str, str]:
    """Nobody's settings, the installed package, and the commands beside this interpreter."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("VV_AGENT_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**clean, "PYTHONPATH": str(site), "PATH": path}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_the_python_of_the_documentation_runs(page: str, tmp_path: Path, installed: Path) -> None:
    """In order, in one folder; a first line `# name.py` says where a block is written to, and a block `output` after it
    what it prints."""
    found = every_block(page)
    for number, (language, block) in enumerate(found, 1):
        if language != "python":
            continue
        named = re.match(r"# (\w+\.py)\n", block)
        path = tmp_path / (named[1] if named else f"block_{number}.py")
        path.write_text(block, encoding="utf-8")
        if "sys.argv[1]" in block:  # a later block runs it
            continue
        done = subprocess.run(
            [sys.executable, "-W", "error", path.name],
            cwd=tmp_path, env=environment_of(installed), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{page}, block {number}:\n{block}\n{done.stderr}"
        if found[number : number + 1] and found[number][0] == "output":
            assert done.stdout == found[number][1], f"{page}, block {number}"


def test_the_documentation_runs_on_the_installed_package(installed: Path) -> None:
    where = [sys.executable, "-c", "import vv_agent; print(vv_agent.__file__)"]
    done = subprocess.run(
        where, env=environment_of(installed), cwd=installed, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()).is_relative_to(installed)


@pytest.mark.parametrize("page", [*PAGES, "README_ZH.md", "examples/README.md", "CONTRIBUTING.md"])
def test_every_block_is_run_or_listed_with_the_reason(page: str) -> None:
    looked_at = {"python", "output", "console", "json", "text", "mermaid"}  # the last two are no code
    for language, block in every_block(page):
        if page in ("examples/README.md", "CONTRIBUTING.md"):
            continue
        known = any(block.startswith(begin) for begin in (*NOT_RUN, *TYPED))
        assert language in looked_at or (language == "sh" and known), f"{page}: {block}"


def test_the_chinese_readme_has_the_same_code() -> None:
    def code(page: str) -> list[tuple[str, str]]:
        return [(name, text) for name, text in every_block(page) if name in ("python", "output", "sh")]

    def bare(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
        return [(name, re.sub(r" *#.*", "", text) if name == "sh" else text) for name, text in found]

    assert bare(code("README_ZH.md")) == bare(code("README.md"))


def test_the_readme_example_is_found_again_by_its_key(tmp_path: Path, installed: Path) -> None:
    (tmp_path / "sum.py").write_text(blocks("README.md", "python")[0])
    for _ in range(2):
        assert typed(f"{sys.executable} sum.py", tmp_path, installed).stdout == "completed The sum is 42.\n"


def typed(command: str, folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, shell=True, cwd=folder, env=environment_of(site), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip


@contextmanager
def workers_of(line: str, folder: Path, site: Path) -> Iterator[Callable[[], str]]:
    """The two workers of a page, started as they are written there; gives what they log."""
    log = folder / "workers.log"
    with log.open("wb") as file:
        workers = subprocess.Popen(
            f"exec env {line.strip()}".replace("vv-agent worker", f"{sys.executable} -m vv_agent.cli worker"),
            shell=True, cwd=folder, env=environment_of(site), stdin=subprocess.DEVNULL, stdout=file, stderr=file,
        )  # fmt: skip
    try:
        _wait_for_two(f"sqlite:///{folder}/.vv-agent/runs.db")
        yield log.read_text
    finally:
        workers.terminate()
        workers.wait(30)


def test_the_readme_workers_do_what_it_says(tmp_path: Path, installed: Path) -> None:
    _, shop_py, start_py = blocks("README.md", "python")
    for name, text in (("shop.py", shop_py), ("start.py", start_py)):
        (tmp_path / name).write_text(text)
    workers_line, start_line = blocks("README.md", "sh")[1:3]
    with workers_of(workers_line, tmp_path, installed) as log:
        done = typed(start_line.strip(), tmp_path, installed)
        assert done.stdout.endswith("run_completed\nYou get 5.00 back.\n"), done.stderr
        assert "no worker" not in done.stderr
    assert "INFO cycle 2 of ticket-4711: ended" in log()


def test_the_quickstart_goes_on_when_a_worker_is_killed(tmp_path: Path, installed: Path) -> None:
    for block in blocks("docs/quickstart.md", "python")[1:]:
        (tmp_path / block.split("\n")[0].removeprefix("# ")).write_text(block)
    workers_line, start_line = blocks("docs/quickstart.md", "sh")[1].splitlines()
    with workers_of(workers_line, tmp_path, installed):
        run = subprocess.Popen(
            start_line, shell=True, cwd=tmp_path, env=environment_of(installed), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        os.kill(_busy(f"sqlite:///{tmp_path}/.vv-agent/runs.db", "trip-1"), signal.SIGKILL)
        out, err = run.communicate(timeout=60)
    assert (run.returncode, out) == (0, "Take the 9:00.\n"), err


def _busy(url: str, key: str) -> int:
    """The process that works on a run, once there is one."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        look = store_at(url).look(key)
        if look is not None and look.head.owner is not None:
            return int(look.head.owner.split("/")[1])
        time.sleep(0.02)
    raise AssertionError(f"nobody works on {key}")


def _wait_for_two(url: str) -> None:
    end = time.monotonic() + 60
    while len(store_at(url).presences()) < 2:
        assert time.monotonic() < end, "the workers did not start"
        time.sleep(0.05)


_VOLATILE = (
    (r"run_[0-9a-f]{32}", "RUN"), (r"\d{4}-\d\d-\d\dT[\d:]+Z", "TIME"), (r"\b\d+[smh]\b", "AGE"), (r"\d+ ms", "MS"),
    (r"process \d+", "process N"), (r"op_\w+", "OPERATION"), (r"vv-agent: no worker of queue .*\n", ""),
)  # fmt: skip


def steady(text: str) -> str:
    """A text without what differs from one time to the next."""
    for pattern, name in _VOLATILE:
        text = re.sub(pattern, name, text)
    return text


@pytest.mark.alone
def test_the_session_of_the_documentation_goes_as_it_says(tmp_path: Path, installed: Path) -> None:
    """Every command of the recorded session, in one shell, and what each one prints."""
    (recorded,) = blocks("docs/cli.md", "console")
    steps = [step.partition("\n") for step in recorded.removeprefix("$ ").split("\n$ ")]
    for block in blocks("docs/cli.md", "python"):
        (tmp_path / block.split("\n")[0].removeprefix("# ")).write_text(block)
    (tmp_path / "bin").mkdir()
    for name, options in (("vv-agent", "-m vv_agent.cli"), ("python", "")):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} {options} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {**environment_of(installed), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    script = "".join(f"{{ {command}\n}} > out{number}\n" for number, (command, _, _) in enumerate(steps))
    subprocess.run(
        ["bash", "-c", f"{script} wait"], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        timeout=120, check=True,
    )  # fmt: skip
    for number, (command, _, expected) in enumerate(steps):
        assert steady((tmp_path / f"out{number}").read_text().rstrip()) == steady(expected.rstrip()), command


def test_the_settings_of_the_documentation_load() -> None:
    (text,) = blocks("docs/settings.md", "json")
    settings = LlmSettings.from_mapping(json.loads(text))
    assert settings.resolve("deepseek", "deepseek-chat").context_length == 128_000


@pytest.mark.parametrize("page", [*PAGES, "README_ZH.md", "examples/README.md", "CONTRIBUTING.md"])
def test_links_and_paths_of_the_documentation_exist(page: str) -> None:
    text = (PROJECT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert ((PROJECT / page).parent / target).exists(), target


def test_every_variable_that_is_read_is_documented() -> None:
    source = (PROJECT / "vv_agent/settings.py").read_text()
    read = set(re.findall(r'(?:text|number)\("([A-Z_]+)"', source))
    written = (PROJECT / "docs/settings.md").read_text()
    assert read
    assert not {name for name in read if f"`VV_AGENT_{name}`" not in written}


# Error codes.

NEVER_LEAVE = {"run_cancelled", "worker_stopping", "reconciliation_required", "rate_limited", "message_invalid"}
"""Codes of exceptions that the runtime turns into something else before anybody sees them, and the kind of an
`LlmError` that gets its prefix there."""
_CODE = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+\Z")
_CODE_FIRST = frozenset({
    "VVAgentError", "ConfigError", "SettingsError", "ReferenceInvalid", "CheckpointError", "CannotServe", "StoreError",
    "EventStoreError", "AppServerClientError", "PydanticCustomError", "_fault", "HookFailed",
})  # fmt: skip
_CODE_SECOND = frozenset({"ToolError", "failed"})


def test_every_error_code_has_an_entry() -> None:
    documented = set(re.findall(r"^\| `([a-z0-9_]+)` \|", (PROJECT / "docs/errors.md").read_text(), re.MULTILINE))
    raised = {code: place for path in sorted((PROJECT / "vv_agent").rglob("*.py")) for code, place in codes_of(path)}
    assert len(raised) > 100
    missing = {code: place for code, place in raised.items() if code not in documented | NEVER_LEAVE}
    assert not missing, "write an entry in docs/errors.md"
    assert documented - raised.keys() == set(), "docs/errors.md has codes that nothing raises"


def codes_of(path: Path) -> Iterator[tuple[str, str]]:
    """The codes a module gives to errors, refused tool calls and diagnostics, with the place."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for expression, prefix in _code_expressions(node):
            for code in _texts(expression):
                if _CODE.match(prefix + code):
                    yield prefix + code, f"{path.name}:{getattr(node, 'lineno', 0)}"


def _code_expressions(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Where a code may stand: an argument of an error, a parameter or name that ends in "code", a table of codes, the
    pair of code and message that a function gives."""
    match node:
        case ast.Call(func=function, args=args, keywords=keywords):
            name = getattr(function, "id", getattr(function, "attr", ""))
            if name == "LlmError" and args:
                yield args[0], "model_"
            elif name in _CODE_FIRST and args:
                yield args[0], ""
            elif name in _CODE_SECOND and len(args) > 1:
                yield args[1], ""
            elif name == "error_result" and len(args) > 2:
                yield args[2], ""
            elif name == "__init__":
                yield from ((argument, "") for argument in args[:2])
            yield from ((keyword.value, "") for keyword in keywords if keyword.arg in ("code", "error_code"))
        case ast.Return(value=ast.Tuple(elts=[ast.Constant(value=str(code)) as first, ast.Constant()])) if _CODE.match(
            code
        ):
            yield first, ""
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=value)
        ):
            if value is not None and name.lower().endswith("code"):
                yield value, ""
            if name in ("_CODES", "_CHECKS", "_SLOTS_INVALID") and value is not None:
                yield from ((row, "") for row in _table(value))
        case ast.arguments(
            posonlyargs=positional, args=args, defaults=defaults, kwonlyargs=kwonly, kw_defaults=kw_defaults
        ):
            pairs = [
                *zip([*positional, *args][::-1], defaults[::-1], strict=False),
                *zip(kwonly, kw_defaults, strict=True),
            ]
            yield from ((value, "") for name, value in pairs if value is not None and name.arg.endswith("code"))


def _table(value: ast.expr) -> Iterator[ast.expr]:
    """The codes of a table: the values of a dict, the first columns of a tuple of rows, or the text itself."""
    match value:
        case ast.Dict(values=values):
            yield from values
        case ast.Tuple(elts=rows):
            yield from (row.elts[0] for row in rows if isinstance(row, ast.Tuple))
        case _:
            yield value


def _texts(expression: ast.expr) -> Iterator[str]:
    match expression:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=yes, orelse=no):
            yield from (*_texts(yes), *_texts(no))
