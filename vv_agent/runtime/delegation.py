"""Giving work to other agents: what the calls of a run ask of the runs below, and what those tell it.

No handler starts anything. It says what it wants, and the cycle does that with its next save.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vv_agent.checkpoint.record import Signal
from vv_agent.errors import CheckpointError, ToolError
from vv_agent.results import AgentStatus, ToolExecutionResult
from vv_agent.runtime import handoff, steering
from vv_agent.runtime.body import Body
from vv_agent.runtime.children import RUNNING, Asked, lineage
from vv_agent.runtime.eventlog import Emitted, Origin
from vv_agent.runtime.inbox import cancel_signal, steer_signal
from vv_agent.runtime.opening import InputBlocked, input_for
from vv_agent.runtime.output import Stop, usage_between
from vv_agent.runtime.program import FAULT_PREFIX
from vv_agent.runtime.sub_runs import (
    SubRun,
    Work,
    child_key,
    failed_outcome,
    new_child,
    parent_of,
    prompt_of,
    summary_of,
)
from vv_agent.runtime.sub_task_results import begun, outcomes, standing
from vv_agent.runtime.transcript import pack
from vv_agent.tools.base import SubTaskQuery, SubTaskRequest
from vv_agent.tools.output import error_result

if TYPE_CHECKING:
    from vv_agent.runtime.run import Run


# What calls ask.


def carry_out(run: Run, position: int, asked: Asked) -> ToolExecutionResult | None:
    """Do what a call asked for; None when its result comes later."""
    assert run.turn is not None
    call = run.turn.call(position)
    try:
        if asked.request is not None:
            return _begin(run, position, asked, asked.request)
        assert asked.query is not None
        return _look(run, position, asked.query)
    except ToolError as error:
        return error_result(call.id, error.message, error.code, error.details)


def _begin(run: Run, position: int, asked: Asked, request: SubTaskRequest) -> ToolExecutionResult | None:
    slot = asked.slots.get(request.agent_id)
    agent = run.program.linked(slot).definition.agent.name if asked.tool and slot else request.agent_id
    rows: list[str | dict[str, Any]] = []
    summary = summary_of(run) if request.include_main_summary else ""
    for index, task in enumerate(request.tasks):
        key = child_key(run.key, run.cycle, position, index)
        background = asked.tool and not request.wait
        name = f"bg_agent_{key[2:14]}" if background else f"{run.task_id}_sub_{agent}_{key[2:10]}"
        state = dict(run.shared_state) if asked.tool else None
        work = Work(slot or "", agent, name, prompt_of(task, summary), request.exclude_files_pattern, state=state)
        fault = _fault(run, slot, request.agent_id) or start(run, position, index, work)
        if fault is not None:
            rows.append(_never_begun(run, position, work, fault))
        else:
            rows.append(name)
    kind = "tool" if asked.tool else "batch" if request.batch else "single"
    begun_ids = [row for row in rows if isinstance(row, str)]
    if request.wait and begun_ids:
        run.children.waits[position] = {"kind": kind, "tasks": begun_ids, "rows": rows, "since": run.engine.clock()}
        return None
    call_id = run.turn.call(position).id if run.turn is not None else ""
    failed = [row for row in rows if not isinstance(row, str)]
    if failed and (request.wait or not request.batch):
        return outcomes(call_id, kind, failed)
    return begun(call_id, request, rows, agent, tool=asked.tool)


def _fault(run: Run, slot: str | None, agent_id: str) -> dict[str, str] | None:
    """Why work for this agent cannot begin."""
    if slot is None:
        return {"code": "sub_task_failed", "message": f"Unknown sub-agent: {agent_id}", "model": ""}
    ref = run.program.definition.capability_refs[slot]
    if not ref.id.startswith(FAULT_PREFIX):
        return None
    fault: dict[str, str] = json.loads(ref.id.removeprefix(FAULT_PREFIX))
    return fault


def start(run: Run, position: int, index: int, work: Work) -> dict[str, str] | None:
    """Begin a run below with the next save, unless its agent must not be given this input: then why."""
    program = run.program.linked(work.slot)
    text = input_for(run, program, work.text)
    if isinstance(text, InputBlocked):
        return {"code": text.code, "message": text.message, "model": program.definition.model.model_id}
    work = replace(work, text=text)
    new = new_child(run, position, index, work, handoff.denials(run))
    run.children.new.append(new)
    run.children.tasks[work.task_id] = {
        "key": new.key,
        "agent": work.agent,
        "slot": work.slot,
        "node": run.body.node,
        "status": RUNNING,
    }
    model = program.definition.model.model_id
    _show_start(run, position, work, run_id=new.run_id, model=model, key=new.key)
    origin = run.origin._replace(run_id=new.run_id, agent=work.agent)
    run.emit("agent_started", {}, origin, parent_run_id=run.body.run_id, session_id=work.task_id)
    return None


def _show_start(run: Run, position: int, work: Work, *, run_id: str, model: str, key: str | None) -> None:
    """`sub_run_started`, an event of the run below, stands with the one that begins it: who follows that one then
    follows both."""
    metadata = {"model": model, "parent_task_id": run.task_id}
    refs = {} if key is None else {"metadata": ["child", key, metadata]}
    origin = run.origin._replace(run_id=run_id, agent=work.agent)
    fields = lineage(parent_of(run, position, work.task_id))
    run.emit("sub_run_started", refs, origin, **fields, status=RUNNING, metadata=metadata)


def _show_failure(run: Run, parent: Mapping[str, Any], origin: Origin, message: str, code: str) -> None:
    run.emit(
        "sub_run_completed", {}, origin, **lineage(parent), status="failed", error=message, completion_reason="failed",
        metadata={"cycles": 0, "error_code": code},
    )  # fmt: skip


def drop(run: Run, reason: str) -> None:
    """The run is cancelled: what was to begin with its next save was shown, and ends here."""
    new = {one.key: one for one in run.children.new}
    for task in run.children.drop_new().values():
        body = Body.unpack(new[task["key"]].body, task["key"])
        assert body.parent is not None
        origin = run.origin._replace(run_id=body.run_id, agent=body.agent)
        _show_failure(run, body.parent, origin, reason, "sub_task_failed")


def _never_begun(run: Run, position: int, work: Work, fault: Mapping[str, str]) -> dict[str, Any]:
    code, message, run_id = fault["code"], fault["message"], run.engine.new_id("run")
    if fault["model"]:  # it is one of the agents
        _show_start(run, position, work, run_id=run_id, model=fault["model"], key=None)
        origin = run.origin._replace(run_id=run_id, agent=work.agent)
        _show_failure(run, parent_of(run, position, work.task_id), origin, message, code)
    return failed_outcome(work.task_id, work.agent, message, code)


# What became of it.


def hear(run: Run) -> None:
    """Note what became of the runs below, whatever this run does now: what is unread wakes a run that parks."""
    for ended in run.inbox.take_children():
        task = run.children.tasks.get(ended["task_id"])
        if task is not None and task["key"] == ended["key"]:
            task["status"] = ended["status"]
        if run.account is not None and ended.get("usage"):
            waits = ended["status"] == AgentStatus.WAIT_USER
            run.account.add_child(ended["key"], ended["usage"], goes_on=waits)


def settled(run: Run) -> list[tuple[int, ToolExecutionResult, int]]:
    """The calls that need not wait any more: position, result, and how long they waited in ms."""
    hear(run)
    done = []
    for position, wait in sorted(run.children.waits.items()):
        late = wait.get("until") is not None and wait["until"] <= run.claimed_at
        if late or not any(run.children.tasks[name]["status"] == RUNNING for name in wait["tasks"]):
            done.append((position, _result(run, position, wait, late=late), _waited(run, wait)))
    for position, _, _ in done:  # all or none: an agent among them may be one we cannot serve
        del run.children.waits[position]
    return done


def _waited(run: Run, wait: Mapping[str, Any]) -> int:
    since: float = wait["since"]
    return max(0, round((run.engine.clock() - since) * 1000))


def _result(run: Run, position: int, wait: Mapping[str, Any], *, late: bool) -> ToolExecutionResult:
    assert run.turn is not None
    call_id = run.turn.call(position).id
    if wait["kind"] == "status":
        return standing(run, call_id, SubTaskQuery(**wait["query"]), wait.get("interaction"), exceeded=late)
    rows = [_outcome(run, row) if isinstance(row, str) else row for row in wait["rows"]]
    return outcomes(call_id, wait["kind"], rows)


def _outcome(run: Run, task_id: str) -> dict[str, Any]:
    task = run.children.tasks[task_id]
    child = SubRun(run.engine.store, task["key"])
    if not child.exists:
        return failed_outcome(task_id, task["agent"], "The run was deleted.")
    if task["node"] != run.body.node:
        return child.outcome()
    resolved = run.program.linked(task["slot"]).resolved
    names = {"backend": resolved.backend, "selected_model": resolved.selected_model, "model_id": resolved.model_id}
    return {**child.outcome(), "resolved": names}


# Questions about it.


def _look(run: Run, position: int, query: SubTaskQuery) -> ToolExecutionResult | None:
    assert run.turn is not None
    interaction = _say(run, position, query) if query.message is not None else None
    waits = query.wait or (query.message is not None and query.wait_for_response)
    known = [name for name in query.task_ids if name in run.children.tasks]
    if waits and any(run.children.tasks[name]["status"] == RUNNING for name in known):
        kept = {name: getattr(query, name) for name in query.__slots__}
        run.children.waits[position] = {
            "kind": "status", "tasks": known, "query": {**kept, "task_ids": list(query.task_ids)},
            "interaction": interaction, "since": run.engine.clock(),
            "until": run.engine.store.now() + query.max_wait_seconds * 1000,
        }  # fmt: skip
        return None
    return standing(run, run.turn.call(position).id, query, interaction)


def _say(run: Run, position: int, query: SubTaskQuery) -> dict[str, str]:
    """Tell a run below something: one that works reads it in its next turn, one that is over goes on with it."""
    (name,) = query.task_ids
    task, message = run.children.tasks.get(name), query.message or ""
    if task is None:
        raise ToolError(f"Sub-task {name} not found.", "sub_task_not_found", details={"task_id": name})
    if task["status"] != AgentStatus.WAIT_USER and _steer(run, position, task, message):
        return {"action": "message_queued", "previous_status": RUNNING}
    status = task["status"]
    if status == AgentStatus.MAX_CYCLES:
        text = f"Sub-task {name} reached max cycles and cannot continue."
        raise ToolError(text, "sub_task_max_cycles_reached", details={"task_id": name})
    child = SubRun(run.engine.store, task["key"])
    slot = task["slot"]
    if not child.exists or task["node"] != run.body.node:  # it worked for an agent that handed over
        text = f"Sub-task {name} session is not attached."
        raise ToolError(text, "sub_task_session_not_ready", details={"task_id": name})
    refused = start(run, position, 0, Work(
        slot, task["agent"], name, message, (child.blobs.get("work") or {}).get("exclude"), child.history(),
        child.state,
    ))  # fmt: skip
    if refused is not None:
        raise ToolError(refused["message"], "sub_task_continue_failed", details={"task_id": name})
    if status == AgentStatus.WAIT_USER:  # what it waits for is moot
        run.children.posts.append((task["key"], _over(run, "The work goes on with another message.")))
    return {"action": "continued", "previous_status": status}


def _steer(run: Run, position: int, task: Mapping[str, Any], message: str) -> bool:
    """Tell a run below something; False if it ended meanwhile, and then its end is known here.

    It is sent at once: only then this run knows that the other one will hear it. The id is that of the call, so that a
    further attempt at the call says it no second time.
    """
    signal = steer_signal(f"steer_{child_key(run.key, run.cycle, position, 0)}", message)
    if any(new.key == task["key"] for new in run.children.new):
        run.children.posts.append((task["key"], signal))
        return True
    try:
        run.engine.store.post(task["key"], signal)
    except CheckpointError as error:
        if error.code not in ("run_finished", "checkpoint_not_found"):
            raise
        run.refresh()
        hear(run)
        return False
    run.engine.keeper.poke(task["key"])
    return True


def _over(run: Run, reason: str) -> Signal:
    return cancel_signal(f"over_{run.key}", reason)


def end_posts(run: Run, decision: Stop, *, ends: bool) -> list[tuple[str, Signal]]:
    """What the end of a segment tells others: the parent what became of the work, and, at the end of the run, the runs
    below that nobody waits for them any more."""
    posts: list[tuple[str, Signal]] = []
    parent, above = run.body.parent, run.head.parent_key
    if parent is not None and above is not None and not steering.continues(run, decision):
        body = {"task_id": parent["task_id"], "key": run.key, "status": decision.status.value}
        if run.account is not None:
            body["usage"] = run.account.usage
        posts.append((above, Signal(f"child_{run.key}_{run.body.segment}", "child", pack(body))))
    if ends:
        over = _over(run, "The run that gave this work is over.")
        posts += [(task["key"], over) for task in run.children.unfinished]
    return posts


def terminal_event(run: Run, decision: Stop) -> Emitted:
    """The event that ends a run below another one."""
    parent, segment = run.body.parent or {}, run.body.segment
    known, asides = run.transcript.turns, run.transcript.asides
    if not run.transcript.whole:  # a reset of the log left some behind
        before = SubRun(run.engine.store, run.key).transcript
        known, asides = {**before.turns, **known}, before.asides
    turns = [turn for cycle, turn in sorted(known.items()) if cycle >= run.body.first_cycle]
    metadata: dict[str, Any] = {"cycles": len(turns)}
    failed = decision.status not in (AgentStatus.COMPLETED, AgentStatus.WAIT_USER)
    if failed:
        metadata["error_code"] = decision.error_code or "sub_task_failed"
    fields: dict[str, Any] = {
        **lineage(parent), "status": decision.status.value, "metadata": metadata,
        "completion_reason": decision.reason.value if decision.reason else None,
        "completion_tool_name": decision.tool,
    }  # fmt: skip
    refs: dict[str, Any] = {}
    if decision.status is AgentStatus.COMPLETED or decision.status is AgentStatus.WAIT_USER:
        name = "final_output" if decision.status is AgentStatus.COMPLETED else "wait_reason"
        fields[name], refs[name] = run.transcript.resolve(decision.answer), ("answer", segment)
    else:
        fields["error"] = decision.error if decision.error is not None else str(decision.answer)
    if decision.status is not AgentStatus.COMPLETED and run.transcript.last_text is not None:
        fields["partial_output"], refs["partial_output"] = run.transcript.last_text, ("partial", segment)
    if turns:
        fields["token_usage"] = usage_between(run.body, turns, asides, run.body.first_cycle).to_wire()
    if run.account is not None:
        fields["budget_usage"] = run.account.usage
        if decision.reason == "budget_exhausted":
            fields["budget_exhaustion"] = run.account.exhaustion
    return run.number("sub_run_completed", refs, **fields)
