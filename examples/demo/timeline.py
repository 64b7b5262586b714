"""What happened in a run of the demo: who did which cycle, what was replayed, and whether it is as promised."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    outputs = [json.loads(message.content) for message in story.result.messages if message.role == "tool"]
    pids = dict(story.commits)
    resumed = {event.cycle_index + 1 for event in story.events if event.type == "checkpoint_resumed"}
    first = story.killed[0] if story.killed else 0
    for event in story.events:
        cycle = event.cycle_index or 0
        match event.type:
            case "cycle_started":
                pid = first if cycle in resumed else pids.get(cycle, 0)
                yield event.created_at, pid, f"cycle {cycle}", f"asks the model: {prompts[cycle - 1]}"
            case "checkpoint_resumed":
                text = f"takes over, attempt {event.resume_attempt}"
                yield event.created_at, pids.get(cycle + 1, 0), f"cycle {cycle + 1}", text
            case "operation_replayed":
                yield event.created_at, pids.get(cycle, 0), "", f"replays the saved {event.operation_kind} answer"
            case "tool_call_completed":
                arguments = _arguments(story, event.tool_call_id)
                output = outputs[cycle - 1].get("content") or f"{outputs[cycle - 1].get('written_chars', '?')} chars"
                yield (
                    event.created_at,
                    pids.get(cycle, 0),
                    "",
                    f"runs {event.tool_name} {arguments['path']} -> {output}",
                )
            case "run_completed":
                answer = " ".join(str(event.final_output).split())
                yield event.created_at, pids.get(4, 0), "", f"ends the run: {answer}"


def _arguments(story: Story, call_id: str) -> dict[str, str]:
    calls = [call for message in story.result.messages for call in message.tool_calls]
    return next((json.loads(call.arguments) for call in calls if call.id == call_id), {"path": "?"})


def _deaths(story: Story) -> Iterator[Step]:
    if story.killed is not None:
        pid, at = story.killed
        yield at, pid, "", "KILLED (SIGKILL): its model's answer is saved, the tool has not run"
    if story.taken_over is not None:
        pid, at = story.taken_over
        yield at, pid, "", "finds the claim of a dead process and ends it"


def checks(story: Story) -> Iterator[tuple[bool, str]]:
    """What the run promised, and whether it is so."""
    result, killed = story.result, story.killed
    survivor = {pid for cycle, pid in story.commits if cycle > 1}
    yield killed is not None, "the worker that held the run died by SIGKILL, in cycle 2"
    yield killed is not None and killed[0] not in survivor, "the other worker finished cycle 2 and the rest"
    yield [cycle for cycle, _ in story.commits] == [1, 2, 3, 4], "four cycles, each committed once"
    asked = [event.cycle_index for event in story.events if event.type == "llm_started"]
    replayed = [event.cycle_index for event in story.events if event.type == "operation_replayed"]
    yield (
        (asked, replayed) == ([1, 2, 3, 4], [2]),
        "the model was asked four times; the lost cycle used its saved answer",
    )
    calls = [(call.name, json.loads(call.arguments)) for message in result.messages for call in message.tool_calls]
    yield calls == list(job.CALLS), "the tool calls: read a.txt, read b.txt, write c.txt, each once"
    name, text = job.RESULT
    yield story.files == {**job.FILES, name: text}, f"the files: a.txt and b.txt as they were, {name} holds '{text}'"
    yield (result.status, result.completion_reason) == ("completed", "no_tool_finish"), "the result: completed"
