"""A worker dies around the saves after which it feeds the host's event store; the next one feeds the rest, once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.harness import World, crash_at
from tests.jobs import JOBS
from vv_agent import JsonlRunEventStore


@pytest.mark.slow
@pytest.mark.parametrize("point", ["store.save.commit:after", "store.save.progress:after", "store.save.end:before"])
def test_a_killed_worker_leaves_no_hole_and_no_repeat(world: World, tmp_path: Path, point: str) -> None:
    kept = JsonlRunEventStore(tmp_path / "events.jsonl")
    handle = world.submit("k", JOBS["keyed"], event_store=kept)
    with crash_at(point, tmp_path) as env:
        assert world.worker(**env).wait() == -signal.SIGKILL
    world.worker(ready=True)
    result = handle.result(30)
    assert (result.status, result.final_output) == ("completed", "done")
    followed = world.runner.attach("k")
    followed.result(30)
    live = {"assistant_delta", "model_tool_call_started", "model_tool_call_progress"}
    told = [event.to_wire() for event in followed.events() if event.type not in live]
    assert [event.to_wire() for event in kept.replay(result.run_id)] == told
    assert len(kept.path.read_text().splitlines()) == len(told)
