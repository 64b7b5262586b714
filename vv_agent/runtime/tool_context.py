"""What a tool sees of the run that calls it, and what the run takes over of what the tool changed."""

from __future__ import annotations

from typing import Any

from vv_agent._json import plain
from vv_agent.cancellation import CancellationToken
from vv_agent.errors import CheckpointError, ToolError
from vv_agent.messages import ToolCall
from vv_agent.runtime import control
from vv_agent.runtime.children import CallTasks
from vv_agent.runtime.run import Run
from vv_agent.tools.arguments import parse_arguments
from vv_agent.tools.base import ToolContext


class CallState:
    """What one call may change of the run: copies, so that calls side by side do not meet in them and an abandoned one
    changes nothing any more. `keep` takes the changes over, with the call's result."""

    def __init__(self, run: Run) -> None:
        self._state, self._baselines = run.shared_state, dict(run.transcript.baselines)
        self.shared_state: dict[str, Any] = copied(self._state)
        self.file_baselines = dict(self._baselines)
        self.tasks = CallTasks(run)

    def keep(self, run: Run) -> list[str]:
        """Merge the changes into what the run has now; says what has no JSON form and was left as it was."""
        mine, faults = {}, []
        for name, value in tuple(self.shared_state.items()):
            if name in self._state and same(self._state[name], value):
                mine[name] = self._state[name]
                continue
            try:
                mine |= plain({name: value}, code="tool_state_invalid")
            except (CheckpointError, RuntimeError) as error:  # RuntimeError: a thread of the tool still changes it
                faults.append(getattr(error, "message", str(error)))
                if name in self._state:
                    mine[name] = self._state[name]
        run.shared_state = control.kept(run.shared_state, merged(self._state, mine, run.shared_state))
        seen = {path: sha for path, sha in tuple(self.file_baselines.items()) if self._baselines.get(path) != sha}
        if seen:
            run.log(["w", seen])
        return faults


def merged(before: Any, mine: Any, now: Any) -> Any:
    """`now` with what was changed from `before` to `mine`: objects member by member, lists by what was added to their
    end; where both sides changed something else, `mine` wins. None of the three is changed."""
    if same(before, mine):
        return now
    if isinstance(before, dict) and isinstance(mine, dict) and isinstance(now, dict):
        kept = {name: value for name, value in now.items() if name in mine or name not in before}
        for name, value in mine.items():
            if name not in before:
                kept[name] = merged(type(value)(), value, now[name]) if _alike(value, now.get(name)) else value
            elif not same(before[name], value):
                kept[name] = merged(before[name], value, now[name]) if name in now else value
        return kept
    if isinstance(before, list) and isinstance(mine, list) and isinstance(now, list):
        length = len(before)
        if same(before, mine[:length]) and same(before, now[:length]):
            return now + mine[length:]
    return mine


def _alike(value: Any, other: Any) -> bool:
    """Two containers of one kind that were made side by side."""
    return isinstance(value, dict | list) and type(value) is type(other)


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are written alike (in Python `1 == True == 1.0`)."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def copied(value: Any) -> Any:
    """A deep copy of a JSON value."""
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def tool_context(
    run: Run, call: ToolCall, state: CallState, *, attempt: int, key: str, token: CancellationToken | None = None
) -> ToolContext:
    """The context of one call."""
    return ToolContext(
        run_id=run.body.run_id,
        run_key=run.key,
        agent_name=run.body.agent,
        cycle_index=run.index,
        tool_call_id=call.id,
        tool_name=call.name,
        raw_arguments=call.arguments,
        idempotency_key=key,
        attempt=attempt,
        workspace=run.program.workspace,
        shared_state=state.shared_state,
        file_baselines=state.file_baselines,
        sub_tasks=state.tasks,
        metadata={**copied(run.program.definition.run_metadata), **identity(run)},
        context=run.program.context,
        cancellation=token or CancellationToken(),
        check_claim=run.hold.check,
    )


def identity(run: Run) -> dict[str, Any]:
    """What the metadata of a run below another one says of itself; nothing else may say that (spec/26)."""
    parent = run.body.parent
    if parent is None:
        return {}
    task_id, run_id, agent = parent["task_id"], run.body.run_id, run.body.agent
    lineage = {"parent_run_id": parent["run_id"], "parent_tool_call_id": parent["call_id"]}
    own = {"run_id": run_id, "session_id": task_id, "trace_id": run.body.trace_id}
    folder = run.program.workspace.folder if run.program.workspace is not None else None
    return {
        "is_sub_task": True, "parent_task_id": parent["above"], "sub_agent_name": agent,
        "session_memory_enabled": False, "workspace": folder, "task_id": task_id, "browser_scope_key": task_id,
        **own, **lineage, "_vv_agent_agent_name": agent,
        **{f"_vv_agent_{name}": value for name, value in {**own, **lineage}.items()},
    }  # fmt: skip


def parsed(call: ToolCall) -> dict[str, Any]:
    """The arguments of a call, {} where the text is none."""
    try:
        return parse_arguments(call.arguments)
    except ToolError:
        return {}
