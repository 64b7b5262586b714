"""The command line among closed streams, odd encodings, foreign files and code that lies beside the store."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shell import COMMAND, ROOT, Shell
from vv_agent.cli.text import safe, short

BOOK = '''
from vv_agent import Agent, NoToolPolicy, RunConfig, Runner, function_tool
from vv_agent.testing import ScriptedProvider, call


@function_tool(needs_approval=True)
def pay(amount: int, note: str) -> str:
    """Pay."""
    return f"paid {amount} é 山"


agent = Agent(name="clerk", instructions="Pay.", tools=[pay], no_tool_policy=NoToolPolicy.FINISH)
models = ScriptedProvider([call("pay", {"amount": 5, "note": "x" * 400 + "; rm -rf /"}), "Paid é 山."])

if __name__ == "__main__":
    import shop

    config = RunConfig(checkpoint_key="k")
    print(Runner(model_provider=shop.models).run_sync(shop.agent, "Pay.", run_config=config).status)
'''


@pytest.fixture
def shop(tmp_path: Path) -> Shell:
    """A run that waits for a yes, whose code lies in the working directory."""
    shell = Shell(tmp_path, VV_AGENT_IMPORTS="shop")
    (tmp_path / "shop.py").write_text(BOOK)
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, env=shell.env, timeout=60, check=True)
    return shell


def installed(shell: Shell, *words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The command as it is installed: nothing puts the working directory on the path of modules for it."""
    command = [sys.executable, "-P", *COMMAND[1:], *words]
    return subprocess.run(
        command, cwd=shell.folder, env={**shell.env, "PYTHONPATH": str(ROOT), **environment}, timeout=60, check=False,
        stdin=subprocess.DEVNULL, capture_output=True,
    )  # fmt: skip


def allowed(shell: Shell) -> None:
    asked = shell("runs", "show", "k", "--json").json()["approvals"][0]
    assert shell("runs", "approve", "k", asked["interruption_id"], "--allow").returncode == 0


def test_resume_finds_the_code_that_lies_where_it_is_called(shop: Shell) -> None:
    allowed(shop)
    done = installed(shop, "resume", "k")
    assert (done.returncode, "Paid é 山.".encode() in done.stdout) == (0, True), done.stderr.decode()


def test_a_question_says_that_there_is_more_of_the_call_and_where(shop: Shell) -> None:
    shown = shop("runs", "show", "k")
    assert "vv-agent runs show k --full" in shown.stdout
    assert "rm -rf" in shop("runs", "show", "k", "--full").stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_result_is_shown_whatever_stdout_can_write(shop: Shell, encoding: str) -> None:
    allowed(shop)
    done = installed(shop, "resume", "k", "--json", PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["final_output"] == "Paid é 山."
    plain = installed(shop, "runs", "show", "k", PYTHONIOENCODING=encoding)
    assert (plain.returncode, b"\\u5c71" in plain.stdout) == (0, True)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "2>/dev/full", ">&- 2>&-"])
@pytest.mark.parametrize("words", ["runs list", "--help", "runs show k"])
def test_a_stream_that_is_closed_or_full_is_no_traceback(shop: Shell, words: str, closed: str) -> None:
    script = f"{sys.executable} -m vv_agent.cli {words} {closed}"
    done = subprocess.run(
        ["sh", "-c", script], cwd=shop.folder, env=shop.env, timeout=60, check=False, capture_output=True
    )
    assert done.returncode == (3 if words == "runs show k" else 0), done.stderr.decode()
    assert b"Traceback" not in done.stderr + done.stdout


def test_the_file_of_another_program_is_no_store_and_stays_as_it_is(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE mine (x)")
    done = Shell(tmp_path)("runs", "list", VV_AGENT_STORE=f"sqlite:///{tmp_path}/other.db")
    assert (done.returncode, "no store of runs" in done.stderr) == (1, True)
    with sqlite3.connect(tmp_path / "other.db") as other:
        assert [name for (name,) in other.execute("SELECT name FROM sqlite_master")] == ["mine"]


def test_a_run_below_is_resumed_with_its_root(tmp_path: Path) -> None:
    shell = Shell(tmp_path, VV_AGENT_IMPORTS="tests")
    command = [sys.executable, "-m", "tests.cli_jobs", "leading", "L"]
    subprocess.run(command, cwd=tmp_path, env=shell.env, timeout=60, check=True)
    (child,) = [row["key"] for row in shell("runs", "list", "--all", "--json").json() if row["key"] != "L"]
    done = shell("resume", child)
    assert (done.returncode, "resume that one" in done.stderr, "'L'" in done.stderr) == (1, True, True)


def test_what_a_child_lacks_is_said_in_one_line(tmp_path: Path) -> None:
    shell = Shell(tmp_path, VV_AGENT_IMPORTS="tests")
    command = [sys.executable, "-m", "tests.cli_jobs", "leading", "L"]
    subprocess.run(command, cwd=tmp_path, env=shell.env, timeout=60, check=True)
    done = shell("resume", "L", VV_AGENT_IMPORTS="")
    assert "Traceback" not in done.stderr


def test_what_is_hidden_in_a_text_is_seen() -> None:
    assert safe("a\u202eb\u200bc\ufeff") == "a\\u202eb\\u200bc\\ufeff"
    assert short("山 \x1b[31m é", 20) == "山 ?[31m é"
