"""Starts distributed runs and leaves them to workers: `python -m benchmarks.starter PREFIX COUNT MODEL CYCLES`."""

from __future__ import annotations

import sys
import tempfile

from benchmarks.job import AGENT
from vv_agent import ExecutionMode, RunConfig, Runner


def main() -> None:
    prefix, count, model, cycles = sys.argv[1:]
    runner = Runner(workspace=tempfile.mkdtemp(prefix="vv-bench-"))
    for number in range(int(count)):
        config = RunConfig(
            execution_mode=ExecutionMode.DISTRIBUTED, model_provider=f"benchmarks.job:{model}",
            checkpoint_key=f"{prefix}-{number}", max_cycles=int(cycles),
        )  # fmt: skip
        runner.start(AGENT, "go", run_config=config)


if __name__ == "__main__":
    main()
