"""Work given to other agents: runs below a run, in every place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness import until
from tests.scenarios.agents import by_agent, heard
from tests.scenarios.conftest import Bench
from vv_agent import (
    Agent,
    ApprovalDecision,
    GuardrailResult,
    NoToolPolicy,
    RunConfig,
    Runner,
    ToolPolicy,
    function_tool,
)
from vv_agent.agent import SubAgentConfig
from vv_agent.budget import RunBudgetLimits
from vv_agent.checkpoint.record import Filter
from vv_agent.errors import ConfigError
from vv_agent.testing import ScriptedProvider, call, calls
from vv_agent.tool_metadata import ToolMetadata, ToolSideEffect

FINISH = NoToolPolicy.FINISH


@function_tool(tool_metadata=ToolMetadata(ToolSideEffect.NETWORK))
def fetch(url: str) -> str:
    """Fetch a page."""
    return f"<{url}>"


@function_tool(idempotency="supported", needs_approval=True)
def publish(title: str) -> str:
    """Publish a page."""
    return f"published {title}"


def boss(*tools: Any, **more: Any) -> Agent:
    worker = SubAgentConfig("demo-model", description="Looks things up.", system_prompt="Look up.")
    return Agent(
        name="boss",
        instructions="Lead.",
        no_tool_policy=FINISH,
        tools=list(tools),
        sub_agents={"clerk": worker},
        **more,
    )


def finish(answer: str = "") -> Any:
    """A step that finishes with the task it was given, or with an answer."""
    return lambda request: call("task_finish", {"message": answer or f"found {request.messages[-1].content}"})


def give(*tasks: str, **more: Any) -> Any:
    return call("create_sub_task", {"agent_id": "clerk", "tasks": [{"task_description": t} for t in tasks], **more})


SAID = heard(lambda said: said)


@pytest.mark.feature("sub-agents")
def test_a_batch_fans_out_and_joins(bench: Bench) -> None:
    script = by_agent({"Lead.": [give("a", "b", "c"), SAID], "Look up.": [finish()]})
    result = bench.run(boss(), script, key="k")
    answer = json.loads(str(result.final_output))
    assert answer["summary"] == {"total": 3, "completed": 3, "failed": 0}
    assert [row["final_answer"] for row in answer["results"]] == ["found a", "found b", "found c"]
    started = [e for e in result.events if e.type == "sub_run_started"]
    ended = [e for e in result.events if e.type == "sub_run_completed"]
    assert (len(started), len(ended)) == (3, 3)
    assert {e.parent_run_id for e in (*started, *ended)} == {result.run_id}
    assert {e.run_id for e in started} == {e.run_id for e in ended}
    assert {e.status for e in ended} == {"completed"}
    assert {e.type for e in result.events if e.run_id == started[0].run_id} >= {"cycle_started", "tool_call_completed"}
    tree = bench.store.find(Filter(root_key="k"))
    assert sorted(head.status for head in tree) == ["completed"] * 4


@pytest.mark.feature("sub-agents")
def test_calls_of_one_batch_wait_side_by_side_and_answer_in_order(bench: Bench) -> None:
    one = ("create_sub_task", {"agent_id": "clerk", "task_description": "first"})
    other = ("create_sub_task", {"agent_id": "clerk", "task_description": "second"})
    script = by_agent({
        "Lead.": [calls(one, ("todo_write", {"todos": []}), other), "Done."], "Look up.": [finish()],
    })  # fmt: skip
    result = bench.run(boss(), script)
    assert result.final_output == "Done."
    answers = [json.loads(message.content) for message in result.messages if message.role == "tool"]
    assert [answer.get("final_answer", answer.get("action")) for answer in answers] == [
        "found first", "write", "found second",
    ]  # fmt: skip


@pytest.mark.feature("sub-agents")
def test_work_in_the_background_is_asked_about_and_told_more(bench: Bench) -> None:
    def status(**more: Any) -> Any:
        def step(request: Any) -> Any:
            (begun,) = [json.loads(m.content) for m in request.messages if 'wait_for_completion": false' in m.content]
            return call("sub_task_status", {"task_ids": [begun["task_id"]], **more})

        return step

    script = by_agent({
        "Lead.": [
            call("create_sub_task", {"agent_id": "clerk", "task_description": "x", "wait_for_completion": False}),
            status(wait_for_completion=True), status(message="and y", wait_for_response=True), SAID,
        ],
        "Look up.": [finish("x is here"), finish("y too")],
    })  # fmt: skip
    result = bench.run(boss(), script)
    told = [json.loads(message.content) for message in result.messages if message.role == "tool"]
    assert (told[0]["status"], told[1]["tasks"][0]["final_answer"]) == ("running", "x is here")
    assert told[2]["interaction"] == {"action": "continued", "previous_status": "completed"}
    assert told[2]["tasks"][0]["final_answer"] == "y too"
    assert told[2]["tasks"][0]["task_id"] == told[0]["task_id"]


@pytest.mark.feature("sub-agents")
def test_an_agent_is_a_tool(bench: Bench) -> None:
    expert = Agent(name="expert", instructions="Know.", no_tool_policy=FINISH)
    asking = Agent(name="boss", instructions="Lead.", no_tool_policy=FINISH, tools=[expert.as_tool()])
    script = by_agent({"Lead.": [call("expert", {"task_description": "why"}), SAID], "Know.": ["because"]})
    result = bench.run(asking, script)
    assert result.final_output == "because"
    assert [e.agent_name for e in result.events if e.type == "sub_run_completed"] == ["expert"]


@pytest.mark.feature("sub-agents")
def test_what_works_in_the_background_ends_with_the_run(bench: Bench) -> None:
    slow = Agent(name="slow", instructions="Wait.", no_tool_policy=NoToolPolicy.CONTINUE)
    asking = Agent(name="boss", instructions="Lead.", no_tool_policy=FINISH, tools=[slow.as_background_task()])
    script = by_agent({
        "Lead.": [call("slow_background_task", {"task_description": "x"}), "Done."], "Wait.": ["still at it"] * 38,
    })  # fmt: skip
    result = bench.run(asking, script, key="k", max_cycles=30)
    assert result.final_output == "Done."

    def tree() -> list[str]:
        return sorted(head.state for head in bench.store.find(Filter(root_key="k")))

    until(lambda: tree() == ["ended", "ended"], "both runs are over")


@pytest.mark.feature("sub-agents")
def test_an_approval_below_is_decided_through_the_run(bench: Bench) -> None:
    script = by_agent({
        "Lead.": [call("create_sub_task", {"agent_id": "clerk", "task_description": "x"}), SAID],
        "Look up.": [call("publish", {"title": "x"}), finish("done")],
    })  # fmt: skip
    handle = bench.start(boss(publish), script, key="k")
    for event in handle.events():
        if event.type == "approval_requested":
            assert event.agent_name == "clerk"
            handle.approve(event.request_id, ApprovalDecision.allow())
    result = handle.result(20)
    assert json.loads(str(result.final_output))["final_answer"] == "done"
    assert "published x" in [m.content for m in SubHistory(bench, "k").messages]


class SubHistory:
    """The messages of the only run below another one."""

    def __init__(self, bench: Bench, key: str) -> None:
        from vv_agent.runtime.sub_runs import SubRun

        (below,) = [head for head in bench.store.find(Filter(root_key=key)) if head.parent_key == key]
        self.messages = SubRun(bench.store, below.key).transcript.history


@pytest.mark.feature("sub-agents")
def test_a_cancel_ends_the_whole_tree(bench: Bench) -> None:
    script = by_agent({"Lead.": [give("a", "b"), SAID], "Look up.": [finish()]})
    handle = bench.runner(script, delay=30.0).start(boss(), "Go.", run_config=bench.config("k"))
    until(lambda: bench.store.look("k"), "the run is there")
    assert handle.cancel("enough")
    result = handle.result(20)
    assert (result.completion_reason, result.raw_result.error) == ("cancelled", "enough")


@pytest.mark.feature("sub-agents")
def test_the_budget_counts_for_the_tree(bench: Bench) -> None:
    limits = RunBudgetLimits(max_tool_calls=3)
    script = by_agent({
        "Lead.": [call("create_sub_task", {"agent_id": "clerk", "task_description": "x"}), SAID],
        "Look up.": [call("todo_write", {"todos": []}), call("todo_write", {"todos": []}), finish("never")],
    })  # fmt: skip
    result = bench.run(boss(), script, budget_limits=limits)
    assert result.budget_usage is not None
    assert result.budget_usage.tool_calls == 3
    outcome = next(json.loads(m.content) for m in result.messages if m.role == "tool")
    assert (outcome["status"], outcome["completion_reason"]) == ("failed", "budget_exhausted")


def run_inline(agent: Agent, script: Any, **config: Any) -> Any:
    return Runner(model_provider=ScriptedProvider(script)).run_sync(agent, "Go.", run_config=RunConfig(**config))


def test_a_worker_may_do_no_more_than_the_run() -> None:
    script = by_agent({
        "Lead.": [call("create_sub_task", {"agent_id": "clerk", "task_description": "x"}), SAID],
        "Look up.": [call("fetch", {"url": "u"}), heard(lambda said: said)],
    })  # fmt: skip
    denied = boss(fetch, tool_policy=ToolPolicy(denied_side_effects=["network"]))
    result = run_inline(denied, script, max_cycles=3)
    assert "tool_not_allowed" in [e.error_code for e in result.events if e.type == "tool_call_completed"]


def test_what_is_wrong_with_the_work_is_told_to_the_model() -> None:
    broken = SubAgentConfig("demo-model", system_prompt=" ")
    agent = Agent(name="boss", instructions="Lead.", no_tool_policy=FINISH, sub_agents={"broken": broken})
    steps = [
        call("create_sub_task", {"agent_id": "broken", "task_description": "x"}),
        call("create_sub_task", {"agent_id": "nobody", "task_description": "x"}),
        call("sub_task_status", {"task_ids": ["unknown"]}),
        call("sub_task_status", {"task_ids": ["unknown"], "message": "hello"}),
        "Done.",
    ]
    result = run_inline(agent, by_agent({"Lead.": steps}))
    told = [json.loads(m.content) for m in result.messages if m.role == "tool"]
    assert (told[0]["error_code"], told[0]["status"]) == ("invalid_sub_agent_system_prompt", "failed")
    assert told[1]["error"] == "Unknown sub-agent: nobody"
    assert told[2]["tasks"] == [{"task_id": "unknown", "status": "missing", "error": "Sub-task unknown not found."}]
    assert (told[3]["error_code"], told[3]["details"]) == ("sub_task_not_found", {"task_id": "unknown"})
    pair = [e for e in result.events if e.type.startswith("sub_run")]
    assert [(e.type, e.status) for e in pair] == [("sub_run_started", "running"), ("sub_run_completed", "failed")]


def test_an_agent_is_no_tool_of_itself() -> None:
    one = Agent(name="one", instructions="x")
    two = Agent(name="two", instructions="y", tools=[one.as_tool()])
    one.tools = [two.as_tool()]
    with pytest.raises(ConfigError, match="an agent is a tool of itself: one -> two -> one"):
        run_inline(one, ["x"])


def test_ids_and_configs_are_checked() -> None:
    with pytest.raises(ConfigError, match="sub-agent id cannot be empty"):
        Agent(name="a", instructions="x", sub_agents={" \x1c": SubAgentConfig("m")})
    with pytest.raises(ConfigError, match="duplicate sub-agent id after normalization: b"):
        Agent(name="a", instructions="x", sub_agents={"b": SubAgentConfig("m"), " b": SubAgentConfig("m")})
    with pytest.raises(ConfigError, match="max_cycles of a sub-agent must be a whole number from 0, not -1"):
        SubAgentConfig("m", max_cycles=-1)


class Strict:
    """Lets no input pass that names a secret."""

    def check(self, context: Any, text: str) -> GuardrailResult:
        return GuardrailResult.block("no secrets") if "secret" in text else GuardrailResult.allow(text)


def test_the_guardrails_of_an_agent_judge_the_work_it_is_given() -> None:
    expert = Agent(name="expert", instructions="Know.", no_tool_policy=FINISH, input_guardrails=[Strict()])
    asking = Agent(name="boss", instructions="Lead.", no_tool_policy=FINISH, tools=[expert.as_tool()])
    script = by_agent({
        "Lead.": [
            call("expert", {"task_description": "a secret"}), call("expert", {"task_description": "a fact"}), "Done.",
        ],
        "Know.": ["so it is"],
    })  # fmt: skip
    result = run_inline(asking, script)
    told = [message.content for message in result.messages if message.role == "tool"]
    assert json.loads(told[0])["error"] == "no secrets"
    assert told[1] == "so it is"
