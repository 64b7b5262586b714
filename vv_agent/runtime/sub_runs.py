"""A run below another one: its record as it begins, and what can be read of it from outside."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from vv_agent.agent import trimmed
from vv_agent.checkpoint.record import Head, NewRun, State
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.history import sanitized
from vv_agent.messages import Message
from vv_agent.results import AgentResult, AgentStatus
from vv_agent.runtime import control
from vv_agent.runtime.body import Body
from vv_agent.runtime.output import agent_result
from vv_agent.runtime.transcript import Transcript, log_entry, message_item, pack, unpack
from vv_agent.tools.base import SubTaskSpec
from vv_agent.tools.builtin.notes import TODOS

if TYPE_CHECKING:
    from vv_agent.runtime.program import Program
    from vv_agent.runtime.run import Run

SUMMARY = "main_task_summary"
"""Key of the shared state: what a run says of its main task to those it gives work."""


def child_key(parent: str, cycle: int, position: int, index: int) -> str:
    """The key of a run below another one: the same in every attempt at the call that begins it (DESIGN 5.6)."""
    name = f"{parent}\0{cycle}\0{position}\0{index}"
    return f"c_{hashlib.sha256(name.encode()).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True)
class Work:
    """What a call gives an agent: `text` is the input of the run that does it. `before` and `state` are the messages
    and the shared state it goes on with."""

    slot: str
    agent: str
    task_id: str
    text: str
    exclude: str | None = None
    before: Sequence[Message] = ()
    state: Mapping[str, Any] | None = None


def prompt_of(task: SubTaskSpec, summary: str) -> str:
    """The input of a run that does a piece of work; `summary` is of the main task, blank for none."""
    parts = [task.description]
    if task.output_requirements:
        parts.append(f"<Output Requirements>\n{task.output_requirements}\n</Output Requirements>")
    if summary:
        parts.append(f"<Main Task Summary>\n{summary}\n</Main Task Summary>")
    return "\n\n".join(parts)


def summary_of(run: Run) -> str:
    """What a run says of its main task: its own words, or its input and its list of todos."""
    said = run.shared_state.get(SUMMARY)
    if isinstance(said, str) and said.strip():
        return said.strip()
    todos = [todo for todo in run.shared_state.get(TODOS) or () if isinstance(todo, dict)]
    lines = [f"- [{todo.get('status')}] {todo.get('title')}" for todo in todos]
    return "\n".join([f"Goal: {run.transcript.inputs.get(run.body.segment, '')}", *lines])


def new_child(run: Run, position: int, index: int, work: Work, denied: Mapping[str, Any]) -> NewRun:
    """The record of a run below this one. It may use what is left of the budget, and may do nothing that this one may
    not."""
    program, parent = run.program.linked(work.slot), parent_of(run, position, work.task_id)
    body = Body(
        run.body.trace_id, run.engine.new_id("run"), work.agent, checkpointed=run.body.checkpointed,
        live=run.body.live, session_id=work.task_id, parent=parent,
    )  # fmt: skip
    before = list(work.before) or _prompt(program)
    items = [message_item(0, message) for message in before]
    items.append(["i", 0, Message("user", work.text).to_wire()])
    state = program.definition.initial_shared_state if work.state is None else work.state
    if names := control.denied(run.shared_state):
        state = control.denying(state, names)
    blobs = {
        "state": state,
        "denied": denied,
        "budget": run.account.for_child() if run.account is not None else {},
        "work": {"exclude": work.exclude} if work.exclude else {},
    }
    return NewRun(
        key=child_key(run.key, run.cycle, position, index), run_id=body.run_id,
        definition=program.definition.digest, definition_body=program.definition.encode(), body=body.pack(),
        root_key=run.head.root_key, parent_key=run.key, queue=run.head.queue, log=(log_entry(items),),
        blobs={name: pack(dict(value)) for name, value in blobs.items() if value},
        linked={digest: one.definition.encode() for digest, one in program.closure.items() if one is not program},
    )  # fmt: skip


def parent_of(run: Run, position: int, task_id: str) -> dict[str, Any]:
    """What a run below keeps of the one that begins it (`Body.parent`)."""
    assert run.turn is not None
    call_id = run.turn.call(position).id
    return {"run_id": run.body.run_id, "call_id": call_id, "task_id": task_id, "above": run.task_id}


def _prompt(program: Program) -> list[Message]:
    prompt = program.definition.compiled_prompt
    return [Message("system", prompt)] if prompt else []


class SubRun:
    """A record below another one, read as it stands."""

    def __init__(self, store: CheckpointStore, key: str) -> None:
        self._snapshot = store.load(key)
        self._key = key

    @property
    def exists(self) -> bool:
        return self._snapshot is not None

    @property
    def head(self) -> Head:
        assert self._snapshot is not None
        return self._snapshot.head

    @property
    def over(self) -> bool:
        """It ended, or its segment did and it waits for somebody."""
        return self.head.state is State.ENDED or (self.head.state is State.PARKED and self.head.status != "running")

    @cached_property
    def body(self) -> Body:
        return Body.unpack(self.head.body, self._key)

    @cached_property
    def transcript(self) -> Transcript:
        assert self._snapshot is not None
        transcript = Transcript()
        for entry in self._snapshot.log:
            transcript.extend(entry.seq, entry.body)
        return transcript

    @cached_property
    def blobs(self) -> dict[str, dict[str, Any]]:
        assert self._snapshot is not None
        found = self._snapshot.blobs or {}
        return {name: unpack(body, f"{name} of run {self._key!r}") for name, body in found.items()}

    @property
    def task(self) -> str:
        """What it was told."""
        return self.transcript.inputs.get(self.body.segment, "")

    @cached_property
    def result(self) -> AgentResult:
        return agent_result(self.head, self.body, self.transcript, self.blobs)

    @property
    def state(self) -> dict[str, Any]:
        return dict(self.blobs.get("state") or {})

    def history(self) -> list[Message]:
        """Its messages, every call of a tool with its result."""
        return sanitized(self.transcript.messages)

    def outcome(self) -> dict[str, Any]:
        """What became of it, as the model that gave the work reads it (spec/26)."""
        result = self.result
        waits = result.status is AgentStatus.WAIT_USER
        found = failed_outcome(str((self.body.parent or {}).get("task_id")), self.body.agent, result.error)
        found |= {
            "status": result.status.value, "session_id": self.body.session_id, "final_answer": result.final_answer,
            "wait_reason": result.wait_reason if waits else None, "error": result.error, "cycles": len(result.cycles),
            "todo_list": self.state.get(TODOS) or [], "error_code": None,
        }  # fmt: skip
        if result.status is not AgentStatus.COMPLETED:
            code = "sub_task_wait_user" if waits else trimmed(result.error_code or "") or "sub_task_failed"
            found |= {"error_code": code, "partial_output": result.partial_output}
        found |= {"completion_reason": result.completion_reason, "completion_tool_name": result.completion_tool_name}
        return {name: value for name, value in found.items() if value is not None or name in _ALWAYS}


_ALWAYS = frozenset({
    "task_id", "agent_name", "status", "session_id", "final_answer", "wait_reason", "error", "cycles", "todo_list",
    "resolved",
})  # fmt: skip


def failed_outcome(task_id: str, agent: str, error: str | None, code: str = "sub_task_failed") -> dict[str, Any]:
    """What became of work that never began."""
    return {
        "task_id": task_id, "agent_name": agent, "status": "failed", "session_id": None, "final_answer": None,
        "wait_reason": None, "error": error, "error_code": code, "completion_reason": "failed", "cycles": 0,
        "todo_list": [], "resolved": {},
    }  # fmt: skip
