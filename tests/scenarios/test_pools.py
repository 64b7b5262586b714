"""The pool of threads where it could wait for itself: runs within runs, and after a fork."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

from vv_agent import Agent, NoToolPolicy, RunConfig, Runner, function_tool
from vv_agent.dispatch.threaded import ThreadBackend
from vv_agent.testing import ScriptedProvider, call


def agent(*tools: Any) -> Agent:
    return Agent(name="a", instructions="Work.", tools=list(tools), no_tool_policy=NoToolPolicy.FINISH)


def test_runs_that_start_runs_of_their_own_pool_end() -> None:
    config = RunConfig(execution_backend=ThreadBackend(2))
    together = threading.Barrier(2)

    @function_tool(idempotency="supported")
    def ask() -> str:
        """Ask another agent."""
        together.wait(20)
        inner = Runner(model_provider=ScriptedProvider(["inner"]))
        return str(inner.run_sync(agent(), "x", run_config=config).final_output)

    runner = Runner(model_provider=ScriptedProvider([call("ask", {}), "outer"]))
    handles = [runner.start(agent(ask), "x", run_config=config) for _ in range(2)]
    results = [handle.result(30) for handle in handles]
    assert [result.final_output for result in results] == ["outer"] * 2
    assert [cycle.tool_results[0].content for result in results for cycle in result.cycles[:1]] == ["inner"] * 2


def _run(config: RunConfig) -> str:
    runner = Runner(model_provider=ScriptedProvider(["done"]))
    return str(runner.run_sync(agent(), "x", run_config=config).final_output)


def test_a_pool_works_after_a_fork() -> None:
    config = RunConfig(execution_backend=ThreadBackend(2))
    assert _run(config) == "done"
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    child = context.Process(target=lambda: told.put(_run(config)))
    child.start()
    try:
        assert told.get(timeout=30) == "done"
    finally:
        child.kill()
        child.join(10)
