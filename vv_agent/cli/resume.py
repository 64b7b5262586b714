"""`vv-agent resume KEY`."""

from __future__ import annotations

import os
import sys
from typing import Any

from vv_agent import process
from vv_agent.checkpoint.store import open_store
from vv_agent.cli import render
from vv_agent.cli.follow import Quiet, Talker, follow
from vv_agent.cli.runs import code_of, say_next
from vv_agent.cli.view import View, existing, lines, read_view
from vv_agent.result import RunResult
from vv_agent.runner import Runner
from vv_agent.settings import read_settings


def resume_run(key: str, *, as_json: bool) -> int:
    """Go on with a run and print what came of it. Exit code 0 finished, 1 failed, 3 it waits for a person."""
    settings = read_settings()
    sys.path.insert(0, os.getcwd())  # code named by import path is looked for here, as a worker does
    store = open_store(settings.store, create=False)
    existing(store, key)
    narrator = Talker(sys.stderr, store, key, resumed=True) if sys.stderr.isatty() else Quiet()
    handle = Runner(settings=settings).start_resume(key, store=store)
    result = follow(handle, process.engine_for(store, settings), narrator, waits_for_people=False)
    if result is None:
        return 130
    view = read_view(store, key)
    if as_json:
        render.as_json(_summary(view, result))
    else:
        render.pairs(lines(view))
        say_next(view.next)
    return code_of(view)


def _summary(view: View, result: RunResult) -> dict[str, Any]:
    observation, raw = result.resume_observation, result.raw_result
    return {
        "key": view.head.key,
        "status": result.status.value,
        "final_output": next((t for t in (raw.final_answer, raw.wait_reason, raw.error) if t is not None), None),
        "error": view.error,
        "error_code": result.error_code,
        "cycles": len(result.cycles),
        "waits_for": observation.to_wire() if observation else None,
        "next": [{"why": step.why, "command": step.command} for step in view.next],
    }
