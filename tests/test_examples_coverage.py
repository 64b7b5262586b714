"""The numbered examples: without gaps, in the index, on public names only, and each one runs."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NUMBERED = sorted(EXAMPLES.glob("[0-9]*.py"))
HELPERS = [EXAMPLES / "support.py", EXAMPLES / "jobs.py"]
PUBLIC = {
    "vv_agent", "vv_agent.checkpoint", "vv_agent.config", "vv_agent.events", "vv_agent.memory", "vv_agent.prompt",
    "vv_agent.skills", "vv_agent.testing", "vv_agent.workspace",
}  # fmt: skip
"""Modules whose names are for everybody."""


def test_the_numbers_have_no_gap() -> None:
    assert [int(path.name[:2]) for path in NUMBERED] == list(range(1, 30))
    assert all(re.fullmatch(r"\d\d_[a-z_]+\.py", path.name) for path in NUMBERED)


def test_each_example_is_in_the_index_with_what_it_shows() -> None:
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\d\d_\w+)\]\((\w+\.py)\) \| (.+) \|$", index, re.MULTILINE)
    assert [f"{name}.py" for name, _, _ in rows] == [path.name for path in NUMBERED]
    assert all(f"{name}.py" == target for name, target, _ in rows)


@pytest.mark.parametrize("path", [*NUMBERED, *HELPERS], ids=lambda path: path.stem)
def test_an_example_is_short_and_uses_public_names_only(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert path in HELPERS or len(text.splitlines()) <= 80
    tree = ast.parse(text)
    assert ast.get_docstring(tree)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in imports:
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith("vv_agent") for alias in node.names)
        elif node.module and node.module.startswith("vv_agent"):
            module = importlib.import_module(node.module)
            assert node.module in PUBLIC
            for alias in node.names:
                assert not alias.name.startswith("_")
                assert alias.name in getattr(module, "__all__", [alias.name]), f"{node.module}.{alias.name}"
                assert getattr(module, alias.name) is not None


def run(path: Path, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("VV_AGENT_", "AWS_"))}
    environment |= {"PYTHONPATH": str(EXAMPLES.parent), **more}
    return subprocess.run(
        [sys.executable, "-W", "error", str(path)], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("path", NUMBERED, ids=lambda path: path.stem)
def test_an_example_runs_and_prints_its_result(path: Path, tmp_path: Path) -> None:
    done = run(path, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    assert "Traceback" not in done.stderr


def test_an_example_that_fails_says_so_by_its_exit_code(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    text = (EXAMPLES / "04_session_api.py").read_text(encoding="utf-8")
    broken.write_text(text.replace("!= 4", "!= 5"), encoding="utf-8")
    done = run(broken, tmp_path, PYTHONPATH=f"{EXAMPLES}{os.pathsep}{EXAMPLES.parent}")
    assert done.returncode == 1
    assert done.stderr.endswith("this example failed: two turns are four messages\n")


def test_an_example_asks_the_model_of_a_settings_file(tmp_path: Path) -> None:
    from tests.fake_openai import FakeOpenAI

    with FakeOpenAI() as server:
        settings = tmp_path / "settings.json"
        template = (EXAMPLES.parent / "tests/dev_settings.example.json").read_text(encoding="utf-8")
        served = template.replace("http://127.0.0.1:18081/v1", server.url).replace(
            '"model_id": "tiny"', '"model_id": "stream"'
        )
        settings.write_text(served, encoding="utf-8")
        named = {
            "VV_AGENT_LOCAL_SETTINGS": str(settings), "VV_AGENT_EXAMPLE_BACKEND": "local",
            "VV_AGENT_EXAMPLE_MODEL": "tiny", "VV_AGENT_EXAMPLE_VERBOSE": "false",
        }  # fmt: skip
        done = run(EXAMPLES / "02_agent_profiles.py", tmp_path, **named)
        assert done.returncode == 0, done.stdout + done.stderr
        assert [request.model for request in server.requests] == ["stream", "stream"]
        assert "run_started" not in done.stderr
