"""Wrong types at the front door: each is refused with a code, the thing by its name, what was wrong and what fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vv_agent import (
    AfterCycleDecision,
    Agent,
    AgentRuntime,
    AgentTask,
    ApprovalDecision,
    CheckpointConfig,
    Handoff,
    InteractiveAgentClient,
    MemorySession,
    Message,
    NoToolPolicy,
    OutputValidation,
    RunConfig,
    Runner,
    SubAgentConfig,
    ToolPolicy,
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


def fails(*_: Any) -> Any:
    raise RuntimeError("boom")


class Agrees:
    def check(self, context: Any, given: Any) -> Any:
        return True


def agent(**options: Any) -> Agent:
    return Agent(**{"name": "a", "instructions": "Work.", "no_tool_policy": "finish", **options})


def run(who: Agent, config: Any = None) -> Any:
    return Runner(model_provider=ScriptedProvider(["done"])).run_sync(who, "go", run_config=config)


RUN_CONFIG: dict[str, Any] = {
    "interruption_messages": 3, "before_cycle_messages": 3, "memory_providers": "m", "stream": 3, "hooks": "h",
    "reconciliation_provider": object(), "cancellation_token": "t", "tool_policy": "pay", "model": 3,
    "model_provider": object(), "initial_messages": ["hello"], "model_settings": {"temperature": 1},
    "tool_registry_factory": 3,
}  # fmt: skip
AGENTS: dict[str, Any] = {
    "sub_agents": ["b"], "no_tool_policy": "finsh", "instructions": 4, "output_validation": "x",
    "handoffs": "writer", "stop_at_tool_names": "add", "hooks": "h", "model_settings": {}, "tool_policy": "x",
}  # fmt: skip
CASES: list[tuple[str, str, Misuse]] = [
    *[("run_config_invalid", name, lambda n=name, v=value: RunConfig(**{n: v})) for name, value in RUN_CONFIG.items()],
    *[("agent_invalid", name, lambda n=name, v=value: agent(**{n: v})) for name, value in AGENTS.items()],
    ("agent_invalid", "id of a sub-agent .* 1", lambda: agent(sub_agents={1: SubAgentConfig("m")})),
    ("agent_invalid", "instructions function .*boom", lambda: run(agent(instructions=fails))),
    (
        "run_config_invalid",
        "tool_registry_factory .*boom",
        lambda: run(agent(), RunConfig(tool_registry_factory=fails)),
    ),
    ("sub_agent_invalid", "exclude_tools", lambda: SubAgentConfig("m", exclude_tools=[3])),  # type: ignore[list-item]
    ("sub_agent_invalid", "denied_side_effects", lambda: SubAgentConfig("m", denied_side_effects=["netwrk"])),
    ("sub_agent_invalid", "'exclude_tols'; did you", lambda: SubAgentConfig("m", exclude_tols=[])),  # type: ignore[call-arg]
    ("tool_policy_invalid", "'alowed_tools'; did you", lambda: ToolPolicy(alowed_tools=[])),  # type: ignore[call-arg]
    ("output_validation_invalid", "'validater'; did", lambda: OutputValidation(validater=3)),  # type: ignore[call-arg]
    ("run_config_invalid", "'taskid'; did you", lambda: AgentTask(taskid="x")),  # type: ignore[call-arg]
    ("run_config_invalid", "model_provider", lambda: Runner(model_provider=object())),  # type: ignore[arg-type]
    ("run_config_invalid", "run_config", lambda: run(agent(), {"max_cycles": 3})),
    ("run_config_invalid", "AgentTask", lambda: AgentRuntime(fails).run("t")),  # type: ignore[arg-type]
    ("run_config_invalid", "InteractiveAgentClient", lambda: InteractiveAgentClient("x")),  # type: ignore[arg-type]
    ("run_config_invalid", "agent of a session", lambda: client().create_session(agent="a")),  # type: ignore[arg-type]
    ("session_invalid", "session of", lambda: client().create_session(agent=AGENT, session="x")),  # type: ignore[arg-type]
    ("session_invalid", "state", lambda: client().create_session(agent=AGENT).replace_shared_state(3)),  # type: ignore[arg-type]
    ("session_invalid", "listener", lambda: client().create_session(agent=AGENT).subscribe(3)),  # type: ignore[arg-type]
    ("hook_invalid", "input_guardrails .* check", lambda: run(agent(input_guardrails=[object()]))),
    ("tool_invalid", "'a b!'", lambda: Handoff(AGENT, tool_name="a b!")),
    ("tool_invalid", "'hello world!'", lambda: AGENT.as_tool(name="hello world!")),
]


@pytest.mark.parametrize(("code", "told", "misuse"), CASES)
def test_a_wrong_type_is_named(code: str, told: str, misuse: Misuse) -> None:
    with pytest.raises(ConfigError, match=f"(?s){told}") as refused:
        misuse()
    assert refused.value.code == code
    assert refused.value.__cause__ is None or "boom" in str(refused.value)


def test_a_guardrail_of_the_input_that_gives_no_result_is_named() -> None:
    result = run(agent(input_guardrails=[Agrees()]))
    assert "Agrees gave bool, not a GuardrailResult or None" in str(result.raw_result.error)


def test_the_tool_of_an_agent_has_a_name_that_providers_take() -> None:
    assert agent(name="Research & Writing").as_tool().name == "Research_Writing"
    assert agent(name="\u4f5c\u8005").as_background_task().name == "agent_background_task"
    assert len(Handoff(agent(name="a" * 90)).tool_name) == 64


def test_a_key_whose_run_waits_takes_no_other_run(tmp_path: Path) -> None:
    from vv_agent.checkpoint.memory import MemoryStore
    from vv_agent.errors import CheckpointError

    store = MemoryStore()
    asking = agent(no_tool_policy="wait_user")
    config = RunConfig(checkpoint_config=CheckpointConfig(key="k", resume_policy="resume_if_present", store=store))  # type: ignore[arg-type]
    runner = Runner(model_provider=ScriptedProvider(["which?"]), workspace=tmp_path)
    assert runner.run_sync(asking, "go", run_config=config).status == "wait_user"
    for who, text in ((asking, "another"), (agent(name="b", no_tool_policy="wait_user"), "go")):
        with pytest.raises(CheckpointError, match="checkpoint_definition_mismatch"):
            runner.run_sync(who, text, run_config=config)
    assert runner.run_sync(asking, "go", run_config=config).status == "wait_user"


def test_a_denial_on_the_command_line_needs_a_reason() -> None:
    from vv_agent.cli import runs

    with pytest.raises(ConfigError, match="usage_invalid: --deny needs a reason"):
        runs.approve("k", "approval_1", allow=False, allow_session=False, deny=" ", as_json=False)
