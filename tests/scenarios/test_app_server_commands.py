"""`vv-agent app-server` and `debug app-server` as somebody types them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app_server import until
from tests.fake_openai import FakeOpenAI
from tests.shell import Shell
from vv_agent.app_server import AppServerClient, StdioJsonlTransport
from vv_agent.app_server.schema import BUNDLE, NAMES

GO = [{"type": "text", "text": "Write it."}]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with FakeOpenAI() as server:
        made = Shell(tmp_path)
        made.write_settings(server.url)
        yield made


def serve(shell: Shell, *options: str) -> tuple[AppServerClient, subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "vv_agent.cli", "app-server", *options],
        cwd=shell.folder, env=shell.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    client = AppServerClient(StdioJsonlTransport(child.stdout, child.stdin), timeout=30)
    client.initialize({"name": "test"})
    return client, child


def finish(client: AppServerClient) -> dict[str, Any]:
    while (message := client.next_message(timeout=30)) is not None:
        if message["method"] == "turn/completed":
            return dict(message["params"])
    raise AssertionError("no turn was completed")


def leave(client: AppServerClient, child: subprocess.Popen[bytes], code: int = 0) -> str:
    client.close()
    assert child.wait(30) == code
    assert child.stderr is not None
    with child.stderr as said:
        text = said.read().decode()
    for pipe in (child.stdin, child.stdout):
        pipe.close()  # type: ignore[union-attr]
    return text


def test_a_turn_with_a_model_of_the_settings_file(shell: Shell) -> None:
    options = ("--model", "writes", "--settings=local_settings.json", "--listen=stdio", "--backend", "local")
    client, child = serve(shell, *options)
    assert client.list_models()["models"][0].items() >= {"id": "writes", "provider": "local"}.items()
    thread_id = client.start_thread({"cwd": str(shell.folder)})["threadId"]
    client.start_turn({"threadId": thread_id, "input": GO})
    done = finish(client)
    assert (done["status"], done["finalOutput"]) == ("completed", "It is written.")
    assert (shell.folder / "out.txt").read_text() == "apple"
    assert done["tokenUsage"]["total_tokens"] == 50
    assert done["tokenUsage"]["cache_usage"]["read_input_tokens"] is not None
    assert leave(client, child) == ""


def test_sigterm_leaves_a_turn_to_the_next_server(shell: Shell) -> None:
    options = ("--listen", "stdio", "--settings", "local_settings.json", "--backend", "local", "--store", "threads.db")
    client, child = serve(shell, *options, "--model", "slow")
    thread_id = client.start_thread({})["threadId"]
    client.start_turn({"threadId": thread_id, "input": GO})
    while (message := client.next_message(timeout=30)) is not None and "delta" not in message["method"]:
        pass
    child.send_signal(signal.SIGTERM)
    assert "Traceback" not in leave(client, child)
    assert {path.name for path in shell.folder.glob("threads*.db")} == {"threads.db", "threads-sessions.db"}
    client, child = serve(shell, *options, "--model", "slow")
    client.resume_thread({"threadId": thread_id})
    until(
        lambda: client.read_thread({"threadId": thread_id})["turns"][0]["status"] == "completed", "the turn has ended"
    )
    leave(client, child)


@pytest.mark.parametrize(
    "options",
    [
        (), ("--listen", "stdio"), ("--listen", "tcp", "--settings", "local_settings.json", "--backend", "local", "--model", "slow"),
        ("--listen", "stdio", "--settings", "no.json", "--backend", "local", "--model", "slow"),
        ("--listen", "stdio", "--settings", "local_settings.json", "--backend", "local", "--model", "nope"),
        ("--lisen", "stdio"), ("schema",), ("generate-ts", "--out", "/proc/nowhere"),
    ],
    ids=["nothing", "little", "tcp", "file", "model", "typing", "schema", "folder"],
)  # fmt: skip
def test_what_cannot_be_served_is_told_with_code_2(shell: Shell, options: tuple[str, ...]) -> None:
    done = shell("app-server", *options)
    assert (done.returncode, done.stdout) == (1 if "/proc/nowhere" in options else 2, "")
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_the_schema_is_written_where_it_is_wanted(shell: Shell) -> None:
    assert shell("app-server", "schema", "--out", "target/app-server-schema").returncode == 0
    assert shell("app-server", "generate-ts", "--out", "target/app-server-schema").returncode == 0
    folder = shell.folder / "target" / "app-server-schema"
    assert {path.name for path in (folder / "json").iterdir()} == {BUNDLE, *(f"{name}.json" for name in NAMES)}
    assert len(list(folder.glob("*.ts"))) == 18
    assert "AppItem" in json.loads((folder / "json" / BUNDLE).read_text())["$defs"]


def test_one_turn_is_shown_without_settings(shell: Shell) -> None:
    done = shell("debug", "app-server", "send-message", "Hello you.")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith('> {"jsonrpc": "2.0", "id": 1, "method": "initialize"')
    assert json.loads(lines[-1][2:])["params"]["finalOutput"] == "Hello you."
