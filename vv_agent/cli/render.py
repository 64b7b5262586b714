"""The same values for people and for scripts: a table on a terminal, aligned columns elsewhere, or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vv_agent.cli.text import safe

_COLOURS = {
    "completed": "green", "failed": "red", "max_cycles": "red", "wait_user": "yellow",
    "reconciliation_required": "yellow", "run_incompatible": "red", "problem": "red", "ok": "green",
}  # fmt: skip


def as_json(value: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(f"{to_json(value, indent=2)}\n")


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON that stdout can take: with escapes where its encoding has not all characters."""
    whole = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return json.dumps(value, ensure_ascii=not whole, indent=indent)


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows under headings; `columns` maps a row's field to its heading."""
    cells = [[safe(_text(row.get(name))) for name in columns] for row in rows]
    if (console := _console()) is not None:
        _rich_table(console, list(columns.values()), cells)
        return
    heads = [heading.upper() for heading in columns.values()]
    widths = [max(len(line[i]) for line in [heads, *cells]) for i in range(len(heads))]
    for line in [heads, *cells]:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n")


def pairs(values: Sequence[tuple[str, str]]) -> None:
    """Named values, one a line."""
    width = max((len(name) for name, _ in values), default=0)
    console = _console()
    for name, text in values:
        if console is None:
            sys.stdout.write(f"{name.ljust(width)}  {text}\n")
        else:
            from rich.text import Text

            colour = _COLOURS.get(text.split(" ")[0], "") if name in ("status", "label") else ""
            line = Text.assemble((f"{name.ljust(width)}  ", "dim"), (text, colour))
            console.print(line, soft_wrap=True, highlight=False)


def say(text: str = "") -> None:
    """A line of plain text."""
    sys.stdout.write(f"{text}\n")


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _console() -> Any:
    """A console with colours if stdout is a terminal that wants them."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console

    console = Console()
    return None if console.no_color or console.is_dumb_terminal else console


def _rich_table(console: Any, heads: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in heads:
        made.add_column(heading, overflow="fold")
    for line in cells:
        made.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in line))
    console.print(made)
