"""What a process keeps, and what it lets go."""

from __future__ import annotations

import gc
import weakref

from tests.harness import until
from vv_agent import Agent, CheckpointConfig, NoToolPolicy, RunConfig, Runner, process
from vv_agent.cancellation import CancellationToken
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.settings import Settings
from vv_agent.testing import ScriptedProvider


def test_a_store_that_nobody_uses_is_freed_with_what_was_made_for_it() -> None:
    store = MemoryStore()
    engine, tailer = process.engine_for(store, Settings()), process.tailer_for(store)
    assert process.engine_for(store, Settings()) is engine
    assert process.tailer_for(store) is tailer
    gone = weakref.ref(store)
    del store, engine, tailer
    gc.collect()
    assert gone() is None


def test_a_token_that_outlives_its_runs_does_not_keep_them() -> None:
    token = CancellationToken()
    agent = Agent(name="a", instructions="Answer.", no_tool_policy=NoToolPolicy.FINISH)
    config = RunConfig(checkpoint_config=CheckpointConfig(store=MemoryStore()), cancellation_token=token)
    runner = Runner(model_provider=ScriptedProvider(["one"]), settings=Settings())
    handle = runner.start(agent, "Hi", run_config=config)
    assert handle.result(10).final_output == "one"
    assert runner.run_sync(agent, "Hi", run_config=config).final_output == "one"
    until(lambda: not token._callbacks, "the token lets go of the handles")
    token.cancel()
    assert handle.state().status == "completed"
