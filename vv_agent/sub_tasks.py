"""What a host sees of the work that a run gives to other agents: read from the store, so from any process."""

from __future__ import annotations

import time
from typing import Any

from vv_agent.checkpoint.record import Filter, Head
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.errors import CheckpointError
from vv_agent.runtime.body import Body
from vv_agent.runtime.children import RUNNING
from vv_agent.runtime.sub_runs import SubRun

MISSING = "missing"
_LOOK = 0.5
"""Seconds between looks at work that is waited for, should the store not say that it changed."""


class BackgroundAgentTask:
    """A piece of work by its task id. It holds nothing: each question is a look at the store."""

    def __init__(self, store: CheckpointStore, root_key: str, task_id: str, agent_name: str) -> None:
        self.task_id = task_id
        self.agent_name = agent_name
        self._store = store
        self._root_key = root_key

    @property
    def status(self) -> str:
        """`running`, how it ended, `wait_user`, or `missing` once its record was deleted."""
        return str(self.snapshot()["status"])

    def poll(self) -> dict[str, Any] | None:
        """What became of it (the outcome of spec/26); None while it works. Never blocks."""
        found = self._read()
        if found is None:
            return self.snapshot()
        return found.outcome() if found.over else None

    def snapshot(self) -> dict[str, Any]:
        """Where it stands, with the outcome once there is one. Never blocks."""
        found = self._read()
        known = {"task_id": self.task_id, "session_id": self.task_id, "agent_name": self.agent_name}
        if found is None:
            return {**known, "status": MISSING}
        cycle = found.body.index(found.head.cycle)
        row = {**known, "status": RUNNING, "task_description": found.task, "current_cycle_index": cycle}
        return {**row, **found.outcome()} if found.over else row

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """The outcome, once it is over or waits for somebody. `timeout` in seconds; `TimeoutError` when it passes: the
        work goes on."""
        end, version = None if timeout is None else time.monotonic() + timeout, 0
        while (outcome := self.poll()) is None:
            left = _LOOK if end is None else end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"task {self.task_id} is not over after {timeout:g} s")
            version = self._store.wait(version, min(left, _LOOK))
        return outcome

    def _read(self) -> SubRun | None:
        """Its newest record: work that was told more after its end goes on in another one."""
        found = [head for head in _below(self._store, self._root_key) if _task_of(head) == self.task_id]
        newest = max(found, key=lambda head: (head.created_at, head.key), default=None)
        run = SubRun(self._store, newest.key) if newest is not None else None
        return run if run is not None and run.exists else None


class SubTaskManager:
    """Give one as `RunConfig(sub_task_manager=...)`, and ask it for the work of that run."""

    def __init__(self) -> None:
        self._bound: tuple[CheckpointStore, str] | None = None

    def bind(self, store: CheckpointStore, key: str) -> None:
        """Look at the run of this key from now on; a Runner that starts it does that."""
        self._bound = store, key

    def tasks(self) -> list[BackgroundAgentTask]:
        """All work of the run and of those below it, oldest first."""
        if self._bound is None:
            return []
        store, key = self._bound
        found: dict[str, BackgroundAgentTask] = {}
        for head in sorted(_below(store, key), key=lambda head: head.created_at):
            name, agent = _task_of(head), Body.unpack(head.body, head.key).agent
            found.setdefault(name, BackgroundAgentTask(store, key, name, agent))
        return list(found.values())

    def task(self, task_id: str) -> BackgroundAgentTask:
        """The work of that id; `sub_task_not_found`."""
        for task in self.tasks():
            if task.task_id == task_id:
                return task
        raise CheckpointError(
            "sub_task_not_found", f"Sub-task {task_id} not found; give the id that the call which began it told"
        )


def _below(store: CheckpointStore, root_key: str) -> list[Head]:
    return [head for head in store.find(Filter(root_key=root_key, limit=10_000)) if head.parent_key is not None]


def _task_of(head: Head) -> str:
    return str((Body.unpack(head.body, head.key).parent or {}).get("task_id"))
