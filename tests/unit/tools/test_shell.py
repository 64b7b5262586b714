"""bash and check_background_command, with real commands."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.harness import until
from tests.runs import Host, asks
from vv_agent import CancellationToken
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.messages import ToolCall
from vv_agent.results import ToolExecutionResult
from vv_agent.tools.base import CallSafety, ToolContext, safety_of
from vv_agent.tools.builtin import bash, build_default_registry, check_background_command
from vv_agent.tools.builtin.processes import MAX_CHARS, Command, background
from vv_agent.workspace import DiscoveryFilteredWorkspaceBackend, LocalWorkspaceBackend

REGISTRY = build_default_registry()
QUICK = {"bash_shell": "sh"}  # a login bash reads profiles for a tenth of a second


@pytest.fixture(autouse=True)
def _no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login shell reads what its user has set up, which may take long."""
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def context(tmp_path: Path) -> Iterator[ToolContext]:
    workspace = LocalWorkspaceBackend(tmp_path / "work")
    yield ToolContext(tool_call_id="c", run_key="r", workspace=workspace, metadata=QUICK)
    background.end("r")
    until(lambda: not background.has_live("r"), "no command of the test is left")


def run(context: ToolContext, name: str, **arguments: Any) -> ToolExecutionResult:
    return REGISTRY.execute(ToolCall("c", name, json.dumps(arguments)), context)


def content(result: ToolExecutionResult) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(result.content)
    return loaded


@pytest.fixture
def sleep() -> str:
    """A command that takes longer than a test, and that no other test has."""
    return f"sleep 61.{secrets.randbelow(10**9):09}"


def marked(mark: str) -> list[psutil.Process]:
    """The living processes whose command line holds a text."""
    found = []
    for process in psutil.process_iter():
        try:
            if mark in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize(
    ("tool", "arguments", "metadata", "code"),
    [
        ("bash", {}, {}, "invalid_tool_arguments"),
        ("bash", {"command": 1}, {}, "invalid_tool_arguments"),
        ("bash", {"command": "ls", "timeout": "1"}, {}, "invalid_tool_arguments"),
        ("bash", {"command": "ls", "stdin": None}, {}, "invalid_tool_arguments"),
        ("bash", {"command": "ls", "auto_confirm": 1}, {}, "invalid_tool_arguments"),
        ("bash", {"command": "ls", "cwd": "."}, {}, "invalid_tool_arguments"),
        ("bash", {"command": " \n"}, {}, "command_required"),
        ("bash", {"command": "cd / && RM -rf / --no-preserve-root"}, {}, "dangerous_command"),
        ("bash", {"command": "sudo reboot"}, {}, "dangerous_command"),
        ("bash", {"command": "shutdown -h now"}, {}, "dangerous_command"),
        ("bash", {"command": "mkfs.ext4 /dev/sda"}, {}, "dangerous_command"),
        ("bash", {"command": "dd if=/dev/zero of=/dev/sda"}, {}, "dangerous_command"),
        ("bash", {"command": "ls", "exec_dir": "nowhere"}, {}, "invalid_exec_dir"),
        ("bash", {"command": "ls", "exec_dir": ".."}, {}, "invalid_exec_dir"),
        ("bash", {"command": "ls", "exec_dir": "/"}, {}, "invalid_exec_dir"),
        ("bash", {"command": "ls", "timeout": 0}, {}, "invalid_timeout"),
        ("bash", {"command": "ls", "timeout": 601}, {}, "invalid_timeout"),
        ("bash", {"command": "ls"}, {"bash_shell": 7}, "invalid_shell_config"),
        ("bash", {"command": "ls"}, {"bash_shell": "no-such-shell"}, "invalid_shell_config"),
        ("bash", {"command": "ls"}, {"windows_shell_priority": "cmd"}, "invalid_shell_config"),
        ("bash", {"command": "ls"}, {"bash_env": {"A": 1}}, "invalid_shell_config"),
        ("bash", {"command": "ls"}, {"bash_env": ["A"]}, "invalid_shell_config"),
        ("bash", {"command": "ls"}, {"bash_env": {"-u": "x"}}, "invalid_shell_config"),
        ("bash", {"command": "exit 1"}, {}, "command_failed"),
        ("bash", {"command": "no-such-program-at-all"}, {}, "command_failed"),
        ("bash", {"command": "a\x00b"}, {}, "command_failed"),
        ("bash", {"command": "#" * 200_000}, {}, "command_failed"),
        ("check_background_command", {}, {}, "invalid_tool_arguments"),
        ("check_background_command", {"session_id": 1}, {}, "invalid_tool_arguments"),
        ("check_background_command", {"session_id": " "}, {}, "session_id_required"),
        ("check_background_command", {"session_id": "bg_0"}, {}, "background_command_failed"),
    ],
)
def test_wrong_arguments_have_their_code(tmp_path: Path, tool: str, arguments: Any, metadata: Any, code: str) -> None:
    context = ToolContext(workspace=LocalWorkspaceBackend(tmp_path), metadata=metadata)
    result = run(context, tool, **arguments)
    assert (result.status_code, result.error_code) == ("ERROR", code)
    assert content(result)["error_code"] == (result.metadata or {})["error_code"] == code


def test_a_command_without_a_folder_to_run_in_is_refused() -> None:
    assert run(ToolContext(), "bash", command="ls").error_code == "workspace_backend_error"


def test_they_declare_the_truth() -> None:
    assert safety_of(bash) is CallSafety.UNSAFE
    assert safety_of(check_background_command) is CallSafety.REPEATABLE


def test_output_and_errors_come_together(context: ToolContext) -> None:
    result = run(context, "bash", command="echo out; echo err >&2")
    assert content(result) == {"cwd": ".", "exit_code": 0, "output": "out\nerr\n", "shell": "sh"}
    assert result.metadata == {"cwd": ".", "exit_code": 0, "shell": "sh"}


def test_the_default_shell_is_not_named(context: ToolContext) -> None:
    plain = ToolContext(workspace=context.workspace)
    assert content(run(plain, "bash", command="echo $0")) == {"cwd": ".", "exit_code": 0, "output": "bash\n"}


def test_a_command_runs_in_its_folder_with_its_variables(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "work/in").mkdir(parents=True)
    (tmp_path / "work/link").symlink_to("/")
    other = ToolContext(workspace=context.workspace, metadata={**QUICK, "bash_env": {"GREETING": "a b=c"}})
    result = run(other, "bash", command='pwd; echo "$GREETING"', exec_dir="in")
    assert content(result)["output"] == f"{tmp_path}/work/in\na b=c\n"
    assert content(result)["cwd"] == "in"
    assert run(other, "bash", command="pwd", exec_dir="link").error_code == "invalid_exec_dir"
    out = ToolContext(workspace=context.workspace, metadata={**QUICK, "allow_outside_workspace": "Yes"})
    assert content(run(out, "bash", command="pwd", exec_dir="/"))["cwd"] == "/"


def test_a_command_reads_what_it_is_given(context: ToolContext) -> None:
    assert content(run(context, "bash", command="cat", stdin="täxt"))["output"] == "täxt"
    assert content(run(context, "bash", command="cat"))["output"] == ""
    fed = run(context, "bash", command="read a; read b; read c; echo $a $b $c", stdin="first\n", auto_confirm=True)
    assert content(fed)["output"] == "first y y\n"
    assert run(context, "bash", command="read a; exit 3 # end", auto_confirm=True).error_code == "command_failed"


def test_a_model_does_not_see_where_the_store_is(context: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VV_AGENT_STORE", "redis://:secret@host/0")
    monkeypatch.setenv("VV_AGENT_BROKER", "redis://:secret@host/1")
    assert "secret" not in content(run(context, "bash", command="env"))["output"]


def test_the_first_characters_of_a_long_output_are_kept(context: ToolContext) -> None:
    report = content(run(context, "bash", command="yes ä | head -c 3000000; exit 2"))
    assert len(report["output"]) == MAX_CHARS
    assert (report["output_truncated"], report["exit_code"]) == (True, 2)
    assert report["output"].startswith("ä\nä\n")
    assert "output_truncated" not in content(run(context, "bash", command="yes | head -c 50000"))


def test_bytes_that_are_no_text_are_shown_as_such(context: ToolContext) -> None:
    assert content(run(context, "bash", command=r"printf 'a\377b'"))["output"] == "a\ufffdb"


def test_what_a_command_leaves_running_ends_with_it(context: ToolContext, sleep: str) -> None:
    began = time.monotonic()
    assert content(run(context, "bash", command=f"{sleep} & echo started"))["output"] == "started\n"
    assert time.monotonic() - began < 10
    until(lambda: not marked(sleep), "nothing is left running", 5)


def test_a_command_that_takes_longer_goes_on_in_the_background(context: ToolContext, tmp_path: Path) -> None:
    result = run(context, "bash", command="echo begun; until test -e go; do sleep 0.02; done; echo over", timeout=1)
    report = content(result)
    session = report["session_id"]
    assert result.status_code == "RUNNING"
    assert {name: report[name] for name in ("status", "cwd", "output", "transitioned_to_background")} == {
        "status": "running", "cwd": ".", "output": "begun\n", "transitioned_to_background": True,
    }  # fmt: skip
    assert result.metadata == {"status": "running", "session_id": session, "cwd": ".", "shell": "sh"}
    looked = content(run(context, "check_background_command", session_id=session))
    assert looked.keys() == {"status", "session_id", "command", "elapsed_seconds", "cwd", "shell"}
    (tmp_path / "work/go").touch()
    done = until(lambda: _ended(context, session), "the command ends")
    assert done.status_code == "SUCCESS"
    assert (content(done)["exit_code"], content(done)["output"]) == (0, "begun\nover\n")
    assert content(done)["status"] == "completed"


def _ended(context: ToolContext, session: str) -> ToolExecutionResult | None:
    result = run(context, "check_background_command", session_id=f" {session} ")
    return None if result.status_code == "RUNNING" else result


@pytest.mark.parametrize(
    ("command", "timeout", "wanted"),
    [
        ("echo bad; exit 7", 30, ("failed", 7, "command exited with code 7")),
        ("echo bad; sleep 60", 1, ("timeout", -9, "command ran out of time and was killed")),
        ("trap '' TERM; echo bad; sleep 60", 1, ("timeout", -9, "command ran out of time and was killed")),
    ],
)
def test_a_background_command_that_fails(
    context: ToolContext, command: str, timeout: int, wanted: tuple[str, int, str]
) -> None:
    started = run(context, "bash", command=command, timeout=timeout, run_in_background=True)
    session = content(started)["session_id"]
    assert started.metadata == {"status": "running", "session_id": session, "shell": "sh"}
    result = until(lambda: _ended(context, session), "the command ends")
    report = content(result)
    assert (result.status_code, result.error_code) == ("ERROR", "background_command_failed")
    assert (report["ok"], report["status"], report["exit_code"], report["error"]) == (False, *wanted)
    assert report["output"].startswith("bad\n")
    assert (result.metadata or {})["status"] == wanted[0]


def test_a_command_is_stopped_with_its_call(context: ToolContext, sleep: str) -> None:
    token = CancellationToken()
    cancelled = ToolContext(workspace=context.workspace, metadata=QUICK, cancellation=token, tool_call_id="c")
    command = f"{sleep} & {sleep}"
    timer = threading.Timer(0.3, lambda: token.cancel("enough"))
    timer.start()
    began = time.monotonic()
    result = run(cancelled, "bash", command=command)
    assert time.monotonic() - began < 5
    assert (result.error_code, "enough" in result.content) == ("tool_cancelled", True)
    until(lambda: not marked(sleep), "the group is gone", 2)


def test_a_session_belongs_to_its_run(context: ToolContext) -> None:
    session = content(run(context, "bash", command="sleep 30", run_in_background=True))["session_id"]
    stranger = ToolContext(run_key="other", workspace=context.workspace, metadata=QUICK)
    assert content(run(stranger, "check_background_command", session_id=session))["status"] == "missing"


def test_a_command_of_another_worker_is_lost_and_the_model_is_told_where(context: ToolContext) -> None:
    session = content(run(context, "bash", command="true", run_in_background=True))["session_id"]
    moved = ToolContext(run_key="moved", shared_state=context.shared_state, tool_call_id="c")
    assert content(run(moved, "check_background_command", session_id=session))["status"] == "missing"
    (record,) = context.shared_state["_background_commands"].values()
    assert record["where"] == f"process {os.getpid()} on {socket.gethostname()}"
    record["where"] = "process 1 on elsewhere"
    result = run(moved, "check_background_command", session_id=session)
    assert content(result)["status"] == "lost"
    assert "process 1 on elsewhere" in content(result)["error"]
    assert result.metadata == {
        "error_code": "background_command_failed", "status": "lost", "session_id": session,
    }  # fmt: skip


def test_the_state_of_a_run_does_not_grow_with_its_commands(context: ToolContext) -> None:
    sessions = [content(run(context, "bash", command="true", run_in_background=True))["session_id"] for _ in range(35)]
    assert list(context.shared_state["_background_commands"]) == sessions[3:]


def test_a_machine_without_threads_starts_no_command(
    context: ToolContext, monkeypatch: pytest.MonkeyPatch, sleep: str
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refuse)
        result = run(context, "bash", command=sleep)
    assert (result.error_code, "no thread" in result.content) == ("command_failed", True)
    until(lambda: not marked(sleep), "what was begun of it is gone", 5)


def test_what_a_run_left_running_ends_with_it(tmp_path: Path, sleep: str) -> None:
    host = Host(MemoryStore(), tmp_path, [bash], config={"metadata": QUICK}, checkpoint=None)
    live: list[Any] = []

    def look(request: Any) -> str:
        live.extend(until(lambda: marked(sleep), "the command runs"))
        return "done"

    outcome = host.run([asks("bash", arguments={"command": sleep, "run_in_background": True}), look])
    assert outcome.ok.status == "completed"
    assert live
    until(lambda: not marked(sleep), "the command is stopped", 5)


def test_an_agent_is_offered_the_shell_when_it_is_of_type_computer(tmp_path: Path) -> None:
    def offered(**metadata: str) -> set[str]:
        seen: list[Any] = []

        def look(request: Any) -> str:
            seen.append(request)
            return "done"

        config = {"metadata": metadata}
        assert Host(MemoryStore(), tmp_path, checkpoint=None, config=config).run([look]).ok.status == "completed"
        return {tool["function"]["name"] for tool in seen[0].tools}

    assert {"bash", "check_background_command"} & offered() == set()
    assert {"bash", "check_background_command"} <= offered(agent_type="computer")


def test_a_forked_child_does_not_keep_a_command_alive(tmp_path: Path, sleep: str) -> None:
    """The guard waits for the end of the pipe; a child of the worker must not hold a copy of the other end."""
    read, write = os.pipe()
    worker = os.fork()
    if worker == 0:
        Command(["sh", "-c", sleep], str(tmp_path))
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        os.write(write, str(child).encode())
        time.sleep(30)
        os._exit(0)
    child = int(os.read(read, 20))
    try:
        until(lambda: marked(sleep), "the command runs")
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
        until(lambda: not marked(sleep), "the command is gone", 2)
    finally:
        os.kill(child, signal.SIGKILL)


def test_ended_commands_are_not_kept_for_ever(context: ToolContext) -> None:
    over = SimpleNamespace(done=SimpleNamespace(is_set=lambda: True))
    for number in range(200):
        background.add("many", str(number), over)  # type: ignore[arg-type]
    kept = [number for number in range(200) if background.get("many", str(number))]
    assert kept == list(range(136, 200))


def test_a_filtered_workspace_is_the_folder_below_it(tmp_path: Path) -> None:
    workspace = DiscoveryFilteredWorkspaceBackend(LocalWorkspaceBackend(tmp_path), r"\.secret$")
    call = ToolCall("c", "bash", json.dumps({"command": "pwd"}))
    result = build_default_registry().execute(call, ToolContext(workspace=workspace))
    assert json.loads(result.content)["output"].strip() == str(tmp_path)
