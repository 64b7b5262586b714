"""The demo ends right: with the scripted model here and everywhere, with the real one where it is installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo import job
from examples.demo.model.serve import weights
from vv_agent import Message

PROJECT = Path(__file__).resolve().parents[2]


def demo(runs: int, model: str, timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.demo.run", str(runs)],
        cwd=PROJECT, env={**os.environ, "VV_DEMO": model}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def scripted() -> subprocess.CompletedProcess[str]:
    return demo(1, "scripted", 120)


def test_the_scripted_demo_kills_a_worker_and_ends_right(scripted: subprocess.CompletedProcess[str]) -> None:
    done = scripted
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 of 7 checks ok" in done.stdout
    assert "1 of 1 runs ended right" in done.stdout
    assert "scripted model, not a real one" in done.stdout
    assert done.stderr == ""


def test_the_timeline_shows_two_workers_a_kill_and_a_replay(scripted: subprocess.CompletedProcess[str]) -> None:
    out = scripted.stdout
    killed, replayed = (re.search(rf"worker (\d+) .*{what}", out) for what in ("KILLED", "replays the saved model"))
    assert killed
    assert replayed
    assert killed[1] != replayed[1]
    assert out.index("KILLED") < out.index("takes over, attempt 2") < out.index("replays the saved model")


def test_an_unknown_kind_of_model_is_refused() -> None:
    done = demo(1, "other", 60)
    assert done.returncode == 1
    assert "use scripted or model" in done.stderr


def test_the_third_sentence_quotes_what_was_read() -> None:
    read = [Message("tool", json.dumps({"path": path, "content": text})) for path, text in job.FILES.items()]
    (message,) = job.next_sentence(3, read, {})
    assert message.content == "Write the text 'grape and south' to the file c.txt"


@pytest.mark.slow
@pytest.mark.skipif(weights() is None, reason="the small model's packages are not installed (make demo installs them)")
def test_the_small_model_does_the_job_ten_times_in_a_row() -> None:
    done = demo(10, "model", 600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 of 10 runs ended right" in done.stdout
