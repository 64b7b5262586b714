"""Wrong types at the front door: each is refused with a code, the thing by its name, what was wrong and what fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vv_agent import (
    AfterCycleDecision,
    Agent,
    ApprovalDecision,
    InteractiveAgentClient,
    MemorySession,
    Message,
    NoToolPolicy,
    Runner,
    function_tool,
)
from vv_agent.errors import ConfigError, RunFinished, VVAgentError
from vv_agent.testing import ScriptedProvider, call

Misuse = Callable[[], Any]


class Weak(MemorySession):
    """A storage that fails while it writes."""

    fails = False

    def add_items(self, items: Any) -> None:
        if self.fails:
            self.fails = False
            raise OSError("no space left")
        super().add_items(items)


@function_tool(needs_approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


AGENT = Agent(name="a", instructions="Work.", tools=[pay], no_tool_policy=NoToolPolicy.FINISH)


def client(*steps: Any) -> InteractiveAgentClient:
    return InteractiveAgentClient(Runner(model_provider=ScriptedProvider(list(steps) or ["done"])))


@pytest.mark.parametrize(
    "wrong", [[Message("user", "new"), {"role": "user"}], "new", 3, [Message("user", "\ud800"), 1]]
)
def test_a_history_that_is_refused_leaves_the_old_one(wrong: Any) -> None:
    session = client().create_session(agent=AGENT)
    session.replace_messages([Message("user", "precious")])
    with pytest.raises(VVAgentError, match="session_item_invalid"):
        session.replace_messages(wrong)
    assert [message.content for message in session.messages] == ["precious"]


def test_a_storage_that_fails_keeps_the_old_history() -> None:
    storage = Weak("t")
    session = client().create_session(agent=AGENT, session=storage)
    session.replace_messages([Message("user", "precious")])
    storage.fails = True
    with pytest.raises(OSError, match="no space left"):
        session.replace_messages([Message("user", "new")])
    assert [message.content for message in session.messages] == ["precious"]


def test_an_approval_of_a_run_in_memory_that_ended_says_so(tmp_path: Path) -> None:
    runner = Runner(model_provider=ScriptedProvider([call("pay"), "done"]), workspace=tmp_path)
    handle = runner.start(AGENT, "go")
    for event in handle.events():
        if event.type == "approval_requested":
            handle.approve(event.request_id, ApprovalDecision.allow())
    assert handle.result().final_output == "done"
    with pytest.raises(RunFinished, match="run_finished"):
        handle.approve("approval_1", ApprovalDecision.allow())


DECISIONS: list[tuple[str, Misuse]] = [
    ("disallow_tools", lambda: AfterCycleDecision.go_on(disallow_tools="pay")),
    ("disallow_tools", lambda: AfterCycleDecision.steer("more", disallow_tools="pay")),
    ("steering_messages.0: .*blank", lambda: AfterCycleDecision.steer(" ")),
    ("steering_messages.0: .*string", lambda: AfterCycleDecision.steer(3)),  # type: ignore[arg-type]
    ("stop.code: .*stop.message: ", lambda: AfterCycleDecision.stop_non_success("", "")),
]


@pytest.mark.parametrize(("told", "misuse"), DECISIONS)
def test_a_wrong_decision_is_named(told: str, misuse: Misuse) -> None:
    with pytest.raises(ConfigError, match=f"after_cycle_decision_invalid: .*{told}"):
        misuse()
