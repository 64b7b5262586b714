"""`vv-agent resume` and `vv-agent runs ...`, each as a process, with the texts a person reads."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fake_openai import FakeOpenAI
from tests.shell import ROOT, Done, Running, Shell
from vv_agent.checkpoint.record import Claimed, NewRun
from vv_agent.checkpoint.sql import SqlStore
from vv_agent.checkpoint.store import open_store
from vv_agent.checkpoint.transitions import MAX_RECOVERIES
from vv_agent.testing import FakeClock


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path, VV_AGENT_IMPORTS="tests.cli_jobs", VV_AGENT_LEASE_SECONDS="3")


def job(shell: Shell, *words: str, **environment: str) -> int:
    """Start a run of `tests.cli_jobs`; the exit code."""
    command = [sys.executable, "-m", "tests.cli_jobs", *words]
    env = {**shell.env, **environment}
    return subprocess.run(command, cwd=shell.folder, env=env, timeout=60, check=False).returncode


def says(done: Done, code: int, *texts: str) -> None:
    """An error is on stderr alone, names the thing, what was wrong and what to do, and shows no traceback."""
    assert (done.returncode, done.stdout) == (code, ""), done
    assert "Traceback" not in done.stderr
    for text in texts:
        assert text in done.stderr, done.stderr


# A run that waits for an answer.


def test_a_run_that_waits_for_an_answer_is_shown_answered_and_finished(shell: Shell) -> None:
    assert job(shell, "asking", "ask") == 0
    listed = shell("runs", "list")
    assert listed.stdout.splitlines()[1].split()[:3] == ["ask", "wait_user", "input"]
    shown = shell("runs", "show", "ask")
    assert shown.returncode == 3
    assert "question  Which colour?" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert "it waits for an answer; give it:\n    vv-agent runs answer ask TEXT" in shown.stdout
    assert shell("resume", "ask").returncode == 3  # nobody answered
    answered = shell("runs", "answer", "ask", "Blue, please.")
    assert answered.returncode == 0
    assert answered.stdout == "ask: the answer is posted; continue with: vv-agent resume ask\n"
    other = shell("runs", "answer", "ask", "Red!")
    says(other, 1, "already_decided: run 'ask' has been told something already")
    waiting = shell("runs", "show", "ask", "--json").json()
    assert waiting["next"] == [
        {"why": "a decision, answer or cancel is posted; carry it out here", "command": "vv-agent resume ask"}
    ]
    done = shell("resume", "ask", "--json")
    assert done.returncode == 0
    assert done.json()["final_output"] == "Blue it is."
    whole = shell("runs", "show", "ask", "--full")
    assert "[user] Blue, please." in whole.stdout
    assert "[user]" not in shell("runs", "show", "ask").stdout
    assert [m["role"] for m in shell("runs", "show", "ask", "--full", "--json").json()["messages"]][:2] == [
        "system",
        "user",
    ]


def test_a_run_that_waits_keeps_what_it_is_told(shell: Shell) -> None:
    assert job(shell, "asking", "ask") == 0
    told = shell("runs", "steer", "ask", "No pastels.")
    assert (told.returncode, told.stdout.partition(";")[0]) == (
        0, "ask: the steer is posted, and kept until the run goes on",
    )  # fmt: skip
    assert "it waits for an answer; give it:" in shell("runs", "show", "ask").stdout
    assert shell("runs", "answer", "ask", "Blue, please.").returncode == 0
    done = shell("resume", "ask", "--json")
    assert done.json()["final_output"] == "Blue it is."
    events = [json.loads(line) for line in shell("runs", "events", "ask", "--json").stdout.splitlines()]
    assert [e["details"] for e in events if e.get("code") == "run_steered"] == [{"messages": 1}]
    for command in ("steer", "follow-up"):
        says(shell("runs", command, "ask", "Too late."), 1, "run_finished")
        says(shell("runs", command, "ask", " "), 1, "message_empty: a run cannot be told ' '")


def test_workers_that_are_there_take_an_answer_at_once(shell: Shell) -> None:
    with shell.start("worker"):
        assert job(shell, "asking", "ask", "distributed") == 0
        watched = shell("runs", "watch", "ask")
        assert watched.returncode == 3
        assert "vv-agent runs answer ask TEXT" in watched.stdout
        answered = shell("runs", "answer", "ask", "Blue")
        assert answered.stdout in (
            "ask: the answer is posted; it goes on by itself. Watch it: vv-agent runs watch ask\n",
            "ask: the answer is posted\n",  # it is over already
        )
        done = shell("runs", "watch", "ask", "--json")
    assert done.returncode == 0
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["type"] == "run_started"
    assert events[-1]["final_output"] == "Blue it is."


# A run that waits for a decision about a call whose outcome was lost.


@pytest.fixture
def lost(shell: Shell) -> Shell:
    """The rocket was launched, or was it? Its process is dead."""
    assert job(shell, "rocket", "fly", VV_AGENT_CRASH="tool:after") == -signal.SIGKILL
    return shell


def test_a_lost_call_is_named_with_the_commands_that_decide_it(lost: Shell) -> None:
    resumed = lost("resume", "fly")
    assert resumed.returncode == 3
    assert 'the call launch {"pad": "A"}: it was started and no outcome was saved' in resumed.stdout
    for decision in ("--retry", "--done TEXT", "--failed TEXT", "--abort TEXT"):
        assert f"    vv-agent runs reconcile fly {operation(lost)} {decision}\n" in resumed.stdout
    assert lost("runs", "show", "fly").returncode == 3
    machine = lost("resume", "fly", "--json").json()
    assert machine["waits_for"]["operation_id"] == operation(lost)
    assert machine["next"][0]["command"].endswith("--retry")


def operation(shell: Shell) -> str:
    return str(shell("runs", "show", "fly", "--json").json()["observation"]["operation_id"])


@pytest.mark.parametrize(
    ("decision", "code", "text"),
    [
        (["--retry"], 0, "launched from A"),
        (["--done", "it flies"], 0, "it flies"),
        (["--failed", "it stands"], 0, "it stands"),
        (["--abort", "who knows"], 1, "operator_abort_with_unknown_outcome"),
    ],
    ids=["retry", "done", "failed", "abort"],
)
def test_each_decision_about_a_lost_call_is_carried_out(lost: Shell, decision: list[str], code: int, text: str) -> None:
    assert lost("resume", "fly").returncode == 3
    name = operation(lost)
    posted = lost("runs", "reconcile", "fly", name, *decision)
    assert posted.stdout == "fly: the decision is posted; continue with: vv-agent resume fly\n"
    done = lost("resume", "fly", "--json")
    assert done.returncode == code, done
    if code == 0:
        assert done.json()["final_output"] == "Done."
        store = open_store(lost.url)
        snapshot = store.load("fly")
        assert snapshot is not None
        assert any(text.encode() in entry.body for entry in snapshot.log)
        store.close()
    else:
        assert done.json()["error_code"] == text
        assert done.json()["error"] == f"given up, the outcome of {name} is unknown: who knows"
    says(lost("runs", "reconcile", "fly", name, "--retry"), 1, "run_not_waiting: run 'fly' is")
    events = [json.loads(line) for line in lost("runs", "events", "fly", "--json").stdout.splitlines()]
    assert [event["type"] for event in events].count("operation_ambiguous") == 1
    ends = [event["status"] for event in events if event["type"] == "tool_call_completed"]
    assert ends == {"--failed": ["error"], "--abort": []}.get(decision[0], ["success"])


def test_a_decision_that_cannot_be_is_refused_with_the_right_one(lost: Shell) -> None:
    says(lost("runs", "reconcile", "fly", "op"), 1, "usage_invalid: there is no decision; give exactly one of --retry")
    says(
        lost("runs", "reconcile", "fly", "op", "--retry", "--done", "x"), 1,
        "usage_invalid: --retry and --done contradict each other",
    )  # fmt: skip
    says(lost("runs", "reconcile", "fly", "op", "--retry"), 1, "run_not_waiting: run 'fly' is running")
    assert lost("resume", "fly").returncode == 3
    says(
        lost("runs", "reconcile", "fly", "op", "--retry"), 1,
        f"does not wait for a decision about 'op' but about '{operation(lost)}'; give that one:",
    )  # fmt: skip
    says(lost("runs", "answer", "fly", "x"), 1, "run 'fly' waits for: reconciliation; it does not wait for an answer")


# Other reasons to wait, and none.


def test_a_run_whose_attempts_are_used_up_says_what_to_do(shell: Shell) -> None:
    assert job(shell, "rocket", "fly", VV_AGENT_CRASH="model:before") == -signal.SIGKILL
    clock = FakeClock(int(time.time() * 1000))
    store = SqlStore(shell.url, clock=clock)
    store.expire(str(store.load("fly").head.owner))  # type: ignore[union-attr]
    for number in range(MAX_RECOVERIES + 2):
        clock.advance(600_000)  # longer than the run is left alone after an attempt
        if isinstance(store.claim("fly", 1, f"{number:032x}", owner="gone/1/1", lease=1), Claimed):
            store.expire("gone/1/1")
    store.close()
    shown = shell("runs", "show", "fly")
    assert shown.returncode == 3, shown
    assert "waits for attempts" in shown.stdout
    assert "five attempts in a row ended without any save (see the workers' logs for why); try again" in shown.stdout
    assert "    vv-agent resume fly\n" in shown.stdout
    assert shell("resume", "fly").returncode == 0


def test_a_run_that_its_provider_told_to_wait_says_until_when(shell: Shell) -> None:
    with FakeOpenAI() as server:
        shell.write_settings(server.url)
        words = ("--prompt", "x", "--backend", "local", "--model", "rate_limit_long", "--checkpoint-key", "late")
        with shell.start(*words):
            shell.until(lambda: "retry_after" in shell("runs", "list").stdout, "the run waits")
            shown = shell("runs", "show", "late")
    assert shown.returncode == 0
    assert "the model's provider asked to wait; it goes on by itself at 20" in shown.stdout
    assert "no worker runs; wait for that time here:\n    vv-agent resume late" in shown.stdout


def test_a_run_that_workers_refuse_for_ten_minutes_is_labelled(shell: Shell) -> None:
    from vv_agent.checkpoint.sql import SqlStore

    assert job(shell, "rocket", "fly", "distributed", VV_AGENT_CRASH="dispatch:before") == -signal.SIGKILL
    earlier = SqlStore(shell.url, clock=lambda: int(time.time() * 1000) - 601_000)
    assert earlier.defer("fly", 1, "reference_not_allowed: tests.cli_jobs", 0)
    earlier.close()
    assert shell("runs", "list").stdout.splitlines()[1].endswith("run_incompatible")
    shown = shell("runs", "show", "fly")
    assert "label    run_incompatible\n" in shown.stdout
    assert "refused  reference_not_allowed: tests.cli_jobs (for 10m)" in shown.stdout
    assert "no worker can serve it (reference_not_allowed: tests.cli_jobs); correct that and start one" in shown.stdout


def test_a_run_that_nobody_works_on_says_so_and_can_be_cancelled(shell: Shell) -> None:
    assert job(shell, "rocket", "fly", "distributed", VV_AGENT_CRASH="dispatch:before") == -signal.SIGKILL
    shown = shell("runs", "show", "fly")
    assert shown.returncode == 0
    assert "no worker of its queue runs; start one:\n    vv-agent worker\n" in shown.stdout
    assert shell("runs", "cancel", "fly", "--reason", "no wind").stdout == "fly: cancelled\n"
    ended = shell("runs", "show", "fly")
    assert ended.returncode == 1
    assert "error    no wind" in ended.stdout
    says(shell("runs", "cancel", "fly"), 1, "run_finished: run 'fly' has ended")
    assert shell("resume", "fly").returncode == 1
    assert shell("runs", "cancel", "fly", "--json").returncode == 1


def test_a_waiting_run_can_be_cancelled(lost: Shell) -> None:
    assert lost("resume", "fly").returncode == 3
    cancelled = lost("runs", "cancel", "fly", "--json")
    assert cancelled.returncode == 0
    assert (cancelled.json()["done"], cancelled.json()["status"]) == ("cancelled", "failed")


def test_resume_goes_on_when_the_worker_that_seemed_there_is_dead(shell: Shell) -> None:
    with shell.start("worker") as worker:
        assert job(shell, "looking", "look", "distributed") == 0
        shell.until(lambda: shell("runs", "list", "--json").json()[0]["owner"], "the worker has the run")
        os.kill(worker.process.pid, signal.SIGKILL)
    done = shell("resume", "look")
    assert done.returncode == 0, done
    assert "answer   Nothing there." in done.stdout


def test_resume_without_the_code_of_the_run_says_what_is_lacking(shell: Shell) -> None:
    assert job(shell, "rocket", "fly", VV_AGENT_CRASH="model:before") == -signal.SIGKILL
    says(
        shell("resume", "fly", VV_AGENT_IMPORTS=""), 1,
        "run_incompatible: run 'fly' cannot go on here", "add 'tests.cli_jobs' to VV_AGENT_IMPORTS if you trust it",
    )  # fmt: skip
    assert shell("resume", "fly").returncode == 0


def test_a_run_that_another_process_has_is_not_taken_from_it(shell: Shell) -> None:
    command = [sys.executable, "-m", "tests.cli_jobs", "staring", "look"]
    with Running(command, shell.folder, shell.env) as running:
        shell.until(lambda: '"owner": "' in shell("runs", "list", "--json").stdout, "the run is under way")
        says(shell("resume", "look"), 1, "checkpoint_claim_active: run 'look' is being advanced by another process")
        shown = shell("runs", "show", "look")
        assert "a process works on it; watch it:\n    vv-agent runs watch look\n" in shown.stdout
        cancelled = shell("runs", "cancel", "look")
        assert cancelled.stdout == (
            "look: the cancel is posted; it goes on by itself. Watch it: vv-agent runs watch look\n"
        )
        assert shell("runs", "watch", "look").returncode == 1
        running.finish()


# Lists, events, errors.


def test_lists_and_events_are_for_people_and_for_scripts(shell: Shell) -> None:
    assert job(shell, "rocket", "fly") == 0
    assert job(shell, "asking", "ask") == 0
    heading, *rows = shell("runs", "list").stdout.splitlines()
    assert heading.split() == ["KEY", "STATUS", "WAITS", "FOR", "CYCLE", "QUEUE", "AGE", "LABEL"]
    assert [line.split()[0] for line in rows] == ["ask", "fly"]
    machine = shell("runs", "list", "--status", "completed", "--json").json()
    assert [(run["key"], run["state"], run["waits_for"]) for run in machine] == [("fly", "ended", None)]
    nothing = shell("runs", "list", "--queue", "other")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert nothing.stderr.startswith("no runs in sqlite:///")
    told = shell("runs", "events", "fly").stdout
    assert 'calls launch {"pad": "A"}' in told
    events = [json.loads(line) for line in shell("runs", "events", "fly", "--json").stdout.splitlines()]
    assert events[-1]["type"] == "run_completed"
    last = told.splitlines()[-1].split()[0]
    assert shell("runs", "events", "fly", "--after", last, "--json").stdout == ""
    again = shell("runs", "watch", "fly")
    assert again.returncode == 0
    assert again.stdout.endswith("completed: Done.\n")


@pytest.mark.parametrize(
    "words", [("resume",), ("runs", "show"), ("runs", "watch"), ("runs", "events"), ("runs", "cancel")], ids=" ".join
)
def test_a_key_or_store_that_is_not_there_is_named(shell: Shell, words: tuple[str, ...]) -> None:
    says(
        shell(*words, "nobody"),
        1,
        "store_unavailable: there is no store at",
        "start a run first, or set VV_AGENT_STORE",
    )
    assert not (shell.folder / ".vv-agent").exists()
    open_store(shell.url).close()
    says(
        shell(*words, "nobody"), 1, "checkpoint_not_found: there is no run 'nobody' in sqlite:///", "vv-agent runs list"
    )
    says(shell(*words, "a\nb"), 1, "checkpoint_key_invalid")
    says(shell(*words), 1, "Missing argument 'KEY'", f"Try 'vv-agent {' '.join(words)} -h' for help")


def test_other_mistakes_are_named(shell: Shell) -> None:
    says(shell(), 1, "usage_invalid: there is nothing to do; give --prompt")
    says(shell("runs", "fly"), 1, "No such command 'fly'")
    says(shell("runs", "list", "--limit", "0"), 1, "--limit")
    says(shell("runs", "list", "--colour"), 1, "No such option: --colour")
    open_store(shell.url).close()
    says(shell("runs", "list", "--status", "fine"), 1, "--status 'fine' is not known; use one of running, completed")
    wrong = shell("runs", "list", VV_AGENT_STORE="mysql://secret:word@host/x")
    says(wrong, 1, "names no store; use sqlite:///PATH")
    (shell.folder / "text.db").write_text("this is a letter, not a database, and longer than a hundred bytes" * 3)
    says(shell("runs", "list", VV_AGENT_STORE="sqlite:///text.db"), 1, "store_corrupt", "restore a backup")
    says(shell("runs", "list", VV_AGENT_LEASE_SECONDS="soon"), 1, "VV_AGENT_LEASE_SECONDS='soon' must be a number")
    says(shell("worker", "--processes", "0"), 1, "--processes")


@pytest.mark.alone
def test_help_costs_little_and_lists_everything(shell: Shell) -> None:
    program = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime)"
    )
    command = [sys.executable, "-c", program, sys.executable, "-m", "vv_agent.cli", "--help"]
    spent = [float(subprocess.check_output(command, text=True, env=shell.env, cwd=ROOT)) for _ in range(3)]
    assert min(spent) < 0.3
    said = shell("--help").stdout
    for word in ("worker", "resume", "doctor", "runs", "--prompt WORDS", "--detach"):
        assert word in said


@pytest.mark.alone
def test_fifty_thousand_runs_are_listed_at_once(shell: Shell) -> None:
    store = open_store(shell.url)
    for start in range(0, 50_000, 5_000):
        store.create([
            NewRun(key=f"k{n}", run_id=f"r{n}", definition="d", definition_body=b"", body=b"", queue="q")
            for n in range(start, start + 5_000)
        ])  # fmt: skip
    store.close()
    program = (
        "import sys, time; import vv_agent.checkpoint.sql; from vv_agent.cli.runs import list_runs; "
        "began = time.monotonic(); list_runs(status=None, queue=None, limit=20, as_json=False); "
        "sys.stderr.write(str(time.monotonic() - began))"
    )  # what the libraries take to load is the same for a store of ten runs
    command = [sys.executable, "-c", program]
    env = {**shell.env, "VV_AGENT_STORE": shell.url}
    runs = [subprocess.run(command, capture_output=True, text=True, env=env, check=True) for _ in range(3)]
    assert all(len(done.stdout.splitlines()) == 21 for done in runs)
    assert min(float(done.stderr) for done in runs) < 0.3
    assert shell("runs", "list", "--limit", "3").stdout.splitlines()[1].startswith("k49999 ")


def test_a_run_out_of_budget_is_given_more_and_goes_on(shell: Shell) -> None:
    assert job(shell, "thrifty", "spend") == 0
    shown = shell("runs", "show", "spend")
    assert shown.returncode == 1
    assert "used up (tool_calls: 0 of 0 calls)" in shown.stdout
    assert "vv-agent runs raise-budget spend --tool-calls N" in shown.stdout
    says(shell("runs", "raise-budget", "spend", "--tool-calls", str(2**53)), 1, "budget_limits_invalid")
    says(shell("runs", "raise-budget", "spend", "--calls", "look"), 1, "is not of the form TOOL=N")
    assert shell("resume", "spend").returncode == 1
    says(shell("runs", "raise-budget", "spend"), 1, "there is no limit to raise; give e.g. --total-tokens N")
    for none in (["--tool-calls", "0"], ["--calls", "nosuch=5"]):
        says(shell("runs", "raise-budget", "spend", *none), 1, "budget_limits_invalid: these limits of run 'spend'")
    raised = shell("runs", "raise-budget", "spend", "--tool-calls", "3")
    assert raised.stdout == "spend: the new limits are posted; continue with: vv-agent resume spend\n"
    done = shell("resume", "spend")
    assert done.returncode == 0, done
    assert "answer   Nothing there." in done.stdout
    says(shell("runs", "raise-budget", "spend", "--tool-calls", "9"), 1, "run_finished")


def test_a_run_that_waits_for_a_yes_is_shown_decided_and_resumed(shell: Shell) -> None:
    assert job(shell, "careful", "pay") == 0
    shell.until(lambda: shell("runs", "list", "--json").json()[0]["waits_for"] == "approval", "it is parked")
    waiting = shell("resume", "pay")
    assert waiting.returncode == 3, waiting
    shown = shell("runs", "show", "pay")
    assert shown.returncode == 3
    request = shell("runs", "show", "pay", "--json").json()["approvals"][0]["interruption_id"]
    assert (
        f'wants to call pay {{"amount": 5}}; let it:\n    vv-agent runs approve pay {request} --allow' in shown.stdout
    )
    says(shell("runs", "approve", "pay", request), 1, "give exactly one of --allow, --allow-session, --deny REASON")
    says(shell("runs", "approve", "pay", "approval_x", "--allow"), 1, "unknown approval request: approval_x")
    posted = shell("runs", "approve", "pay", request, "--allow")
    assert posted.stdout == "pay: the decision is posted; continue with: vv-agent resume pay\n"
    says(shell("runs", "approve", "pay", request, "--deny", "no"), 1, "already_decided")
    done = shell("resume", "pay")
    assert done.returncode == 0, done
    assert "answer   Paid." in done.stdout


def test_of_two_approvals_the_one_that_is_not_decided_is_still_asked_for(shell: Shell) -> None:
    assert job(shell, "generous", "pay two") == 0
    shell.until(lambda: shell("runs", "list", "--json").json()[0]["waits_for"] == "approval", "it is parked")
    first, second = [
        asked["interruption_id"] for asked in shell("runs", "show", "pay two", "--json").json()["approvals"]
    ]
    assert shell("runs", "approve", "pay two", first, "--allow").returncode == 0
    shown = shell("runs", "show", "pay two")
    assert f"let it:\n    vv-agent runs approve 'pay two' {second} --allow" in shown.stdout
    assert first not in shown.stdout.partition("next")[2]
    assert shell("resume", "pay two").returncode == 3
    assert f"vv-agent runs approve 'pay two' {second} --allow" in shell("runs", "show", "pay two").stdout
    assert shell("runs", "approve", "pay two", second, "--allow").returncode == 0
    assert shell("resume", "pay two").returncode == 0
    again = shell("runs", "approve", "pay two", first, "--allow")
    assert (again.returncode, again.stdout) == (0, "pay two: the decision was posted before\n")
    says(shell("runs", "approve", "pay two", first, "--deny", "no"), 1, "already_decided", "was allowed already")


def test_commands_for_a_key_that_looks_like_an_option_can_be_copied(shell: Shell) -> None:
    assert job(shell, "generous", "-x") == 0
    shell.until(lambda: shell("runs", "list", "--json").json()[0]["waits_for"] == "approval", "it is parked")
    for _ in range(2):
        step = next(
            step for step in shell("runs", "show", "--json", "--", "-x").json()["next"] if "--allow" in step["command"]
        )
        assert step["command"].startswith("vv-agent runs approve --allow -- -x approval_")
        done = shell(*shlex.split(step["command"])[1:])
        assert (done.returncode, done.stdout) == (
            0,
            "-x: the decision is posted; continue with: vv-agent resume -- -x\n",
        )
    assert shell("resume", "--", "-x").returncode == 0


def test_who_watches_a_tree_that_asks_reads_how_to_decide(shell: Shell) -> None:
    assert job(shell, "leading", "lead") == 0
    shell.until(lambda: shell("runs", "list", "--json").json()[0]["waits_for"] == "children", "it is parked")
    (asked,) = shell("runs", "show", "lead", "--json").json()["approvals"]
    request, child = asked["interruption_id"], asked["key"]
    with shell.terminal("runs", "watch", "lead") as watching:
        watching.expect(f"vv-agent runs approve lead {request} --deny REASON")
        assert '[careful]   waits for a yes to pay {"amount": 5}' in watching.text
        assert "\ncycle 1" in watching.text
        watching.interrupt()
        watching.finish()
    posted = shell("runs", "approve", child, request, "--allow")
    assert posted.stdout == f"{child}: the decision is posted; continue with: vv-agent resume lead\n"
    done = shell("resume", "lead")
    assert done.returncode == 0, done
    again = shell("runs", "watch", "lead").stdout
    assert "runs approve" not in again
    assert again.endswith("completed: All paid.\n")


def test_the_events_of_a_tree_are_listed_with_those_below(shell: Shell) -> None:
    assert job(shell, "leading", "lead") == 0
    shell.until(lambda: shell("runs", "list", "--json").json()[0]["waits_for"] == "children", "it is parked")
    (asked,) = shell("runs", "show", "lead", "--json").json()["approvals"]
    assert shell("runs", "approve", "lead", asked["interruption_id"], "--allow").returncode == 0
    assert shell("resume", "lead").returncode == 0
    told = [json.loads(line) for line in shell("runs", "events", "lead", "--all", "--json").stdout.splitlines()]
    assert [event["type"] for event in told if event["type"].startswith("sub_run")] == [
        "sub_run_started", "sub_run_completed",
    ]  # fmt: skip
    assert (told[-1]["type"], told[-1]["agent_name"]) == ("run_completed", "leading")
    assert {event["agent_name"] for event in told} == {"leading", "careful"}
    alone = shell("runs", "events", "lead", "--json").stdout
    assert "sub_run_completed" not in alone
    says(shell("runs", "events", "lead", "--all", "--after", "3"), 1, "--after and --all contradict each other")
