"""Starts distributed runs and leaves them to workers: `python -m benchmarks.starter PREFIX COUNT MODEL CYCLES`.

MODEL is a provider in `benchmarks.job`, or `settings` for the slow model of the settings file.
"""

from __future__ import annotations

import sys
import tempfile

from benchmarks.job import AGENT, SLOW_AGENT
from vv_agent import RunConfig, Runner
from vv_agent.dispatch.celery import CeleryDispatcher
from vv_agent.dispatch.distributed import DistributedBackend
from vv_agent.settings import read_settings


def main() -> None:
    prefix, count, model, cycles = sys.argv[1:]
    runner = Runner(workspace=tempfile.mkdtemp(prefix="vv-bench-"))
    backend = DistributedBackend(CeleryDispatcher(read_settings().broker or ""), fallback=False)
    named = {} if model == "settings" else {"model_provider": f"benchmarks.job:{model}"}
    for number in range(int(count)):
        config = RunConfig(
            execution_backend=backend, checkpoint_key=f"{prefix}-{number}", max_cycles=int(cycles), **named
        )
        runner.start(SLOW_AGENT if model == "settings" else AGENT, "go", run_config=config)


if __name__ == "__main__":
    main()
