"""A worker dies on the way from a decided end to the finished run: the session gets the messages once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.harness import World, crash_at
from tests.jobs import JOBS
from vv_agent.sessions import SqliteSession

POINTS = [
    f"{boundary}:{side}" for boundary in ("store.save.progress", "session", "store.save.end")
    for side in ("before", "after")
]  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_a_run_killed_at_its_end_leaves_its_messages_once(shared_world: World, tmp_path: Path, point: str) -> None:
    world, session = shared_world, SqliteSession(tmp_path / "sessions.db", "t")
    nth = ":2" if point.startswith("store.save.progress") else ""  # the first is the receipt of the model
    with crash_at(point + nth, tmp_path) as env:
        first = world.worker(**env)
        handle = world.submit("k", JOBS["keyed"], session=session)
        assert first.wait() == -signal.SIGKILL
    second = world.worker(ready=True)
    result = handle.result(30)
    second.signal(signal.SIGTERM)
    assert (result.status, result.final_output) == ("completed", "done")
    assert [item.role for item in session.get_items()] == ["user", "assistant", "tool", "assistant"]
    asked = [effect.cycle for effect in world.effects("model_begins")].count(2)
    assert asked == (2 if point == "store.save.progress:before" else 1), "a saved end is not decided again"
    assert [event.type for event in result.events][-2:] == ["session_persisted", "run_completed"]
    assert second.wait() == 0
