"""The commands in a terminal: text as it comes, colours, and what Ctrl-C leaves behind."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_openai import FakeOpenAI
from tests.shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with FakeOpenAI() as server:
        made = Shell(tmp_path, VV_AGENT_IMPORTS="tests.cli_jobs")
        made.write_settings(server.url)
        yield made


def task(model: str, *more: str) -> tuple[str, ...]:
    return ("--prompt", "write", "it", "--backend", "local", "--model", model, *more)


def job(shell: Shell, *words: str) -> None:
    command = [sys.executable, "-m", "tests.cli_jobs", *words]
    subprocess.run(command, cwd=shell.folder, env=shell.env, timeout=60, check=True)


def test_a_task_tells_text_steps_and_tokens_then_its_result(shell: Shell) -> None:
    with shell.terminal(*task("writes")) as terminal:
        done = terminal.finish()
    assert done.returncode == 0
    told, _, result = done.stdout.partition("\n{")
    assert re.fullmatch(
        r"run run_[0-9a-f]{32}: write it\n"
        r"cycle 1\n"
        r'  calls write_file \{"path": "out\.txt", "content": "apple"\}\n'
        r"  write_file: success, \d+ ms\n"
        r"  tokens: 20 in, 5 out; 25 so far\n"
        r"cycle 2\n"
        r"It is written\.\n"
        r"  tokens: 20 in, 5 out; 50 so far\n"
        r"completed",
        told,
    ), told
    assert '"final_answer": "It is written."' in result


def test_ctrl_c_leaves_a_run_that_the_printed_command_resumes(shell: Shell) -> None:
    with shell.terminal(*task("slow", "--checkpoint-key", "my key")) as terminal:
        terminal.expect("3 4 5")
        terminal.interrupt()
        done = terminal.finish()
    assert done.returncode == 130
    assert done.stdout.endswith("the run is kept as it stands; go on with it: vv-agent resume 'my key'\n")
    assert '"status"' not in done.stdout
    state = shell("runs", "list", "--json").json()[0]
    assert (state["key"], state["state"], state["owner"]) == ("my key", "ready", None)
    with shell.terminal("resume", "my key") as terminal:
        resumed = terminal.finish()
    assert resumed.returncode == 0
    assert "taken up again" in resumed.stdout
    assert "17 18 19" in resumed.stdout


def test_ctrl_c_twice_leaves_at_once(shell: Shell) -> None:
    with shell.terminal(*task("never_answers", "--checkpoint-key", "k")) as terminal:
        terminal.expect("cycle 1")
        terminal.interrupt()
        terminal.interrupt()
        done = terminal.finish()
    assert done.returncode == 130
    assert "Traceback" not in done.stdout


def test_ctrl_c_again_and_again_never_shows_a_traceback(shell: Shell) -> None:
    with shell.terminal(*task("never_answers", "--checkpoint-key", "k")) as terminal:
        terminal.expect("cycle 1")
        for _ in range(40):
            terminal.interrupt()
        done = terminal.finish()
    assert done.returncode == 130
    assert "Traceback" not in done.stdout


def test_ctrl_c_leaves_a_run_of_workers_to_them(shell: Shell) -> None:
    with shell.start("worker"):
        shell.until((shell.folder / ".vv-agent/runs.db").exists, "the worker is there")
        with shell.terminal(*task("slow", "--distributed", "--checkpoint-key", "k")) as terminal:
            terminal.expect("3 4 5")
            terminal.interrupt()
            done = terminal.finish()
        assert done.returncode == 130
        assert "the run goes on in its workers\n  watch it:  vv-agent runs watch k\n" in done.stdout
        with shell.terminal("runs", "watch", "k") as terminal:
            watched = terminal.finish()
    assert watched.returncode == 0
    assert "completed" in watched.stdout


def test_ctrl_c_ends_a_watch_and_leaves_the_run_alone(shell: Shell) -> None:
    with shell.terminal(*task("slow", "--checkpoint-key", "k")) as running:
        running.expect("0 1")
        with shell.terminal("runs", "watch", "k") as watch:
            watch.expect("run run_")
            watch.interrupt()
            done = watch.finish()
        assert done.returncode == 130
        assert "no longer watching; the run is not touched. Again: vv-agent runs watch k\n" in done.stdout
        assert running.finish().returncode == 0


def test_sigterm_is_like_ctrl_c(shell: Shell) -> None:
    with shell.start(*task("never_answers", "--checkpoint-key", "k", "--stream")) as running:
        shell.until(lambda: "claimed" in shell("runs", "list", "--json").stdout, "the task begins")
        running.process.terminate()
        done = running.finish()
    assert (done.returncode, done.stdout) == (130, "")
    assert "go on with it: vv-agent resume k\n" in done.stderr


def test_a_detached_run_is_left_to_workers(shell: Shell) -> None:
    with shell.terminal(*task("stream", "--distributed", "--detach", "--checkpoint-key", "k")) as terminal:
        done = terminal.finish()
    assert done.returncode == 0
    assert done.stdout.endswith("the run is queued; watch it: vv-agent runs watch k\n")
    quiet = shell(*task("stream", "--distributed", "--detach", "--checkpoint-key", "l"))
    assert quiet.json() == {"status": "running", "checkpoint_key": "l"}
    assert quiet.stderr == ""
    assert {run["state"] for run in shell("runs", "list", "--json").json()} == {"ready"}
    with shell.start("worker"):
        assert shell("runs", "watch", "k").returncode == 0
        assert shell("runs", "watch", "l").returncode == 0


def test_a_distributed_task_without_workers_is_done_here(shell: Shell) -> None:
    done = shell(*task("stream", "--distributed", "--checkpoint-key", "k"))
    assert done.returncode == 0
    assert (done.json()["status"], done.json()["checkpoint_key"]) == ("completed", "k")
    assert "no worker of queue 'vv-agent' is running" in done.stderr
    again = shell(*task("stream", "--distributed", "--checkpoint-key", "k"))
    assert again.json() == done.json()
    other = shell(*task("plain", "--distributed", "--checkpoint-key", "k"))
    assert other.returncode == 0  # an ended run gives its result, whatever is asked now


def test_colours_are_for_terminals_that_want_them(shell: Shell) -> None:
    job(shell, "asking", "ask")

    def shown(*words: str, **environment: str) -> str:
        with shell.terminal(*words, **environment) as terminal:
            assert terminal.finish().returncode in (0, 3)
            return terminal.raw

    assert "\x1b[33mwait_user" in shown("runs", "list")
    assert "\x1b[33m" in shown("runs", "show", "ask")
    for words in (("runs", "list"), ("runs", "show", "ask"), ("runs", "events", "ask")):
        assert "\x1b" not in shown(*words, NO_COLOR="1")
        assert "\x1b" not in shown(*words, TERM="dumb")
        assert "\x1b" not in shell(*words).stdout
    assert "Which colour??[31m" in shown("runs", "show", "ask", NO_COLOR="1")  # a model cannot colour our terminal


def test_a_reader_that_leaves_a_pipe_is_no_error(shell: Shell) -> None:
    job(shell, "asking", "ask")
    command = f"{sys.executable} -m vv_agent.cli runs events ask --json | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], cwd=shell.folder, env=shell.env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith('{"version": "v1"')
    assert done.stderr == ""


def test_shells_can_complete_commands_and_keys(shell: Shell) -> None:
    job(shell, "asking", "ask-me")
    for name in ("bash", "zsh", "fish"):
        script = shell("--show-completion", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1", SHELL=name)
        assert script.returncode in (0, 1)
    words = {"_VV_AGENT_COMPLETE": "complete_bash", "COMP_CWORD": "3"}
    keys = shell(COMP_WORDS="vv-agent runs show ask", **words)
    assert keys.stdout.split() == ["ask-me"]
    commands = shell(COMP_WORDS="vv-agent runs re", **{**words, "COMP_CWORD": "2"})
    assert commands.stdout.split() == ["reconcile"]
