"""cli_contract.json: what the direct task reads, and how its process ends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.fixtures import load
from tests.fake_openai import FakeOpenAI
from tests.shell import Done, Shell
from vv_agent.cli.arguments import parse
from vv_agent.cli.task import model_settings, task_metadata
from vv_agent.llm.reference import ResolvedModelConfig
from vv_agent.llm.settings_file import DEFAULT_NAMES

FIXTURE = load("cli_contract.json")
OUTCOMES = FIXTURE["process_outcomes"]
KEYS = ["status", "final_answer", "wait_reason", "error", "cycles", "todo_list", "resolved"]


def test_the_prompt_is_the_words_up_to_the_next_option() -> None:
    assert parse(FIXTURE["prompt"]["argv"]).user_prompt == FIXTURE["prompt"]["value"]


def test_arguments_become_the_task() -> None:
    case = FIXTURE["argument_projection"]
    task = parse(case["argv"])
    got = {
        "user_prompt": task.user_prompt, "max_cycles": task.max_cycles, "agent_type": task.agent_type,
        "model_settings": model_settings(task).to_wire(),
    }  # fmt: skip
    assert got == case["task"]


def test_what_the_model_can_do_becomes_metadata_of_the_task() -> None:
    case = FIXTURE["resolved_model_projection"]
    resolved = ResolvedModelConfig("b", "m", "m", "m", **case["resolved"])
    metadata = task_metadata(parse(["--prompt", "x"]), resolved)
    assert {name: metadata[name] for name in case["task"]["metadata"]} == case["task"]["metadata"]
    assert resolved.native_multimodal == case["task"]["native_multimodal"]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with FakeOpenAI() as server:
        shell = Shell(tmp_path)
        shell.write_settings(server.url)
        yield shell


def test_the_settings_file_is_the_option_then_the_variable_then_the_default(tmp_path: Path) -> None:
    rule = FIXTURE["settings_file_resolution"]
    assert rule["precedence"] == ["--settings-file", "VV_AGENT_LOCAL_SETTINGS", "language_default"]
    assert DEFAULT_NAMES[0] == rule["language_defaults"]["python"]
    shell = Shell(tmp_path)
    named = shell("--prompt", "x", "--settings-file", "a.json", VV_AGENT_LOCAL_SETTINGS="b.json")
    assert "a.json does not exist" in named.stderr
    assert "b.json does not exist" in shell("--prompt", "x", VV_AGENT_LOCAL_SETTINGS="b.json").stderr
    blank = shell("--prompt", "x", VV_AGENT_LOCAL_SETTINGS="  ").stderr
    assert f"looked for {DEFAULT_NAMES[0]}" in blank


def outcome(name: str, done: Done) -> None:
    """The exit code, what stdout is and what stderr is, as the fixture says."""
    expected = OUTCOMES[name]
    assert done.returncode == expected["exit_code"], done
    match expected["stdout"]:
        case "help_text":
            assert "--prompt WORDS" in done.stdout
        case "result_json":
            assert list(json.loads(done.stdout)) == KEYS
        case "empty":
            assert done.stdout == ""
    match expected["stderr"]:
        case "empty":
            assert done.stderr == ""
        case "runtime_log_lines":
            lines = done.stderr.splitlines()
            assert lines
            for line in lines:
                found = re.fullmatch(r"\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\] \[[a-z_]+\] (\{.*\})", line)
                assert found, line
                json.loads(found[1])
        case _:
            assert done.stderr.strip()
            assert "Traceback" not in done.stderr


def ask(shell: Shell, model: str, *more: str) -> Done:
    return shell("--prompt", "inspect", "this", "--backend", "local", "--model", model, *more)


def test_each_outcome_of_a_process(shell: Shell) -> None:
    outcome("help", shell("--help"))
    outcome("help", shell("--prompt", "x", "--help"))
    done = ask(shell, "stream")
    outcome("completed_result", done)
    result = done.json()
    assert (result["status"], result["final_answer"], result["cycles"]) == ("completed", "Hello, wörld. 你好", 1)
    assert result["resolved"] == {
        "backend": "local", "selected_model": "stream", "model_id": "stream", "endpoint": "fake"
    }  # fmt: skip
    outcome("verbose_result", ask(shell, "stream", "--verbose"))
    failed = ask(shell, "unauthorized")
    outcome("failed_result", failed)
    assert failed.json()["status"] == "failed"
    outcome("usage_error", shell("--backend", "local"))
    outcome("usage_error", shell("--prompt", "x", "--nonsense"))
    outcome("usage_error", shell("--prompt", "x", "--max-tokens", "0"))
    outcome("configuration_or_runtime_error", ask(shell, "no such model"))
    outcome("configuration_or_runtime_error", ask(shell, "stream", "--settings-file", "missing.json"))
    (shell.folder / "broken.json").write_text("{")
    outcome("configuration_or_runtime_error", ask(shell, "stream", "--settings-file", "broken.json"))


def test_a_cancelled_run_is_a_failed_result_with_the_reason(shell: Shell) -> None:
    with shell.start(
        "--prompt", "x", "--backend", "local", "--model", "never_answers", "--checkpoint-key", "k"
    ) as task:
        shell.until(lambda: "claimed" in shell("runs", "list", "--json").stdout, "the task begins")
        assert shell("runs", "cancel", "k", "--reason", "enough").returncode == 0
        done = task.finish()
    assert OUTCOMES["cancelled_result"]["representation"] == "failed result with cancellation error"
    assert done.returncode == OUTCOMES["cancelled_result"]["exit_code"]
    assert done.stderr == ""
    assert (done.json()["status"], done.json()["error"]) == ("failed", "enough")
