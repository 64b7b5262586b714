"""Where asynchronous tools run: on the loop that awaits the run, else on one loop thread of the process."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from vv_agent import Agent, ExecutionMode, NoToolPolicy, RunConfig, Runner, ToolContext, function_tool
from vv_agent.testing import ScriptedProvider, call, calls, say

OURS = "vv-agent-async"


@function_tool
async def where(context: ToolContext) -> str:
    """Tell on which thread this runs."""
    await asyncio.sleep(0)
    context.context["loops"].append(asyncio.get_running_loop())
    return threading.current_thread().name


@function_tool
async def nested(kind: str, context: ToolContext) -> str:
    """Run an agent in here, without awaiting it."""
    tools, steps = ([where], [call("where"), say("inner")]) if kind == "async" else ([], [say("inner")])
    inner = Agent(name="inner", instructions="Run.", tools=tools, no_tool_policy=NoToolPolicy.FINISH)
    result = Runner(model_provider=ScriptedProvider(steps)).run_sync(
        inner, "go", run_config=RunConfig(context=context.context)
    )
    told = [item.content for cycle in result.cycles for item in cycle.tool_results]
    return " ".join([str(result.final_output), *told])


def agent(*tools: Any) -> Agent:
    return Agent(name="outer", instructions="Run.", tools=list(tools), no_tool_policy=NoToolPolicy.FINISH)


def runner(tmp_path: Path, *steps: Any) -> Runner:
    return Runner(model_provider=ScriptedProvider([*steps, "done"]), workspace=tmp_path)


def results(result: Any) -> list[str]:
    return [item.content for cycle in result.cycles for item in cycle.tool_results]


@pytest.mark.parametrize("mode", [ExecutionMode.INLINE, ExecutionMode.THREADED])
def test_an_awaited_run_uses_the_loop_that_awaits_it(mode: ExecutionMode, tmp_path: Path) -> None:
    loops: list[Any] = []
    config = RunConfig(context={"loops": loops}, execution_mode=mode)

    async def main() -> Any:
        loops.append(asyncio.get_running_loop())
        result = await runner(tmp_path, calls(("where", {}), ("where", {}))).run(agent(where), "go", run_config=config)
        async for _ in runner(tmp_path, call("where")).stream(agent(where), "go", run_config=config):
            pass
        return result

    assert results(asyncio.run(main())) == [threading.current_thread().name] * 2
    assert len(set(loops)) == 1
    assert len(loops) == 4


@pytest.mark.parametrize("mode", [ExecutionMode.INLINE, ExecutionMode.THREADED])
def test_a_run_nobody_awaits_uses_the_loop_of_the_process(mode: ExecutionMode, tmp_path: Path) -> None:
    config = RunConfig(context={"loops": []}, execution_mode=mode)
    steps = [call("where")]
    assert results(runner(tmp_path, *steps).run_sync(agent(where), "go", run_config=config)) == [OURS]

    async def started() -> Any:
        handle = runner(tmp_path, *steps).start(agent(where), "go", run_config=config)
        return await asyncio.to_thread(handle.result)

    assert results(asyncio.run(started())) == [OURS]


def test_a_run_inside_an_awaited_tool_does_not_wait_for_the_loop_it_holds_up(tmp_path: Path) -> None:
    config = RunConfig(context={"loops": []})

    async def main() -> Any:
        return await runner(tmp_path, call("nested", {"kind": "async"})).run(agent(nested), "go", run_config=config)

    assert results(asyncio.run(asyncio.wait_for(main(), 20))) == [f"inner {OURS}"]


def test_a_run_inside_a_tool_on_the_loop_of_the_process_is_told_to_await(tmp_path: Path) -> None:
    config = RunConfig(context={"loops": []})
    steps = [call("nested", {"kind": "plain"}), call("nested", {"kind": "async"})]
    plain, waits = results(runner(tmp_path, *steps).run_sync(agent(nested), "go", run_config=config))
    assert plain == "inner"
    assert "async_deadlock" in waits


def test_a_loop_that_was_closed_is_not_waited_for(tmp_path: Path) -> None:
    begun, never = threading.Event(), threading.Event()

    @function_tool
    async def stuck() -> None:
        begun.set()
        await asyncio.sleep(60)

    loop = asyncio.new_event_loop()
    outcome: list[Any] = []

    async def watch() -> None:
        stream = runner(tmp_path, call("stuck"), call("where")).stream(
            agent(stuck, where), "go", run_config=RunConfig(context={"loops": []}, stream=outcome.append)
        )
        async for event in stream:
            if event.type == "tool_call_started":
                break
        while not begun.is_set():
            await asyncio.sleep(0.01)
        keep.append(stream)

    keep: list[Any] = []
    loop.run_until_complete(watch())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.close()
    deadline = threading.Timer(20, never.set)
    deadline.start()
    while not any(event.type in ("run_completed", "run_cancelled", "run_failed") for event in outcome):
        assert not never.wait(0.02), [event.type for event in outcome]
    deadline.cancel()
    del keep[:]
    told = [event.error_code for event in outcome if event.type == "tool_call_completed"]
    assert told == ["tool_execution_failed", None]
