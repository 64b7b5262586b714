"""A run that workers carry out: `VV_AGENT_IMPORTS=jobs,support vv-agent worker` in this directory, in another terminal.

With no worker in sight this program says so and does the work itself, on the same record.
"""

import sys

from jobs import agent, models
from support import fail, show

from vv_agent import ExecutionMode, RunConfig, Runner


def main() -> None:
    config = RunConfig(execution_mode=ExecutionMode.DISTRIBUTED, checkpoint_key=sys.argv[1] if sys.argv[1:] else None)
    handle = Runner(model_provider=models).start(agent, "Order A-17 (5.00) came broken.", run_config=config)
    print(f"key {handle.checkpoint_key}; from another terminal: vv-agent runs show {handle.checkpoint_key}")
    for event in handle.events():
        if event.type == "tool_call_completed":
            print(f"{event.tool_name}: {event.status}")
    result = handle.result(timeout=120)
    if result.checkpoint_key != handle.checkpoint_key:
        fail("the run is not kept")
    show(result)


if __name__ == "__main__":
    main()
