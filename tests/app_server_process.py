"""A server process for tests: `python -m tests.app_server_process [--store PATH] [--script NAME]`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from vv_agent import Agent, AppServer, DefaultAppServerHost, NoToolPolicy, RunConfig, Runner, function_tool
from vv_agent.app_server import StdioJsonlTransport, open_thread_store
from vv_agent.checkpoint.config import CheckpointConfig
from vv_agent.checkpoint.store import open_store
from vv_agent.testing import ScriptedProvider, call


@function_tool(needs_approval=True, idempotency="supported")
def launch(pad: str) -> str:
    """Launch a rocket."""
    print("this is not of the protocol")
    return f"launched from {pad}"


@function_tool(idempotency="supported")
def note(text: str) -> str:
    """Note a text."""
    return f"noted {text}"


SCRIPTS: dict[str, tuple[list[Any], float]] = {
    "answer": ([lambda request: f"You said: {request.messages[-1].content}"], 0.0),
    "tool": ([call("note", {"text": "a"}), "Done."], 0.0),
    "launch": ([call("launch", {"pad": "A"}), "Launched."], 0.0),
    "long": (["word " * 4_000], 0.0),
    "slow": ([call("note", {"text": "a"}), call("note", {"text": "b"}), call("note", {"text": "c"}), "Done."], 0.6),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store")
    parser.add_argument("--script", default="answer")
    options = parser.parse_args()
    steps, delay = SCRIPTS[options.script]
    agent = Agent(
        name="assistant", instructions="Test.", tools=[launch, note], no_tool_policy=NoToolPolicy.FINISH
    )  # fmt: skip
    config = RunConfig()
    if options.store:
        config = RunConfig(checkpoint_config=CheckpointConfig(store=open_store(f"sqlite:///{options.store}-runs")))
    server = AppServer(
        DefaultAppServerHost(agent, config), store=open_thread_store(options.store),
        transport=StdioJsonlTransport.taking_over(), runner=Runner(model_provider=ScriptedProvider(steps, delay=delay)),
    )  # fmt: skip
    server.run_forever()
    sys.stderr.write("the server has ended\n")


if __name__ == "__main__":
    main()
