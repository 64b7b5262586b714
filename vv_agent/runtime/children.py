"""What a run knows of the runs below it: each is begun by a call and is a record of its own, created in the save that
notes it here.

A call that waits for such runs has no receipt; the run parks once there is nothing else to do. The end of a run below
is a signal. Who begins, ends or waits is in the blob `children`; what became of the work is read from its own record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vv_agent.checkpoint.record import NewRun, Signal
from vv_agent.results import AgentStatus, ToolExecutionResult
from vv_agent.runtime.program import AGENT_TOOL, SUB_AGENT
from vv_agent.tools.base import SubTaskQuery, SubTaskRequest, SubTaskSpec, ToolContext
from vv_agent.workspace.portable import compiled

if TYPE_CHECKING:
    from vv_agent.runtime.run import Run

RUNNING = "running"


class Waiting(Exception):
    """A call waits for runs below, and there is nothing else to do. Leaves no cycle."""


@dataclass
class Children:
    """The runs below, by task id: `{key, agent, slot, node, status}`; and what calls of the open cycle wait for, by
    position."""

    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    waits: dict[int, dict[str, Any]] = field(default_factory=dict)
    new: list[NewRun] = field(default_factory=list)
    """To be created with the next save."""
    posts: list[tuple[str, Signal]] = field(default_factory=list)
    """To be sent with the next save."""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Children:
        tasks = {name: dict(task) for name, task in stored.get("tasks", {}).items()}
        return cls(tasks, {int(position): dict(wait) for position, wait in stored.get("waits", {}).items()})

    def stored(self) -> dict[str, Any]:
        if not self.tasks and not self.waits:
            return {}
        kept = {"tasks": self.tasks, "waits": {str(position): wait for position, wait in self.waits.items()}}
        return {name: value for name, value in kept.items() if value}

    @property
    def unfinished(self) -> list[dict[str, Any]]:
        """Those that work, and those that wait for somebody: a decision may still come."""
        return [task for task in self.tasks.values() if task["status"] in (RUNNING, AgentStatus.WAIT_USER)]

    def due_in(self, now: int) -> int | None:
        """Milliseconds until the first wait is over whatever comes."""
        return min((max(0, wait["until"] - now) for wait in self.waits.values() if wait.get("until")), default=None)

    def drop_new(self) -> dict[str, dict[str, Any]]:
        """Nothing that was not saved yet is begun; gives what was to be, by task id."""
        keys = {run.key for run in self.new}
        dropped = {name: task for name, task in self.tasks.items() if task["key"] in keys}
        self.tasks = {name: task for name, task in self.tasks.items() if name not in dropped}
        self.new = []
        return dropped


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call asked of the runs below; carried out once its handler is done."""

    slots: Mapping[str, str]
    request: SubTaskRequest | None = None
    query: SubTaskQuery | None = None
    tool: bool = False
    """The work is for the agent behind the called tool, and the result is its answer."""


class CallTasks:
    """What the handler of one call sees of the runs below: it says what it wants, the cycle does it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.asked: Asked | None = None

    @property
    def agents(self) -> Collection[str]:
        return self._run.program.slots(SUB_AGENT)

    def create(self, context: ToolContext, request: SubTaskRequest) -> ToolExecutionResult:
        if request.exclude_files_pattern is not None:
            compiled(request.exclude_files_pattern)
        return self._ask(context, Asked(self._run.program.slots(SUB_AGENT), request))

    def status(self, context: ToolContext, query: SubTaskQuery) -> ToolExecutionResult:
        return self._ask(context, Asked({}, query=query))

    def delegate(self, context: ToolContext, task: SubTaskSpec, *, summary: bool, wait: bool) -> ToolExecutionResult:
        request = SubTaskRequest(
            agent_id=context.tool_name, tasks=(task,), batch=False, include_main_summary=summary,
            exclude_files_pattern=None, wait=wait,
        )  # fmt: skip
        return self._ask(context, Asked(self._run.program.slots(AGENT_TOOL), request, tool=True))

    def _ask(self, context: ToolContext, asked: Asked) -> ToolExecutionResult:
        self.asked = asked
        return ToolExecutionResult(tool_call_id=context.tool_call_id, content="")


def lineage(parent: Mapping[str, Any]) -> dict[str, Any]:
    """What the events of a run below another one say of where it comes from; `parent` as in its `Body`."""
    name = parent["task_id"]
    return {
        "parent_run_id": parent["run_id"], "session_id": name, "child_session_id": name, "task_id": name,
        "parent_tool_call_id": parent["call_id"],
    }  # fmt: skip


def show_begin(run: Run) -> None:
    """The events with which a further segment of a run begins."""
    parent, segment = run.body.parent, run.body.segment
    if parent is None:
        run.emit("run_started", refs={"input": ("input", segment)}, input=run.transcript.inputs[segment])
    else:
        metadata = {"model": run.program.definition.model.model_id, "parent_task_id": parent["above"]}
        run.emit("sub_run_started", **lineage(parent), status=RUNNING, metadata=metadata)
    run.emit("agent_started")
