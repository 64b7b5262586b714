"""What importing costs: the heavy packages come with their first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("httpx", "httpcore", "pydantic", "ssl", "vv_llm")


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        ("vv_agent, vv_agent.llm, vv_agent.llm.base, vv_agent.llm.client, vv_agent.llm.scripted", set()),
        ("vv_agent.llm.reference, vv_agent.llm.settings_file", set()),
        ("vv_agent.llm.settings, vv_agent.llm.provider", {"pydantic", "ssl"}),
    ],
)
def test_a_module_loads_no_heavy_package_it_does_not_need(names: str, allowed: set[str]) -> None:
    script = f"import {names}, sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert set(found.split()) <= allowed


def test_every_public_name_can_be_loaded() -> None:
    import vv_agent
    import vv_agent.llm

    for package in (vv_agent, vv_agent.llm):
        for name in package.__all__:
            assert getattr(package, name) is not None
        assert set(package.__all__) <= set(dir(package))
        with pytest.raises(AttributeError, match="nonsense"):
            _ = package.nonsense
