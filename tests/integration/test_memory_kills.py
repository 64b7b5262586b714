"""A process is killed around the model call that summarises; whoever makes the call again goes on with all of it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.harness import World, answer_of, crash_at
from vv_agent.checkpoint.identity import model_operation_id
from vv_agent.runtime.transcript import Transcript

pytestmark = pytest.mark.slow
SUMMARY_CALL = model_operation_id(4, "memory_summary:0")
POINTS = (
    "store.claim:after", "model:before:4", "model:after:4", "store.save.progress:before:4",
    "store.save.progress:after:4", "model:before:5", "model:after:5", "store.save.end:before", "store.save.end:after",
)  # fmt: skip
"""The fourth model call is the one that summarises, the fourth save between commits that of what it came to."""


@pytest.mark.parametrize("point", POINTS)
def test_a_run_killed_around_its_summary_ends_with_all_it_had(world: World, tmp_path: Path, point: str) -> None:
    with crash_at(point, tmp_path) as env:
        assert world.start("tests.memory_job:inline", "k", str(world.workspace), **env).wait() == -signal.SIGKILL
    again = world.start("tests.memory_job:inline", "k", str(world.workspace))
    assert again.wait() == 0, again.said()
    told = answer_of(again)
    assert told["output"] == "done"
    assert told["said"] == ["call_1_1", "call_2_1", "call_3_1"]
    held = Transcript()
    for entry in world.store.load("k").log:  # type: ignore[union-attr]
        held.extend(entry.seq, entry.body)
    assert list(held.compactions) == [4]
    paid_twice = point in ("model:before:4", "model:after:4", "store.save.progress:before:4")
    assert (SUMMARY_CALL in told["risks"]) is paid_twice
