"""A hook of the site: writes the public names into the reference, each at its home."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

MODULES = (
    "vv_agent", "vv_agent.llm", "vv_agent.tools", "vv_agent.workspace", "vv_agent.sessions", "vv_agent.memory",
    "vv_agent.prompt", "vv_agent.skills", "vv_agent.checkpoint", "vv_agent.testing", "vv_agent.app_server",
)  # fmt: skip


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return markdown.replace("<!-- names -->", "\n".join(lines()))


def lines() -> Iterator[str]:
    """The reference: a heading for each module, a directive for each name, no name twice; events at the end."""
    seen: set[str] = set()
    for module in MODULES:
        yield f"\n## {module}\n"
        for home in homes(module):
            if home not in seen:
                seen.add(home)
                yield f"::: {home}"
    yield "\n## vv_agent.events\n\n::: vv_agent.events"


def homes(module: str) -> Iterator[str]:
    """Where a module's public names are defined."""
    loaded = importlib.import_module(module)
    for name in loaded.__all__:
        one = getattr(loaded, name)
        if inspect.isclass(one) or inspect.isfunction(one):
            if one.__module__ != "vv_agent.events":
                yield f"{one.__module__}.{one.__qualname__}"
        elif name in getattr(loaded, "_HOMES", ()):  # a name for a type
            yield f"{loaded._HOMES[name]}.{name}"
