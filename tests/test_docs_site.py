"""The site of the documentation is built without a warning, and its reference has every public name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vv_agent

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (pip install -e '.[dev]')")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)],
        cwd=PROJECT, env={**os.environ, "PYTHONPATH": str(PROJECT), "NO_MKDOCS_2_WARNING": "1"}, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    navigation = (PROJECT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (PROJECT / "docs").glob("*.md"):
        assert re.search(rf"[ :-] {page.name}$", navigation, re.MULTILINE), page.name
        assert (site / ("index.html" if page.stem == "index" else f"{page.stem}/index.html")).is_file()


def test_the_reference_has_every_public_name(site: Path) -> None:
    reference = (site / "reference/index.html").read_text(encoding="utf-8")
    shown = {name.rpartition(".")[2] for name in re.findall(r'id="(vv_agent\.[\w.]+)"', reference)}
    other_names = {name for name in vv_agent.__all__ if getattr(getattr(vv_agent, name), "__name__", name) in shown}
    assert set(vv_agent.__all__) - shown - other_names == {"__version__"}


@pytest.mark.parametrize("name", vv_agent.__all__)
def test_a_public_name_says_what_it_is(name: str) -> None:
    said = getattr(vv_agent, name).__doc__ or ""
    assert len(said.split()) > 2, f"{name} has no docstring"
    assert not said.startswith(f"{name}("), f"the docstring of {name} is the one dataclasses make"


def test_every_public_name_is_used_or_explained_somewhere() -> None:
    places = [PROJECT / "README.md", *(PROJECT / "docs").glob("*.md"), *(PROJECT / "examples").glob("*.py")]
    words = set(re.findall(r"\w+", "\n".join(path.read_text(encoding="utf-8") for path in places)))
    assert set(vv_agent.__all__) - words == {"__version__"}
