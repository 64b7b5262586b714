"""`python -m examples.demo.run [RUNS]`: runs the job three times, kills a worker in each, and checks the outcome.

`VV_DEMO=scripted` plays a script instead of the model; `VV_DEMO=model` insists on the model; unset, the script
stands in when the model's packages are missing. The exit code is 0 only if every run ended as promised.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from examples.demo import job
from examples.demo.model.serve import weights
from examples.demo.processes import model_server, two_workers
from examples.demo.timeline import Story, checks, lines
from vv_agent import ExecutionMode, ModelProvider, ModelRef, Runner, VvLlmModelProvider
from vv_agent.process import store_at
from vv_agent.settings import Settings

PATIENCE = 120.0
"""Seconds a run may take before the demo calls it failed; a quiet machine needs about five."""


@dataclass(frozen=True)
class Playing:
    """Who answers: a provider, what the agent names, and what the workers must be told."""

    provider: ModelProvider
    model: ModelRef | None
    environment: Mapping[str, str] = field(default_factory=dict)


def main() -> int:
    """Run the demo; the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    began = time.monotonic()
    print("vv-agent demo: one job, two workers, one of them killed in the middle.\n")
    with tempfile.TemporaryDirectory(prefix="vv-demo-") as name:
        folder = Path(name)
        with _model(folder) as playing:
            print("Kill    SIGKILL for the worker that has the run, right after it saved the model's second answer.\n")
            results = [_one(playing, folder, number, runs) for number in range(1, runs + 1)]
    right, seconds = sum(ok for ok, _ in results), [taken for _, taken in results]
    each = ", ".join(f"{taken:.1f}" for taken in seconds)
    print(f"{right} of {runs} runs ended right. Seconds per run: {each}; in all, with starting: "
          f"{time.monotonic() - began:.1f}.")  # fmt: skip
    if playing.model is None:
        print("This was the scripted model, not a real one.")
    else:
        print("The model's last words are not checked: one this small rambles.")
    return 0 if right == runs else 1


@contextmanager
def _model(folder: Path) -> Iterator[Playing]:
    """The real model if it is there, else the script; says which."""
    wish = os.environ.get("VV_DEMO", "")
    if wish not in ("", "scripted", "model"):
        sys.exit(f"VV_DEMO={wish!r} is not known; use scripted or model, or leave it out")
    if wish == "scripted" or (wish == "" and weights() is None):
        why = "as VV_DEMO asks" if wish else "because the packages of the small model are not installed here"
        print(f"Model   SCRIPTED, {why}: the answers are played from a list.")
        _describe(folder)
        yield Playing(job.scripted, None)
        return
    with model_server(folder) as settings:
        print("Model   SmolLM2-135M-Instruct, run by llama.cpp on this machine: no network, no key.")
        _describe(folder)
        provider = VvLlmModelProvider.from_settings_file(settings)
        yield Playing(provider, ModelRef.backend("local", "tiny"), {"VV_AGENT_LOCAL_SETTINGS": str(settings)})


def _describe(folder: Path) -> None:
    print(f"Store   SQLite, {folder}/runs.db: no server.")
    print("Job     read a.txt, read b.txt, write both words to c.txt, say the result: four cycles.")


def _one(playing: Playing, folder: Path, number: int, runs: int) -> tuple[bool, float]:
    """One run from fresh files with two fresh workers; whether it was right, and its seconds."""
    store = store_at(f"sqlite:///{folder}/runs.db")
    workspace = folder / f"workspace-{number}"
    workspace.mkdir()
    for name, text in job.FILES.items():
        (workspace / name).write_text(text)
    runner = Runner(model_provider=playing.provider, workspace=workspace, settings=Settings(store=store.url))
    with two_workers(store, folder / f"workers-{number}", playing.environment) as workers:
        print(f"Run {number} of {runs}: workers {' and '.join(map(str, workers.pids))}", flush=True)
        started, clock = time.time(), time.monotonic()
        config = job.config(execution_mode=ExecutionMode.DISTRIBUTED, checkpoint_key=f"demo-{number}")
        handle = runner.start(job.agent(playing.model), job.FIRST, run_config=config)
        try:
            result = handle.result(PATIENCE)
        except TimeoutError:
            print(f"  FAILED: no end after {PATIENCE:.0f} s. The workers said:\n{workers.logs()}\n")
            return False, PATIENCE
        story = Story.of(started, time.monotonic() - clock, result, workers, workspace)
    return _tell(story, whole=number == 1), story.seconds


def _tell(story: Story, *, whole: bool) -> bool:
    """Print the timeline and the checks (of a later run only those that failed); whether all are as promised."""
    for line in lines(story):
        print(line)
    outcome = checks(story)
    for check in outcome:
        if whole or not check.ok:
            print(f"  ok       {check.promise}" if check.ok else f"  FAILED   {check.promise}; found: {check.found}")
    good = sum(check.ok for check in outcome)
    print(f"  {good} of {len(outcome)} checks ok, {story.seconds:.1f} s\n", flush=True)
    return good == len(outcome)


if __name__ == "__main__":
    sys.exit(main())
