"""Folders of skills for tests."""

from __future__ import annotations

from pathlib import Path


def skill(root: Path, name: str = "count-words", header: str | None = None, body: str = "Count them.") -> Path:
    """A skill's folder below `root`."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    header = f"name: {name}\ndescription: What {name} is for." if header is None else header
    (folder / "SKILL.md").write_text(f"---\n{header}\n---\n\n{body}\n")
    return folder
