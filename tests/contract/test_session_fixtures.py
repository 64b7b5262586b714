"""The session fixtures: the wire form of items, the SQLite layout, and what two runs leave in one session."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import folder, load
from vv_agent import Agent, CheckpointError, RunConfig, Runner, StoreError
from vv_agent.messages import Message
from vv_agent.sessions import MemorySession, SqliteSessionStore
from vv_agent.sessions.base import commit_id, decode_item, encode_item, item_to_wire, payload_digest
from vv_agent.testing import ScriptedProvider, calls

CODEC = load("session_codec.json")
CODEC_CASES = Cases("session_codec.json")
LINES = load("session_items.jsonl")
LINE_CASES = Cases("session_items.jsonl")
RUNS = load("runner_session_messages.jsonl")
RUN_CASES = Cases("runner_session_messages.jsonl")
SQL_CASES = Cases("session_sqlite_canonical.sql")
RESUME = load("checkpoint_resume.json")["session_persistence"]


@pytest.mark.parametrize("case", CODEC["canonical_cases"], ids=lambda case: case["name"])
def test_an_item_has_one_form(case: dict[str, Any]) -> None:
    with CODEC_CASES.run(case["name"]):
        item = decode_item(case["input"])
        assert item_to_wire(item) == case["canonical"]
        assert decode_item(encode_item(item)) == decode_item(case["canonical"])


@pytest.mark.parametrize("case", CODEC["invalid_cases"], ids=lambda case: case["name"])
def test_no_other_form_is_read(case: dict[str, Any]) -> None:
    with CODEC_CASES.run(case["name"]), pytest.raises(CheckpointError, match="session_item_invalid"):
        decode_item(case["input"])


@pytest.mark.parametrize("number", range(len(LINES)))
def test_a_stored_line_is_written_again_byte_for_byte(number: int) -> None:
    with LINE_CASES.run(f"line {number + 1}"):
        assert encode_item(decode_item(LINES[number])) == LINES[number]


def test_two_runs_leave_their_messages_in_one_session(tmp_path: Path) -> None:
    session = MemorySession("shared")
    for number, name in enumerate(("first", "second"), 1):
        step = calls(("task_finish", {"message": f"{name} result"}, f"finish_{number}"), text=f"{name} assistant")
        runner = Runner(model_provider=ScriptedProvider([step]), workspace=tmp_path)
        agent = Agent(name="a", instructions="Answer.")
        runner.run_sync(agent, f"{name} input", run_config=RunConfig(session=session))
    with RUN_CASES.run("both runs"):
        stored = [json.loads(encode_item(item)) for item in session.get_items()]
        assert [_plain(wire) for wire in stored] == [_plain(json.loads(line)) for line in RUNS]


def _plain(wire: dict[str, Any]) -> dict[str, Any]:
    """With the content of a tool as the object it is."""
    return {**wire, "content": json.loads(wire["content"])} if wire["role"] == "tool" else wire


@pytest.fixture
def file(tmp_path: Path) -> Path:
    home = folder()
    assert home is not None
    path = tmp_path / "sessions.db"
    with sqlite3.connect(path) as connection:
        connection.executescript((home / "session_sqlite_canonical.sql").read_text())
    return path


def test_a_file_of_another_program_is_read_and_continued(file: Path) -> None:
    with SQL_CASES.run("read and append"):
        session = SqliteSessionStore(file).session("shared")
        assert [item.content for item in session.get_items()] == ["canonical user", ""]
        session.add_items([Message("user", "next")])
        with sqlite3.connect(file) as connection:
            newest = connection.execute("SELECT max(item_index) FROM session_items").fetchone()
        assert newest == (10,)


@pytest.mark.parametrize(
    "change",
    ["PRAGMA user_version = 0", "PRAGMA user_version = 2", "DROP INDEX idx_session_items_session_id_item_index",
     "CREATE TABLE other (x)", "ALTER TABLE session_items ADD COLUMN x"],
)  # fmt: skip
def test_a_file_of_another_form_is_refused_as_it_is(file: Path, change: str) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute(change)
    before = file.read_bytes()
    with SQL_CASES.run(change), pytest.raises(StoreError, match="store_incompatible"):
        SqliteSessionStore(file)
    assert file.read_bytes() == before


RESUME_CASES = Cases("checkpoint_resume.json session_persistence")


def test_the_identity_of_an_append_is_the_contracts() -> None:
    golden = RESUME["golden_case"]
    items = [decode_item(wire) for wire in golden["payload"]["items"]]
    with RESUME_CASES.run("golden_case"):
        assert commit_id(golden["checkpoint_key"]) == golden["commit_id"]
        assert payload_digest(items) == golden["sha256"]


@pytest.mark.parametrize("case", RESUME["cases"], ids=lambda case: case["name"])
def test_an_append_happens_once(case: dict[str, Any]) -> None:
    session, name = MemorySession("s"), commit_id("case-key/session")
    done, other = [Message("assistant", "done")], [Message("assistant", "else")]
    if case["existing"] is not None:
        before = done if "same_commit_id_and" in case["existing"] else other
        session.add_items_once(name, payload_digest(before), before)
    held = len(session.get_items())
    with RESUME_CASES.run(case["name"]):
        if code := case["expected"].get("error_code"):
            with pytest.raises(CheckpointError, match=code):
                session.add_items_once(name, payload_digest(done), done)
        else:
            assert session.add_items_once(name, payload_digest(done), done) == case["expected"]["outcome"]
        assert len(session.get_items()) - held == case["expected"]["items_appended"]
