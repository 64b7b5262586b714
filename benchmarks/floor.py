"""The floors: the same work with nothing of the runtime around it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.job import AGENT, look
from vv_agent.llm.base import ModelRequest, collect
from vv_agent.llm.scripted import ScriptedModel
from vv_agent.messages import Message


def bare_loop(model: ScriptedModel, cycles: int) -> float:
    """Seconds of a loop that calls the model and the tool and keeps the messages, no more."""
    schemas = [look.to_openai_schema()]
    messages = [Message("system", AGENT.instructions), Message("user", "go")]
    began = time.perf_counter()
    for turn in range(cycles):
        response = collect(model.stream(ModelRequest("demo-model", messages, schemas, turn=turn)))
        messages.append(Message("assistant", response.content, tool_calls=response.tool_calls))
        messages += [
            Message("tool", look(**json.loads(call.arguments)), tool_call_id=call.id) for call in response.tool_calls
        ]
    return time.perf_counter() - began


Write = tuple[str | None, int, bytes, Sequence[tuple[int, bytes]]]
"""One write: the new token, the new due, the row's other bytes, and the entries (kind, body) it appends."""


def raw_writes(path: Path, writes: Sequence[Write]) -> float:
    """Seconds of the same writes by plain sqlite3: what a checkpoint costs if nothing is checked or built."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for pragma in ("page_size=2048", "journal_mode=WAL", "synchronous=NORMAL", "journal_size_limit=16777216"):
            db.execute(f"PRAGMA {pragma}").fetchall()
        db.execute("CREATE TABLE run (id INTEGER PRIMARY KEY, token TEXT, due INTEGER, head BLOB)")
        db.execute("CREATE INDEX run_due ON run (due) WHERE due IS NOT NULL")
        db.execute("CREATE TABLE entry (id INTEGER PRIMARY KEY, kind INTEGER, body BLOB)")
        db.execute("INSERT INTO run VALUES (1, NULL, 0, x'')")
        seq, held = 1 << 24, None
        began = time.perf_counter()
        for token, due, head, entries in writes:
            db.execute("BEGIN IMMEDIATE")
            update = "UPDATE run SET token = ?, due = ?, head = ? WHERE id = 1 AND token IS ?"
            assert db.execute(update, (token, due, head, held)).rowcount == 1
            for kind, body in entries:
                db.execute("INSERT INTO entry VALUES (?, ?, ?)", (seq := seq + 1, kind, body))
            db.execute("COMMIT")
            held = token
        return time.perf_counter() - began


def writes_of(path: Path, *, kept: bool) -> list[Write]:
    """The writes of the one run in a store of ours: a claim, a receipt and a commit for each cycle, byte for byte what
    it appended, and a row of the same size. `kept`: one claim for all cycles."""
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT kind, body FROM vv_entry ORDER BY id").fetchall()
        columns: tuple[Any, ...] = db.execute("SELECT * FROM vv_run").fetchone()
    head = b"h" * sum(len(value) if isinstance(value, str | bytes) else 4 for value in columns)
    saves = [rows[at : at + 2] for at in range(2, len(rows), 2)]  # the first two were written by create
    writes: list[Write] = []
    token = None
    for number in range(0, len(saves), 2):
        if token is None:
            token = f"{number:032x}"
            writes.append((token, number, head, ()))
        writes.append((token, number, head, saves[number]))
        if number + 1 < len(saves):
            token = token if kept else None
            writes.append((token, number + 1, head, saves[number + 1]))
    return writes
