"""What `from vv_agent import ...` gives, to a program and to a type checker."""

from __future__ import annotations

import ast
from pathlib import Path

import vv_agent


def test_type_checkers_see_the_same_front_door() -> None:
    stub = ast.parse(Path(vv_agent.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    assert {alias.name: node.module for node in imports for alias in node.names} == vv_agent._HOMES  # type: ignore[attr-defined]


def test_every_name_is_there() -> None:
    assert all(getattr(vv_agent, name) is not None for name in vv_agent.__all__)
