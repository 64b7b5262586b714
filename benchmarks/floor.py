"""The floors: the same work with nothing of the runtime around it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.figures import Watch
from benchmarks.job import AGENT, look
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.llm.base import ModelRequest, collect
from vv_agent.llm.scripted import ScriptedModel
from vv_agent.messages import Message

BARE_SCRIPT = """
redis.call('HSET', KEYS[1], 'v', ARGV[1], 'head', ARGV[2])
if ARGV[3] ~= '' then redis.call('RPUSH', KEYS[2], ARGV[3], ARGV[4]) end
redis.call('ZADD', KEYS[3], ARGV[1], KEYS[1])
return 1
"""
"""On Redis: what a verb of a cycle writes, and no check."""


def bare_loop(model: ScriptedModel, cycles: int) -> None:
    """A loop that calls the model and the tool and keeps the messages, no more."""
    schemas = [look.to_openai_schema()]
    messages = [Message("system", AGENT.instructions), Message("user", "go")]
    for turn in range(cycles):
        response = collect(model.stream(ModelRequest("demo-model", messages, schemas, turn=turn)))
        messages.append(Message("assistant", response.content, tool_calls=response.tool_calls))
        messages += [
            Message("tool", look(**json.loads(call.arguments)), tool_call_id=call.id) for call in response.tool_calls
        ]


Write = tuple[str | None, int, bytes, Sequence[tuple[int, bytes]]]
"""One write: the new token, the new due, the row's other bytes, and the entries (kind, body) it appends."""


class Raw:
    """One run in a database of plain sqlite3: what its writes cost if nothing is checked or built."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for pragma in ("page_size=2048", "journal_mode=WAL", "synchronous=NORMAL", "journal_size_limit=16777216"):
            self.db.execute(f"PRAGMA {pragma}").fetchall()
        self.db.execute("CREATE TABLE run (id INTEGER PRIMARY KEY, token TEXT, due INTEGER, head BLOB)")
        self.db.execute("CREATE INDEX run_due ON run (due) WHERE due IS NOT NULL")
        self.db.execute("CREATE TABLE entry (id INTEGER PRIMARY KEY, kind INTEGER, body BLOB)")
        self.db.execute("INSERT INTO run VALUES (1, NULL, 0, x'')")
        self._seq = 1 << 24
        self._held: str | None = None

    def write(self, one: Write) -> None:
        token, due, head, entries = one
        self.db.execute("BEGIN IMMEDIATE")
        update = "UPDATE run SET token = ?, due = ?, head = ? WHERE id = 1 AND token IS ?"
        assert self.db.execute(update, (token, due, head, self._held)).rowcount == 1
        for kind, body in entries:
            self.db.execute("INSERT INTO entry VALUES (?, ?, ?)", (self._seq, kind, body))
            self._seq += 1
        self.db.execute("COMMIT")
        self._held = token


def raw_writes(path: Path, writes: Sequence[Write]) -> Watch:
    """The writes in a loop that does nothing else."""
    raw = Raw(path)
    with Watch() as watch:
        for one in writes:
            raw.write(one)
    raw.db.close()
    return watch


class RawBeside(MemoryStore):
    """A store in memory that makes the raw writes where a real store makes its own: between a model call and a tool
    call they take about twice as long as in a loop, ours and these alike, because the processor's caches are cold."""

    def __init__(self, path: Path, writes: Sequence[Write]) -> None:
        super().__init__()
        self.raw = Raw(path)
        self._writes = iter(writes)

    def claim(self, *args: Any, **options: Any) -> Any:
        answer = super().claim(*args, **options)
        self.raw.write(next(self._writes))
        return answer

    def save(self, *args: Any, **options: Any) -> Any:
        answer = super().save(*args, **options)
        self.raw.write(next(self._writes))
        return answer


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
