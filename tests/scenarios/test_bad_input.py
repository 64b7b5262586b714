"""Bad input of every kind: each gets an error with a code and a remedy, and nothing that was saved is lost."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from vv_agent import (
    Agent,
    CheckpointConfig,
    MemorySession,
    Message,
    NoToolPolicy,
    RunConfig,
    Runner,
    SqliteSession,
    SqlSessionStore,
    function_tool,
)
from vv_agent.checkpoint.store import CheckpointStore, open_store
from vv_agent.errors import CheckpointError, ConfigError, SettingsError, StoreError, VVAgentError
from vv_agent.runtime import tool_calls
from vv_agent.settings import read_settings
from vv_agent.testing import ScriptedProvider, call, calls

ROOT = Path(__file__).resolve().parents[2]


@function_tool(idempotency="supported")
def huge(size: int) -> str:
    """Return a long text."""
    return "x" * size


@function_tool(idempotency="supported")
def noise(size: int) -> str:
    """Return a long text that does not compress."""
    return random.Random(size).randbytes(size).hex()


AGENT = Agent(name="a", instructions="Work.", tools=[huge], no_tool_policy=NoToolPolicy.FINISH)


def runner(*steps: Any, workspace: Path) -> Runner:
    return Runner(model_provider=ScriptedProvider(list(steps) or ["done"]), workspace=workspace)


def config(store: CheckpointStore, key: str = "k", policy: str = "resume_if_present") -> RunConfig:
    return RunConfig(checkpoint_config=CheckpointConfig(key=key, resume_policy=policy, store=store))  # type: ignore[arg-type]


@pytest.fixture
def sqlite(tmp_path: Path) -> Any:
    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    yield store
    store.close()


@pytest.mark.parametrize("key", ["", "  ", "k" * 5_000, "a\nb", "a\0b"])
def test_a_bad_key_is_refused_before_anything_happens(key: str, sqlite: CheckpointStore, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="checkpoint_key_invalid: .*use 1 to 512 bytes") as refused:
        config(sqlite, key)
    assert refused.value.code == "checkpoint_key_invalid"
    with pytest.raises(CheckpointError, match="checkpoint_key_invalid"):
        runner(workspace=tmp_path).resume(key, store=sqlite)
    assert sqlite.find() == ()


def test_a_store_that_cannot_be_reached_says_so(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    for url in (f"sqlite:///{blocked}/x.db", f"sqlite:///{tmp_path}"):
        with pytest.raises(StoreError) as error:
            open_store(url)
        assert error.value.code == "store_unavailable"
        assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("url", ["nonsense", "mysql://x/y", "sqlite://", "sqlite:///:memory:"])
def test_a_wrong_store_url_names_the_right_forms(url: str) -> None:
    with pytest.raises(StoreError, match="store_url_invalid: .*(sqlite:///PATH|memory://)"):
        open_store(url)


def test_an_unreachable_server_is_named_without_its_password() -> None:
    if servers.postgres_url() is None:
        pytest.skip(servers.MISSING["postgres"])
    with pytest.raises(StoreError, match="store_unavailable") as error:
        open_store("postgresql://someone:hunter2@127.0.0.1:1/none")
    assert "hunter2" not in str(error.value)
    assert "127.0.0.1" in str(error.value)


def test_a_file_that_is_no_store_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.write_bytes(b"not a database, but somebody's file" * 100)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="store_corrupt"):
        open_store(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_a_store_of_a_later_version_is_refused(sqlite: CheckpointStore, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute("UPDATE vv_meta SET value = '9' WHERE name = 'schema'")
    connection.close()
    with pytest.raises(StoreError, match="store_schema_unsupported: .*schema '9'.*upgrade"):
        open_store(f"sqlite:///{tmp_path}/runs.db")


def test_a_full_store_loses_nothing(sqlite: CheckpointStore, tmp_path: Path) -> None:
    """SQLite refuses further pages: the run stops with the code, and goes on once there is room."""
    agent = Agent(name="a", instructions="Work.", tools=[noise], no_tool_policy=NoToolPolicy.FINISH)
    steps = [calls(*[("noise", {"size": 45_000 + n}) for n in range(10)]), "done"]
    limit = _page_limit(sqlite, 120)
    with pytest.raises(StoreError, match="store_full: .*free some space, nothing was changed"):
        runner(*steps, workspace=tmp_path).run_sync(agent, "go", run_config=config(sqlite))
    limit()
    head = sqlite.load("k").head  # type: ignore[union-attr]
    assert head.state.value == "claimed", "the claim of the failed process stays until it ends"
    sqlite.expire(head.owner or "")
    result = runner(*steps, workspace=tmp_path).run_sync(agent, "go", run_config=config(sqlite))
    assert result.final_output == "done"


def _page_limit(store: Any, pages: int) -> Any:
    """Set SQLite's page limit on every new connection of the store; returns how to lift it."""
    from sqlalchemy import event

    limit = {"pages": pages}

    def configure(connection: Any, record: Any) -> None:
        connection.execute(f"PRAGMA max_page_count={limit['pages']}").fetchall()

    event.listen(store._engine, "connect", configure)
    _renew_connections(store)

    def lift() -> None:
        limit["pages"] = 1 << 30
        _renew_connections(store)

    return lift


def _renew_connections(store: Any) -> None:
    store._connections.drop()
    store._engine.dispose()


@pytest.mark.parametrize("damage", [b"\x01\xc1garbage", b"", b"\x90"])
def test_a_corrupt_head_is_named_and_not_rewritten(damage: bytes, sqlite: CheckpointStore, tmp_path: Path) -> None:
    runner(workspace=tmp_path).run_sync(AGENT, "go", run_config=config(sqlite))
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute("UPDATE vv_run SET head = ?", (damage,))
    connection.close()
    with pytest.raises(StoreError, match="store_corrupt: the record in row 1 cannot be read.*restore"):
        runner(workspace=tmp_path).resume("k", store=sqlite)
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        assert connection.execute("SELECT head FROM vv_run").fetchall() == [(damage,)]
    connection.close()


def test_a_corrupt_log_entry_is_named(sqlite: CheckpointStore, tmp_path: Path) -> None:
    runner(workspace=tmp_path).run_sync(AGENT, "go", run_config=config(sqlite))
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute("UPDATE vv_entry SET body = ? WHERE kind = 1", (b"\x01\xc1",))
    connection.close()
    with pytest.raises(StoreError, match="store_corrupt: log entry 1 "):
        runner(workspace=tmp_path).resume("k", store=sqlite)


def test_a_record_of_an_unknown_schema_is_not_judged(sqlite: CheckpointStore, tmp_path: Path) -> None:
    runner(workspace=tmp_path).run_sync(AGENT, "go", run_config=config(sqlite))
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute("UPDATE vv_entry SET body = ? WHERE kind = 1", (b"\x07" + b"later",))
        before = connection.execute("SELECT * FROM vv_run").fetchall()
    connection.close()
    with pytest.raises(CheckpointError, match="checkpoint_schema_unsupported: .*schema 7.*upgrade"):
        runner(workspace=tmp_path).resume("k", store=sqlite)
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        assert connection.execute("SELECT * FROM vv_run").fetchall() == before
    connection.close()


def test_an_oversized_answer_of_a_tool_is_an_error_the_model_reads(tmp_path: Path) -> None:
    size = tool_calls.MAX_ANSWER_CHARS + 1
    stops = dataclasses.replace(AGENT, tool_use_behavior="stop_on_first_tool")
    result = runner(call("huge", {"size": size}), "done", workspace=tmp_path).run_sync(stops, "go")
    (failed,) = result.cycles[0].tool_results
    assert failed.error_code == "tool_result_too_large"
    assert "write them to a file" in failed.content
    assert result.final_output == "done"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LEASE_SECONDS", "soon"),
        ("LEASE_SECONDS", "0"),
        ("CONCURRENCY", "-1"),
        ("CONCURRENCY", "nan"),
        ("POOL", "fast"),
    ],
)
def test_a_wrong_setting_names_the_variable_and_what_it_may_be(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"settings_invalid: VV_AGENT_{name}='{value}' must be") as error:
        read_settings({f"VV_AGENT_{name}": value})
    assert error.value.code == "settings_invalid"


def test_wrong_arguments_of_a_run_are_refused_at_the_start(tmp_path: Path, sqlite: CheckpointStore) -> None:
    start = runner(workspace=tmp_path)
    cases: list[tuple[str, Any]] = [
        ("run_config_invalid", lambda: start.run_sync(AGENT, 7)),  # type: ignore[arg-type]
        ("run_config_invalid", lambda: start.run_sync("agent", "Go.")),  # type: ignore[arg-type]
        ("run_not_resumable", lambda: start.resume(None)),  # type: ignore[arg-type]
        ("run_config_invalid", lambda: RunConfig(max_cycles=0)),
        ("run_config_invalid", lambda: RunConfig(execution_mode="somewhere")),  # type: ignore[arg-type]
        (
            "run_config_invalid",
            lambda: RunConfig(checkpoint_key="a", checkpoint_config=config(sqlite).checkpoint_config),
        ),
        ("agent_invalid", lambda: Agent(name=" ", instructions="x")),
        ("agent_invalid", lambda: Agent(name="a", instructions="  ")),
        ("tool_invalid", lambda: Agent(name="a", instructions="x", tools=[print])),  # type: ignore[list-item]
        ("tool_invalid", lambda: start.run_sync(_changed(print), "go")),
        ("tool_already_registered", lambda: Agent(name="a", instructions="x", tools=[_look, _look])),
        ("tool_already_registered", lambda: start.run_sync(_changed(_look, function_tool(name="_look")(_other)), "go")),
        ("agent_invalid", lambda: Agent(name="a", instructions="x", tools=_look)),  # type: ignore[arg-type]
        ("model_not_configured", lambda: Runner(model_provider=_NoDefault(), workspace=tmp_path).run_sync(AGENT, "go")),
        ("checkpoint_not_found", lambda: start.resume("nobody", store=sqlite)),
        ("run_config_invalid", lambda: RunConfig(max_cycle=3)),  # type: ignore[call-arg]
        ("agent_invalid", lambda: Agent(name="a", instruction="x")),  # type: ignore[call-arg]
        ("run_config_invalid", lambda: RunConfig(context_providers=print)),  # type: ignore[arg-type]
        ("run_config_invalid", lambda: RunConfig(metadata="m")),  # type: ignore[arg-type]
        ("run_config_invalid", lambda: RunConfig(workspace=5)),  # type: ignore[arg-type]
        ("run_config_invalid", lambda: Runner(workspace=5)),  # type: ignore[arg-type]
        ("tool_approval_invalid", lambda: function_tool(needs_approval="yes")(_other)),  # type: ignore[arg-type]
        ("session_invalid", lambda: MemorySession("t").get_items("1")),  # type: ignore[arg-type]
        ("session_invalid", lambda: MemorySession("\ud800")),
        ("session_item_invalid", lambda: MemorySession("t").add_items([{"role": "user"}])),  # type: ignore[list-item]
        ("store_url_invalid", lambda: SqlSessionStore("foo")),
        ("store_url_invalid", lambda: SqlSessionStore("mysql://localhost/x")),
        ("store_url_invalid", lambda: SqlSessionStore(5)),  # type: ignore[arg-type]
    ]
    for code, misuse in cases:
        with pytest.raises(VVAgentError) as error:
            misuse()
        assert error.value.code == code, error.value
        assert len(error.value.message) > 20


@function_tool
def _look() -> str:
    """Look."""
    return "seen"


def _other() -> str:
    """Look elsewhere."""
    return "seen"


def test_a_name_that_is_mistyped_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"RunConfig has no 'max_cycle'; did you mean 'max_cycles'\?"):
        RunConfig(max_cycle=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"Agent has no 'instruction'; did you mean 'instructions'\?"):
        Agent(name="a", instruction="x")  # type: ignore[call-arg]


def test_a_file_that_sessions_began_in_takes_no_runs(tmp_path: Path) -> None:
    session = SqliteSession(tmp_path / "one.db", "t")
    with pytest.raises(StoreError, match="store_incompatible: .* holds sessions; runs need a file of their own"):
        open_store(f"sqlite:///{tmp_path}/one.db")
    session.add_items([Message("user", "still there")])
    assert [item.content for item in SqliteSession(tmp_path / "one.db", "t").get_items()] == ["still there"]


def test_an_answer_must_say_something(tmp_path: Path, sqlite: CheckpointStore) -> None:
    agent = Agent(name="a", instructions="x", no_tool_policy=NoToolPolicy.WAIT_USER)
    start = runner(workspace=tmp_path)
    assert start.run_sync(agent, "go", run_config=config(sqlite)).status == "wait_user"
    for wrong in ("", " \n", 5):
        with pytest.raises(ConfigError, match="answer_invalid"):
            start.resume("k", input=wrong, store=sqlite)  # type: ignore[arg-type]


def _changed(*tools: Any) -> Agent:
    """An agent whose list of tools was changed after it was made."""
    agent = Agent(name="a", instructions="x", tools=[])
    agent.tools = tools
    return agent


class _NoDefault(ScriptedProvider):
    def __init__(self) -> None:
        super().__init__(["x"])

    def default_model_ref(self) -> None:  # type: ignore[override]
        return None


def test_a_distributed_run_of_local_code_is_refused_with_the_remedy(tmp_path: Path) -> None:
    @function_tool
    def local() -> str:
        """Live in a function only."""
        return "x"

    agent = Agent(name="a", instructions="x", tools=[local])
    with pytest.raises(
        ConfigError, match="reference_required: workers cannot load tool 'local'.*top level of a module"
    ):
        runner(workspace=tmp_path).start(
            agent,
            "go",
            run_config=RunConfig(execution_mode="distributed", model_provider=_PROVIDER),  # type: ignore[arg-type]
        )


_PROVIDER = ScriptedProvider(["x"])


def cli(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, "-m", "vv_agent.cli", *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=60
    )


def test_the_command_line_prints_an_error_not_a_traceback(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path}/.vv-agent/runs.db").close()
    missing = cli("resume", "nobody", cwd=tmp_path)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr.startswith("vv-agent: checkpoint_not_found: there is no run 'nobody'")
    wrong = cli("worker", cwd=tmp_path, VV_AGENT_LEASE_SECONDS="soon")
    assert wrong.returncode == 1
    assert "settings_invalid: VV_AGENT_LEASE_SECONDS='soon' must be a number" in wrong.stderr
    unreachable = cli("resume", "k", cwd=tmp_path, VV_AGENT_STORE=f"sqlite:///{tmp_path}")
    assert unreachable.returncode == 1
    assert "store_unavailable" in unreachable.stderr
    for done in (missing, wrong, unreachable):
        assert "Traceback" not in done.stderr


def test_a_broken_settings_file_shows_no_key(tmp_path: Path) -> None:
    settings = {
        "VERSION": "3",
        "backends": {},
        "endpoints": [{"id": "e", "api_key": "sk-very-secret", "api_base": "x"}],
    }
    (tmp_path / "local_settings.json").write_text(json.dumps(settings))
    script = "from vv_agent import Agent, Runner; Runner().run_sync(Agent(name='a', instructions='x', model='m'), 'go')"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "LLM_SETTINGS.VERSION must be '2'" in done.stderr
    assert "sk-very-secret" not in done.stderr + done.stdout
