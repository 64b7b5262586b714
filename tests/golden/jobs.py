"""The agents of the golden records. What stands here is named in files of earlier releases: add, do not change.

`python -m tests.golden.jobs FILE` writes such a file anew, for the first release of a format only.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.scenarios.agents import by_agent
from vv_agent import Agent, NoToolPolicy, RunConfig, Runner, build_default_registry, function_tool, handoff
from vv_agent.agent import SubAgentConfig
from vv_agent.testing import ScriptedProvider, call
from vv_agent.workspace.identity import ID_FILE

FINISH = NoToolPolicy.FINISH
WORKSPACE, WORKSPACE_ID = Path("/tmp/vv-agent-golden"), "0123456789abcdef0123456789abcdef"
"""What the records name; `make_workspace` makes it."""


def make_workspace() -> Path:
    """The folder of the runs, with the id that the records know it by."""
    WORKSPACE.mkdir(exist_ok=True)
    (WORKSPACE / ID_FILE).write_text(WORKSPACE_ID)
    return WORKSPACE


@function_tool(idempotency="supported", needs_approval=True)
def publish(title: str) -> str:
    """Publish a page."""
    return f"published {title}"


@function_tool
def launch(pad: str) -> str:
    """Launch a rocket, which cannot be taken back."""
    return f"launched from {pad}"


_finish = build_default_registry().get("task_finish")
_clerk = SubAgentConfig("demo-model", description="Publishes.", system_prompt="Look up.")
tree = Agent(
    name="boss", instructions="Lead.", no_tool_policy=FINISH, tools=[publish, _finish], sub_agents={"clerk": _clerk}
)
tree_models = ScriptedProvider(
    by_agent({
        "Lead.": [
            call("todo_write", {"todos": []}),
            call("create_sub_task", {"agent_id": "clerk", "task_description": "the news"}),
            lambda request: f"heard: {request.messages[-1].content}",
        ],
        "Look up.": [call("publish", {"title": "the news"}), call("task_finish", {"message": "it is out"})],
    })
)  # fmt: skip
lost = Agent(name="rocket", instructions="Launch.", tools=[launch], no_tool_policy=FINISH)
lost_models = ScriptedProvider([call("launch", {"pad": "A"}), "Up."])
_writer = Agent(name="writer", instructions="Write.", no_tool_policy=FINISH)
done = Agent(name="triage", instructions="Route.", handoffs=[handoff(_writer)])
done_models = ScriptedProvider(
    by_agent({"Route.": [call("transfer_to_writer", {"input": "an essay"})], "Write.": ["An essay."]})
)


def start(name: str) -> None:
    """Start a run under its name as key; the process of the tree leaves while it waits for a yes."""
    jobs = importlib.import_module("tests.golden.jobs")
    runner = Runner(model_provider=getattr(jobs, f"{name}_models"), workspace=make_workspace())
    handle = runner.start(getattr(jobs, name), "Go.", run_config=RunConfig(checkpoint_key=name))
    if name == "tree":
        next(event for event in handle.events() if event.type == "approval_requested")
        time.sleep(0.3)
        os._exit(0)
    handle.result()


def make(file: str) -> None:
    """Write the file: a tree that waits, with a word for it unread; a call whose outcome is lost; a finished run."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/runs.db"
        env = {**os.environ, "VV_AGENT_STORE": url, "VV_AGENT_IMPORTS": "tests"}
        here = [sys.executable, "-m", "tests.golden.jobs"]
        command = [sys.executable, "-m", "vv_agent.cli"]
        subprocess.run([*here, "--start", "tree"], env=env, check=True)
        subprocess.run([*here, "--start", "lost"], env={**env, "VV_AGENT_CRASH": "tool:after"}, check=False)
        subprocess.run([*command, "resume", "lost"], env=env, check=False, stdout=subprocess.DEVNULL)
        subprocess.run([*here, "--start", "done"], env=env, check=True)
        subprocess.run([*command, "runs", "steer", "tree", "Be brief."], env=env, check=True)
        subprocess.run([*command, "runs", "export", "tree", "lost", "done", "--out", file], env=env, check=True)


if __name__ == "__main__":
    start(sys.argv[2]) if sys.argv[1] == "--start" else make(sys.argv[1])
