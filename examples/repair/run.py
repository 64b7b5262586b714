"""An agent that reads a small repository, repairs a function and runs its tests, on a folder or in memory.

    python -m examples.repair.run local|memory

The model is scripted, so that it runs without a key; give the runner another provider and the same agent does the same
with a real one. `run_tests` works on any workspace: it copies the files into a fresh folder.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from vv_agent import Agent, RunConfig, Runner, ToolContext, function_tool
from vv_agent.result import RunResult
from vv_agent.testing import ScriptedProvider, call, calls
from vv_agent.workspace import LocalWorkspaceBackend, MemoryWorkspaceBackend, WorkspaceBackend

REPOSITORY = {
    "shop/prices.py": "def total(prices):\n    return sum(prices) - 1\n",
    "shop/__init__.py": "",
    "tests/test_prices.py": (
        "import unittest\n\nfrom shop.prices import total\n\n\nclass Prices(unittest.TestCase):\n"
        "    def test_total(self):\n        self.assertEqual(total([1, 2]), 3)\n"
    ),
}


@function_tool(idempotency="supported", timeout_seconds=60)
def run_tests(context: ToolContext) -> str:
    """Run the unit tests of the repository; gives their output."""
    workspace = context.workspace
    assert workspace is not None
    with tempfile.TemporaryDirectory() as folder:
        for name in workspace.list_files(".", "**/*.py"):
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(workspace.read_bytes(name))
        command = [sys.executable, "-B", "-m", "unittest", "discover", "-s", "tests"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=50, check=False)
    return f"exit code {done.returncode}\n{done.stderr[-2000:]}"


MODEL = ScriptedProvider(
    [
        calls(("find_files", {"glob": "**/*.py"}), ("run_tests", {})),
        call("read_file", {"path": "shop/prices.py"}),
        call(
            "edit_file",
            {"path": "shop/prices.py", "old_string": "sum(prices) - 1", "new_string": "sum(prices)"},
        ),
        call("run_tests"),
        call("task_finish", {"message": "total() was one too low; it is repaired and the tests pass."}),
    ]
)
REPAIRER = Agent(
    name="repairer", tools=[run_tests],
    instructions="Find out why the tests of the repository fail, repair the code, and run the tests again.",
)  # fmt: skip


def repair(workspace: WorkspaceBackend) -> RunResult:
    """Put the broken repository into the workspace and let the agent repair it."""
    for name, text in REPOSITORY.items():
        workspace.write_text(name, text)
    config = RunConfig(workspace_backend=workspace)
    return Runner(model_provider=MODEL).run_sync(REPAIRER, "The tests fail. Repair the shop.", run_config=config)


def main(kind: str = "local") -> None:
    with tempfile.TemporaryDirectory() as folder:
        workspace = MemoryWorkspaceBackend() if kind == "memory" else LocalWorkspaceBackend(folder)
        result = repair(workspace)
        for cycle in result.cycles:
            for asked, answered in zip(cycle.tool_calls, cycle.tool_results, strict=True):
                print(f"{cycle.index}  {asked.name:11}  {answered.content.strip().splitlines()[0][:90]}")
        print(f"{result.status}: {result.final_output}")


if __name__ == "__main__":
    main(*sys.argv[1:])
