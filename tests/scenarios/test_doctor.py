"""`vv-agent doctor`: each check sees what was broken for it, says what to do, and the exit code is 1."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import servers
from tests.fake_openai import FakeOpenAI
from tests.shell import Done, Shell
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import NewRun
from vv_agent.checkpoint.store import open_store
from vv_agent.cli.doctor import broker, redis, sql, store
from vv_agent.cli.doctor.finding import Finding


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def found(done: Done, check: str, *texts: str) -> None:
    """A problem of that check with these words and a remedy, and exit code 1."""
    assert done.returncode == 1, done
    assert done.stderr == ""
    problems = [entry for entry in done.json() if entry["level"] == "problem" and entry["check"] == check]
    assert problems, done.stdout
    assert all(entry["remedy"] for entry in problems)
    for text in texts:
        assert any(text in entry["text"] for entry in problems), problems


def one(findings: Iterable[Finding]) -> Finding:
    """The only problem."""
    (problem,) = [finding for finding in findings if finding.level == "problem"]
    assert problem.remedy
    return problem


def fine(findings: Iterable[Finding]) -> bool:
    return all(finding.level == "ok" for finding in findings)


def test_a_healthy_machine_has_no_problem(shell: Shell) -> None:
    done = shell("doctor")
    assert done.returncode == 0, done
    assert done.stdout.startswith("LEVEL")
    for check in ("environment", "store", "sqlite", "file system", "room", "durability", "round trip", "clocks"):
        assert any(line.startswith("ok") and check in line for line in done.stdout.splitlines()), check
    assert "none of queue vv-agent; start one: vv-agent worker" in done.stdout
    with shell.start("worker"):
        shell.until(lambda: "1 of queue vv-agent" in shell("doctor").stdout, "the worker is seen")


def test_a_wrong_variable_is_a_problem(shell: Shell) -> None:
    done = shell("doctor", VV_AGENT_LEASE_SECONDS="soon")
    assert done.returncode == 1
    assert "environment: VV_AGENT_LEASE_SECONDS='soon' must be a number from 0.5 to 3600\n  correct" in done.stdout


def test_a_store_that_cannot_be_used_is_a_problem(shell: Shell) -> None:
    (shell.folder / "text.db").write_text("this is a letter, not a database, and longer than a hundred bytes" * 3)
    found(shell("doctor", "--json", VV_AGENT_STORE="sqlite:///text.db"), "store", "damaged or not a vv-agent store")
    found(shell("doctor", "--json", VV_AGENT_STORE="memory://"), "store", "forgets every run")
    found(shell("doctor", "--json", VV_AGENT_STORE="mysql://u:secret@h/x"), "store", "names no store")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        found(shell("doctor", "--json", VV_AGENT_STORE=f"redis://{address}"), "store")
        lost = shell("doctor", "--json", VV_AGENT_STORE=f"postgresql://u:secret@{address}/x")
    found(lost, "store")
    assert "secret" not in lost.stdout


def test_a_store_that_does_not_keep_what_it_is_given_is_a_problem(shell: Shell) -> None:
    open_store(shell.url).close()
    with sqlite3.connect(shell.folder / ".vv-agent/runs.db") as connection:
        connection.execute("ALTER TABLE vv_entry RENAME COLUMN body TO text")
    connection.close()
    found(shell("doctor", "--json"), "round trip")


def test_an_old_sqlite_is_a_problem(shell: Shell) -> None:
    """The interpreter of this process is told that its SQLite is an old one."""
    (shell.folder / "sitecustomize.py").write_text("import sqlite3\nsqlite3.sqlite_version_info = (3, 31, 1)\n")
    done = shell("doctor", "--json", PYTHONPATH=f"{shell.folder}:{shell.env['PYTHONPATH']}")
    found(done, "sqlite", "SQLite 3.31.1 is too old")


def test_a_network_file_system_is_a_problem() -> None:
    mounted = "/dev/sda / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\n"
    assert "/home, which is nfs4" in one(sql.file_system(Path("/home/ann/runs.db"), mounted)).text
    assert fine(sql.file_system(Path("/srv/runs.db"), mounted))
    assert fine(sql.file_system(Path("/srv/runs.db"), ""))


def test_a_full_disk_is_a_problem() -> None:
    assert "has 5 MB left" in one(sql.room(Path("/srv/runs.db"), 5 << 20)).text
    assert fine(sql.room(Path("/srv/runs.db"), 5 << 30))


def test_a_file_without_the_write_ahead_log_is_a_problem(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    assert "'delete'" in one(sql.journal_mode(tmp_path / "runs.db")).text


def test_a_postgres_that_does_not_sync_is_a_problem() -> None:
    assert "fsync = off" in one(sql.postgres({"fsync": "off", "full_page_writes": "on"})).text
    assert "full_page_writes = off" in one(sql.postgres({"fsync": "on", "full_page_writes": "off"})).text


@pytest.mark.skipif(servers.postgres_url() is None, reason="no PostgreSQL")
def test_a_real_postgres_is_asked(shell: Shell) -> None:
    with servers.postgres_schema() as url:
        done = shell("doctor", VV_AGENT_STORE=url)
    assert "PostgreSQL" in done.stdout
    assert "round trip" in done.stdout


def test_clocks_that_differ_are_a_problem() -> None:
    late = MemoryStore(lambda: int(time.time() * 1000) - 5_000)
    assert "-5.0 s" in one(store.clocks(late)).text
    assert fine(store.clocks(MemoryStore()))


def test_a_run_that_nobody_can_serve_is_a_problem(shell: Shell) -> None:
    from vv_agent.checkpoint.sql import SqlStore

    earlier = SqlStore(shell.url, clock=lambda: int(time.time() * 1000) - 601_000)
    earlier.create([NewRun(key="k", run_id="r", definition="d", definition_body=b"", body=b"", queue="vv-agent")])
    earlier.defer("k", 1, "reference_not_allowed: shop", 0)
    earlier.close()
    found(
        shell("doctor", "--json"), "runs", "1 cannot be served by any worker, such as k (reference_not_allowed: shop)"
    )


def test_a_module_that_cannot_be_loaded_is_a_problem(shell: Shell) -> None:
    (shell.folder / "fine.py").write_text("")
    (shell.folder / "broken.py").write_text("1 / 0\n")
    done = shell("doctor", "--json", VV_AGENT_IMPORTS="fine,broken,missing")
    found(
        done, "imports", "broken cannot be loaded: ZeroDivisionError", "missing cannot be loaded: ModuleNotFoundError"
    )
    assert shell("doctor", VV_AGENT_IMPORTS="fine").returncode == 0


def test_a_broken_settings_file_is_a_problem_and_keys_are_not_shown(shell: Shell) -> None:
    shell.write_settings("http://ann:word@127.0.0.1:1/v1")
    good = shell("doctor", "--json")
    assert good.returncode == 0
    assert "key set" in good.stdout
    assert "sk-very-secret" not in good.stdout
    assert "ann:word" not in good.stdout
    settings = shell.folder / "local_settings.json"
    settings.write_text(settings.read_text().replace('"VERSION": "2"', '"VERSION": "3"'))
    bad = shell("doctor", "--json")
    found(bad, "models", "LLM_SETTINGS.VERSION must be '2'")
    assert "sk-very-secret" not in bad.stdout
    found(shell("doctor", "--json", VV_AGENT_LOCAL_SETTINGS="gone.json"), "models", "gone.json does not exist")


def test_a_model_is_called_only_when_asked_to(shell: Shell) -> None:
    with FakeOpenAI() as server:
        shell.write_settings(server.url)
        assert shell("doctor").returncode == 0
        assert server.requests == []
        assert "fake (local/plain) answered" in shell("doctor", "--live").stdout
        assert len(server.requests) == 1
    found(shell("doctor", "--live", "--json"), "endpoint", "fake (local/plain) did not answer")


# Redis and Celery.


@contextmanager
def redis_server(*options: str) -> Iterator[str]:
    """A Redis of our own with these options; its URL."""
    binary = servers.bundled_redis() or shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server to start")
    folder = tempfile.mkdtemp(prefix="vv-redis-")
    path = f"{folder}/s"
    command = [str(binary), "--port", "0", "--unixsocket", path, "--save", "", "--dir", folder, *options]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        Shell.until(lambda: os.path.exists(path), "the Redis server starts")
        yield f"redis+socket://{path}"
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder)


GOOD = ("--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction")


@pytest.mark.parametrize(
    ("options", "check", "text"),
    [
        (("--appendonly", "no"), "durability", "appendonly is no"),
        (("--appendfsync", "everysec"), "durability", "appendfsync is everysec"),
        (("--maxmemory-policy", "allkeys-lru"), "eviction", "maxmemory-policy is allkeys-lru"),
    ],
    ids=["no file", "late file", "eviction"],
)
def test_a_redis_that_forgets_is_a_problem(shell: Shell, options: tuple[str, ...], check: str, text: str) -> None:
    changed = dict(zip(GOOD[::2], GOOD[1::2], strict=True)) | {options[0]: options[1]}
    with redis_server(*(word for pair in changed.items() for word in pair)) as url:
        found(shell("doctor", "--json", VV_AGENT_STORE=url), check, text)


def test_a_redis_that_keeps_everything_is_fine(shell: Shell) -> None:
    with redis_server(*GOOD) as url:
        done = shell("doctor", VV_AGENT_STORE=url)
    assert done.returncode == 0, done
    assert "appendonly yes, appendfsync always" in done.stdout


def test_what_a_redis_says_of_itself() -> None:
    assert "6.0.16 is too old" in one(redis.findings("store", "6.0.16", None, keeps_runs=True)).text
    kept_nowhere = {"appendonly": "no", "appendfsync": "no", "maxmemory-policy": "noeviction"}
    assert fine(redis.findings("broker", "7.0.15", kept_nowhere, keeps_runs=False))  # a broker only carries hints


def test_a_broker_that_does_not_answer_is_a_problem(shell: Shell) -> None:
    found(shell("doctor", "--json", VV_AGENT_BROKER="redis://127.0.0.1:1/0"), "broker", "did not answer")


def test_a_broker_of_another_kind_is_asked_too(shell: Shell) -> None:
    done = shell("doctor", "--json", VV_AGENT_BROKER="amqp://ann:secret@127.0.0.1:1//")
    found(done, "broker", "did not answer")
    assert "secret" not in done.stdout


def test_messages_that_come_again_too_soon_are_a_problem(shell: Shell) -> None:
    with redis_server(*GOOD) as url:
        early = shell("doctor", "--json", VV_AGENT_BROKER=url, VV_AGENT_VISIBILITY_SECONDS="20")
        found(early, "visibility timeout", "20 s is not above the lease of 30 s")
        done = shell("doctor", VV_AGENT_BROKER=url)
    assert done.returncode == 0, done
    for check in ("visibility timeout", "acknowledgement", "prefetch", "eviction"):
        assert any(line.startswith("ok") and check in line for line in done.stdout.splitlines()), check


def celery(**changes: Any) -> Any:
    good = {
        "broker_transport_options": {"visibility_timeout": 900}, "task_acks_late": True, "worker_prefetch_multiplier": 1
    }  # fmt: skip
    return SimpleNamespace(**{**good, **changes})


def test_options_of_celery_that_lose_or_repeat_messages_are_problems() -> None:
    assert fine(broker.configuration(celery(), 30.0, redis_like=True))
    short = broker.configuration(celery(broker_transport_options={"visibility_timeout": 20}), 30.0, redis_like=True)
    assert "20 s is not above the lease of 30 s" in one(short).text
    early = broker.configuration(celery(task_acks_late=False), 30.0, redis_like=True)
    assert one(early).check == "acknowledgement"
    many = broker.configuration(celery(worker_prefetch_multiplier=4), 30.0, redis_like=True)
    assert one(many).check == "prefetch"


def test_doctor_says_what_to_do_in_plain_words(shell: Shell) -> None:
    done = shell("doctor", VV_AGENT_IMPORTS="missing")
    assert done.returncode == 1
    assert done.stdout.rstrip().endswith("else take it out of VV_AGENT_IMPORTS")
    assert "Traceback" not in done.stdout + done.stderr
    assert sys.executable not in done.stdout
