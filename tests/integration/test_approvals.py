"""A call waits for a yes while every worker is dead; the yes comes from another process; a worker dies in the call."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness import World, crash_at, until
from tests.jobs import GUARDED
from vv_agent.checkpoint.record import State


def cli(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vv_agent.cli", *words]
    return subprocess.run(command, env=world.env, capture_output=True, text=True, timeout=60, check=False)


def parked(world: World) -> Any:
    head = world.head("k")
    return head is not None and head.state is State.PARKED and head


@pytest.mark.parametrize("answer", ["--allow", "--deny"])
def test_a_decision_from_another_process_reaches_a_run_whose_workers_died(
    shared_world: World, tmp_path: Path, answer: str
) -> None:
    world = shared_world
    first = world.worker(ready=True)
    handle = world.submit("k", GUARDED)
    head = until(lambda: parked(world), "it waits for a yes")
    assert (head.reason, head.owner) == ("approval", None)
    first.signal(signal.SIGKILL)
    first.wait()
    with pytest.raises(ProcessLookupError):
        os.kill(first.pid, 0)

    shown = cli(world, "runs", "show", "k", "--json")
    (asked,) = json.loads(shown.stdout)["approvals"]
    assert asked["arguments"] == {"n": 1}
    words = [answer] if answer == "--allow" else [answer, "not today"]
    decided = cli(world, "runs", "approve", "k", asked["interruption_id"], *words)
    assert (decided.returncode, decided.stderr) == (0, "")
    again = cli(world, "runs", "approve", "k", asked["interruption_id"], "--allow-session")
    assert "already_decided" in again.stderr or "unknown_approval_request" in again.stderr

    if answer == "--allow":
        with crash_at("tool:after", tmp_path) as env:
            assert world.worker(**env).wait() == -signal.SIGKILL
    last = world.worker(ready=True)
    result = handle.result(30)
    last.signal(signal.SIGTERM)
    assert (result.status, result.final_output) == ("completed", "done")
    paid = world.effects("pay")
    assert [effect.verdict for effect in paid].count("applied") == (1 if answer == "--allow" else 0)
    assert len({effect.key for effect in paid}) <= 1
    assert [event.type for event in result.events].count("approval_resolved") == 1
    assert last.wait() == 0
