"""Runs for the tests of the command line: `python -m tests.cli_jobs JOB KEY [distributed]` starts one."""

from __future__ import annotations

import importlib
import os
import sys
import time

from tests.scenarios.agents import by_agent
from vv_agent import Agent, ExecutionMode, NoToolPolicy, RunConfig, Runner, build_default_registry, function_tool
from vv_agent.budget import RunBudgetLimits
from vv_agent.testing import ScriptedProvider, call, calls


@function_tool
def launch(pad: str) -> str:
    """Launch a rocket, which cannot be taken back."""
    return f"launched from {pad}"


@function_tool(idempotency="supported")
def look(seconds: float) -> str:
    """Look for a while."""
    time.sleep(seconds)
    return "seen"


_finish = build_default_registry().get("task_finish")
asking = Agent(name="asking", instructions="Ask.", tools=[_finish], no_tool_policy=NoToolPolicy.WAIT_USER)
asking_models = ScriptedProvider(["Which colour?\x1b[31m", call("task_finish", {"message": "Blue it is."})])
rocket = Agent(name="rocket", instructions="Launch.", tools=[launch], no_tool_policy=NoToolPolicy.FINISH)
rocket_models = ScriptedProvider([call("launch", {"pad": "A"}), "Done."])
looking = Agent(name="looking", instructions="Look.", tools=[look], no_tool_policy=NoToolPolicy.FINISH)
looking_models = ScriptedProvider([call("look", {"seconds": 3.0}), call("look", {"seconds": 3.0}), "Nothing there."])
staring, staring_models = looking, ScriptedProvider([call("look", {"seconds": 15.0}), "Nothing there."])
thrifty, thrifty_models = looking, ScriptedProvider([call("look", {"seconds": 0.0}), "Nothing there."])


@function_tool(needs_approval=True, idempotency="supported")
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


careful = Agent(name="careful", instructions="Pay.", tools=[pay], no_tool_policy=NoToolPolicy.FINISH)
careful_models = ScriptedProvider([call("pay", {"amount": 5}), "Paid."])
generous, generous_models = careful, ScriptedProvider([calls(("pay", {"amount": 5}), ("pay", {"amount": 7})), "Paid."])
leading = Agent(name="leading", instructions="Lead.", tools=[careful.as_tool()], no_tool_policy=NoToolPolicy.FINISH)
leading_models = ScriptedProvider(
    by_agent(
        {
            "Lead.": [call("careful", {"task_description": "pay"}), "All paid."],
            "Pay.": [call("pay", {"amount": 5}), "Paid."],
        }
    )
)
LIMITS = {"thrifty": RunBudgetLimits(max_tool_calls=0)}


def main() -> None:
    """Start a run and, unless it is distributed, wait for what comes of it."""
    job, key, *how = sys.argv[1:]
    jobs = importlib.import_module("tests.cli_jobs")  # under its real name, so that workers find the code
    mode = ExecutionMode.DISTRIBUTED if how else ExecutionMode.INLINE
    runner = Runner(model_provider=getattr(jobs, f"{job}_models"))
    config = RunConfig(checkpoint_key=key, execution_mode=mode, budget_limits=LIMITS.get(job))
    handle = runner.start(getattr(jobs, job), "Go.", run_config=config)
    if getattr(jobs, job) in (jobs.careful, jobs.leading):  # its starter leaves while it waits
        next(event for event in handle.events() if event.type == "approval_requested")
        time.sleep(0.3)
        os._exit(0)
    if not how:
        handle.result()


if __name__ == "__main__":
    main()
