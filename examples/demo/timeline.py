"""What happened in a run of the demo: who did which cycle, what was replayed, and whether it is as promised."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.demo import job
from examples.demo.processes import Workers
from vv_agent import RunResult
from vv_agent.events import RunEvent


@dataclass(frozen=True)
class Story:
    """One finished run and all that was seen of it."""

    key: str
    started: float
    seconds: float
    result: RunResult
    events: Sequence[RunEvent]
    killed: tuple[int, float] | None
    taken_over: tuple[int, float] | None
    commits: Sequence[tuple[int, int]]
    """(cycle, pid), by the workers' logs."""
    files: dict[str, str]

    @classmethod
    def of(cls, started: float, seconds: float, result: RunResult, workers: Workers, workspace: Path) -> Story:
        key = str(result.checkpoint_key)
        files = {path.name: path.read_text() for path in sorted(workspace.glob("*.txt"))}
        return cls(
            key, started, seconds, result, result.events, workers.killed(), workers.taken_over(key),
            workers.commits(key), files,
        )  # fmt: skip


def lines(story: Story) -> Iterator[str]:
    """The timeline, one line per step, in the order of time."""
    steps = [*_steps(story), *_deaths(story)]
    for at, pid, cycle, text in sorted(steps, key=lambda step: step[0]):
        yield f"  {at - story.started:5.2f} s  worker {pid:<7} {cycle:<8} {text}"


Step = tuple[float, int, str, str]
"""When, which worker, which cycle (blank: the same as above), what."""


def _steps(story: Story) -> Iterator[Step]:
    prompts = [message.content for message in story.result.messages if message.role == "user"]
    calls = {call.id: call for message in story.result.messages for call in message.tool_calls}
    outputs = {message.tool_call_id: message.content for message in story.result.messages if message.role == "tool"}
    pids = dict(story.commits)
    resumed = {event.cycle_index + 1 for event in story.events if event.type == "checkpoint_resumed"}
    first = story.killed[0] if story.killed else 0
    for event in story.events:
        at, cycle = event.created_at, event.cycle_index or 0
        match event.type:
            case "cycle_started":
                pid = first if cycle in resumed else pids.get(cycle, 0)
                asked = prompts[cycle - 1] if cycle <= len(prompts) else "(no new sentence)"
                yield at, pid, f"cycle {cycle}", f"asks the model: {asked}"
            case "checkpoint_resumed":
                text = f"takes over, attempt {event.resume_attempt}"
                yield at, pids.get(cycle + 1, 0), f"cycle {cycle + 1}", text
            case "operation_replayed":
                yield at, pids.get(cycle, 0), "", f"replays the saved {event.operation_kind} answer"
            case "tool_call_completed":
                path = _object(calls[event.tool_call_id].arguments).get("path")
                shown = _shown(outputs.get(event.tool_call_id, ""))
                yield at, pids.get(cycle, 0), "", f"runs {event.tool_name} {path} -> {shown}"
            case "run_completed":
                yield (
                    at,
                    max(story.commits, default=(0, 0))[1],
                    "",
                    f"ends the run: {' '.join(str(event.final_output).split())}",
                )
            case "run_failed":
                yield at, max(story.commits, default=(0, 0))[1], "", f"ends the run as FAILED: {event.error}"


def _object(text: str) -> dict[str, Any]:
    """JSON of a model or tool as an object; what is none is shown as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"?": text}


def _shown(output: str) -> str:
    """The short form of a tool's result: what was read, how much was written, or all of it."""
    result = _object(output)
    if "content" in result:
        return str(result["content"])
    return f"{result['written_chars']} characters written" if "written_chars" in result else output


def _deaths(story: Story) -> Iterator[Step]:
    if story.killed is not None:
        pid, at = story.killed
        yield at, pid, "", "KILLED (SIGKILL): its model's answer is saved, the tool has not run"
    if story.taken_over is not None:
        pid, at = story.taken_over
        yield at, pid, "", "finds the claim of a dead process and ends it"


@dataclass(frozen=True)
class Check:
    """One promise, and what was found where it is not kept."""

    ok: bool
    promise: str
    found: object


def checks(story: Story) -> list[Check]:
    """What the run promised, and whether it is so."""
    result, killed = story.result, story.killed
    survivors = {pid for cycle, pid in story.commits if cycle > 1}
    asked = [event.cycle_index for event in story.events if event.type == "llm_started"]
    replayed = [event.cycle_index for event in story.events if event.type == "operation_replayed"]
    calls = [(call.name, _object(call.arguments)) for message in result.messages for call in message.tool_calls]
    name, text = job.RESULT
    ended = (result.status.value, result.completion_reason)
    return [
        Check(killed is not None, "the worker that held the run died by SIGKILL, in cycle 2", killed),
        Check(
            killed is not None and survivors != set() and killed[0] not in survivors,
            "the other worker finished cycle 2 and the rest", story.commits,
        ),
        Check(
            [cycle for cycle, _ in story.commits] == [1, 2, 3, 4], "four cycles, each committed once", story.commits
        ),
        Check(
            (asked, replayed) == ([1, 2, 3, 4], [2]),
            "the model was asked four times; the lost cycle used its saved answer", (asked, replayed),
        ),
        Check(calls == list(job.CALLS), "the tool calls: read a.txt, read b.txt, write c.txt, each once", calls),
        Check(
            story.files == {**job.FILES, name: text},
            f"the files: a.txt and b.txt as they were, {name} holds '{text}'", story.files,
        ),
        Check(ended == ("completed", "no_tool_finish"), "the result: completed", (*ended, result.error_code)),
    ]  # fmt: skip
