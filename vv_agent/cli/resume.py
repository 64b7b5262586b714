"""`vv-agent resume KEY`."""

from __future__ import annotations

import json
import sys

from vv_agent.result import RunResult
from vv_agent.results import AgentStatus
from vv_agent.runner import Runner

_WAITING = (AgentStatus.WAIT_USER, AgentStatus.RECONCILIATION_REQUIRED)


def resume_run(key: str) -> None:
    """Go on with a run and print what came of it as JSON. Exit code 0 finished, 1 failed, 3 it waits for a person."""
    result = Runner().resume(key)
    sys.stdout.write(json.dumps(_summary(result), ensure_ascii=False, indent=2) + "\n")
    if result.status in _WAITING:
        sys.exit(3)
    sys.exit(0 if result.status is AgentStatus.COMPLETED else 1)


def _summary(result: RunResult) -> dict[str, object]:
    observation = result.resume_observation
    return {
        "key": result.checkpoint_key,
        "status": result.status.value,
        "final_output": result.final_output,
        "error_code": result.error_code,
        "cycles": len(result.cycles),
        "waits_for": observation.to_wire() if observation else None,
    }
