"""A run is told something by another process, and its workers die with it unread, read, or half carried out."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fake_openai import FakeOpenAI
from tests.harness import World, crash_at
from tests.jobs import JOBS
from tests.shell import Shell
from vv_agent.checkpoint.store import open_store

POINTS = (
    "store.claim:after", "model:after", "store.save.progress:after", "store.save.commit:after", "store.save.end:before",
)  # fmt: skip
LEASE = 3.0


def test_a_word_that_no_worker_lived_to_carry_out_is_carried_out_once(shared_world: World, tmp_path: Path) -> None:
    world = shared_world
    for number, point in enumerate(POINTS):
        key = f"k{number}"
        world.clear()
        with crash_at(point, tmp_path) as env:
            handle = world.submit(key, JOBS["keyed"])
            for command, text in (("steer", "Mind the dog."), ("follow-up", "And the cat?")):
                words = [sys.executable, "-m", "vv_agent.cli", "runs", command, key, text]
                told = subprocess.run(words, env=world.env, capture_output=True, text=True, timeout=60, check=False)
                assert (told.returncode, told.stderr) == (0, ""), told
            assert world.worker(**env).wait() == -signal.SIGKILL
        second = world.worker(ready=True)
        result = handle.result(30)
        second.signal(signal.SIGTERM)
        texts = [m.content for m in result.messages if m.role in ("user", "assistant")]
        assert texts[1:] == ["Mind the dog.", "", "done", "And the cat?"], f"{point}: {texts}"
        assert result.error_code is not None, "the plan has no third step"
        charges = [effect.verdict for effect in world.effects("charge")]
        assert charges.count("applied") == 1, f"{point}: {charges}"
        snapshot = world.store.load(key)
        assert snapshot is not None
        assert snapshot.signals == ()
        assert second.wait() == 0


@pytest.mark.parametrize("model", ["never_answers", "silent_mid_stream"])
def test_a_cancel_ends_a_run_whose_server_never_answers(tmp_path: Path, model: str) -> None:
    """Within a heartbeat, a third of the lease, and three seconds."""
    shell = Shell(tmp_path, VV_AGENT_LEASE_SECONDS=str(LEASE))
    with FakeOpenAI() as server:
        shell.write_settings(server.url)
        with shell.start("worker"):
            words = ("--prompt", "x", "--backend", "local", "--model", model, "--checkpoint-key", "k")
            assert shell(*words, "--distributed", "--detach").returncode == 0
            server.wait_for_requests(1, 20)
            began = time.monotonic()
            assert shell("runs", "cancel", "k", "--reason", "enough").returncode == 0
            posted = time.monotonic()
            store = open_store(shell.url)
            shell.until(lambda: store.look("k").head.status == "failed", "it ended")  # type: ignore[union-attr]
            ended = time.monotonic()
            store.close()
        shown = shell("runs", "show", "k")
    print(f"\n{model}: ended {ended - began:.2f} s after the command began, {ended - posted:.2f} s after it returned")
    assert "enough" in shown.stdout
    assert ended - posted < LEASE / 3 + 3
