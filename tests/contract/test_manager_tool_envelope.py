"""manager_tool_envelope.json: what `create_sub_task` and `sub_task_status` give the model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.scenarios.agents import by_agent
from vv_agent import Agent, NoToolPolicy, RunConfig, Runner, function_tool
from vv_agent.agent import SubAgentConfig
from vv_agent.errors import LlmError
from vv_agent.results import ToolStatus
from vv_agent.runtime.sub_runs import failed_outcome
from vv_agent.runtime.sub_task_results import outcomes
from vv_agent.testing import ScriptedProvider, call
from vv_agent.tools.base import SubTaskQuery

FIXTURE = load("manager_tool_envelope.json")
ONE_ID = "a task has one id here, that of its record: no manager keeps it under another"
LIVE = "there are no listeners of a live session: who follows a run reads its record"
CASES = Cases(
    "manager_tool_envelope.json",
    differs={
        "listener_identity": LIVE,
        "pending_interaction_previous_status": "work runs from its creation on: there is no pending state",
        "manager_outcome/lookup": ONE_ID,
    },
)
RESEARCH = {"agent_id": "researcher", "task_description": "Research"}


@function_tool(idempotency="supported", needs_approval=True)
def dangerous() -> str:
    """Do something dangerous."""
    return "done"


def run(*steps: Any, work: Any = "never", **more: Any) -> Any:
    """A run whose agent makes these calls, and whose sub-agent works by a script."""
    config = SubAgentConfig("demo-model", system_prompt="Research.")
    agent = Agent(
        name="boss", instructions="Lead.", no_tool_policy=NoToolPolicy.FINISH, sub_agents={"researcher": config},
        tools=[dangerous], **more,
    )  # fmt: skip
    script = by_agent({"Lead.": [*steps, "Done."], "Research.": work if isinstance(work, list) else [work]})
    return Runner(model_provider=ScriptedProvider(script)).run_sync(agent, "Go.", run_config=RunConfig())


def told(result: Any) -> list[Any]:
    """The results of its calls."""
    return [given for cycle in result.raw_result.cycles for given in cycle.tool_results]


def cases(name: str) -> Any:
    return pytest.mark.parametrize("case", FIXTURE[name], ids=lambda case: case["name"])


@cases("create_error_cases")
def test_wrong_arguments_are_told(case: Any) -> None:
    with CASES.run(f"create_error_cases/{case['name']}"):
        (given,) = told(run(call("create_sub_task", case["arguments"])))
        assert json.loads(given.content) == case["expected"]


@cases("status_success_cases")
def test_a_status(case: Any) -> None:
    with CASES.run(f"status_success_cases/{case['name']}"):
        (given,) = told(run(call("sub_task_status", case["arguments"])))
        assert (given.status_code, json.loads(given.content)) == (ToolStatus.SUCCESS, case["expected"])


@cases("status_error_cases")
def test_a_status_that_fails(case: Any) -> None:
    with CASES.run(f"status_error_cases/{case['name']}"):
        (given,) = told(run(call("sub_task_status", case["arguments"])))
        assert (given.status_code, json.loads(given.content)) == (ToolStatus.ERROR, case["expected"])


def test_an_early_error_says_its_code_twice() -> None:
    with CASES.run("early_error_metadata_matches_content"):
        assert FIXTURE["early_error_metadata_matches_content"]
        (given,) = told(run(call("create_sub_task", {"agent_id": "researcher"})))
        code = json.loads(given.content)["error_code"]
        assert (given.error_code, given.metadata["error_code"]) == (code, code)


def test_work_that_failed_has_the_code_of_the_contract() -> None:
    result = run(call("create_sub_task", RESEARCH), work=LlmError("invalid_request", "child failed", definite=True))
    (given,) = told(result)
    with CASES.run("failed_outcome_error_code"):
        (never,) = told(run(call("create_sub_task", {**RESEARCH, "agent_id": "nobody"})))
        assert never.error_code == FIXTURE["failed_outcome_error_code"]
    with CASES.run("sync_failed_outcome"):
        wanted = FIXTURE["sync_failed_outcome"]["expected"]
        outcome = {**failed_outcome("failed-child", "researcher", "child failed"), "partial_output": "last child draft"}
        enveloped = outcomes("call", "single", [outcome])
        assert json.loads(enveloped.content) == wanted
        assert (enveloped.error_code, enveloped.status_code) == ("sub_task_failed", ToolStatus.ERROR)
    assert "child failed" in json.loads(given.content)["error"]


def test_work_that_waits_for_its_user() -> None:
    from vv_agent.llm.base import ModelResponse
    from vv_agent.messages import ToolCall

    asks = ModelResponse("proposed change", (ToolCall("call_1", "dangerous", "{}"),))
    result = run(call("create_sub_task", RESEARCH), ask_about, work=asks)
    created, asked = told(result)
    wait = FIXTURE["sync_wait_outcome"]
    with CASES.run("sync_wait_outcome"):
        outcome, wanted = json.loads(created.content), wait["expected"]
        fixed = ("task_id", "session_id", "resolved", "wait_reason", "cycles")
        assert {**outcome, **{name: wanted[name] for name in fixed}} == wanted
        assert "dangerous" in outcome["wait_reason"]
        assert created.error_code == wait["sync_single_tool_envelope_error_code"]
    with CASES.run("sync_wait_outcome/manager_status_error_code_field"):
        (row,) = json.loads(asked.content)["tasks"]
        assert (row["status"], "error_code" in row) == ("wait_user", False)
    with CASES.run("sync_wait_outcome/sub_run_event_error_code_field"):
        ended = next(event for event in result.events if event.type == "sub_run_completed")
        assert "error_code" not in ended.metadata


def ask_about(request: Any) -> Any:
    (outcome,) = [json.loads(m.content) for m in request.messages if m.role == "tool" and "task_id" in m.content]
    return call("sub_task_status", {"task_ids": [f"  {outcome['task_id']} "], "detail_level": "snapshot"})


def test_an_entry_of_work_that_failed() -> None:
    failing = LlmError("invalid_request", "文" * 300, definite=True)
    result = run(call("create_sub_task", {**RESEARCH, "task_description": "文" * 300}), ask_about, work=failing)
    (row,) = json.loads(told(result)[1].content)["tasks"]
    wanted = FIXTURE["manager_outcome"]["status_entry"]
    with CASES.run("manager_outcome/status_entry"):
        assert row.keys() >= wanted.keys()
        assert (row["agent_name"], row["status"], row["task_id"]) == ("researcher", "failed", row["session_id"])
    with CASES.run("manager_outcome/lookup"):
        assert FIXTURE["manager_outcome"]["lookup_task_id"] == FIXTURE["manager_outcome"]["outcome_task_id"]
    with CASES.run("manager_outcome/unicode_preview"):
        assert row["snapshot"]["task_title"] == "文" * 240 + "..."
    with CASES.run("status_envelope"):
        assert all(row[name] for name in FIXTURE["status_envelope"]["lineage_fields"])
        assert "recent_activity" not in row["snapshot"]
    for name in ("listener_identity", "pending_interaction_previous_status"):
        CASES.show(name)


def test_what_work_came_to_is_hidden_while_it_works() -> None:
    seen: list[Any] = []

    def look(request: Any) -> Any:
        (begun,) = [json.loads(m.content) for m in request.messages if '"running"' in m.content]
        return call("sub_task_status", {"task_ids": [begun["task_id"]]})

    def slow(request: Any) -> Any:
        request.cancellation.wait(20)
        return "late"

    begin = call("create_sub_task", {**RESEARCH, "wait_for_completion": False})
    seen = told(run(begin, look, work=slow))
    with CASES.run("worker_visibility"):
        (row,) = json.loads(seen[1].content)["tasks"]
        assert row["status"] == "running"
        assert not row.keys() & {"final_answer", "error", "cycles", "completion_reason"}
        assert json.loads(seen[1].content)["running_task_ids"] == [row["task_id"]]


def test_the_order_of_the_checks() -> None:
    order = FIXTURE["validation"]
    with CASES.run("validation"):
        assert order["semantic_priority"][1:] == ["agent_id_non_empty", "payload_mode", "exclude_pattern_semantics"]
        wrong = {"agent_id": " ", "exclude_files_pattern": "a**"}
        codes = [
            told(run(call("create_sub_task", arguments)))[0].error_code
            for arguments in (wrong, {**wrong, "agent_id": "researcher"}, {**wrong, **RESEARCH})
        ]
        assert codes == ["agent_id_required", "sub_task_payload_missing", "invalid_exclude_files_pattern"]
    with CASES.run("validation/batch_item_shape"):
        (given,) = told(run(call("create_sub_task", {"agent_id": "researcher", "tasks": [{"x": 1}]})))
        assert given.status_code is ToolStatus.ERROR
    with CASES.run("validation/top_level_output_requirements_scope"):
        heard: list[str] = []

        def work(request: Any) -> Any:
            heard.append(request.messages[-1].content)
            return call("task_finish", {"message": "done"})

        batch = {"agent_id": "researcher", "tasks": [{"task_description": "one"}], "output_requirements": "JSON"}
        run(call("create_sub_task", batch), work=work)
        assert heard == ["one"]


def test_every_name_of_the_fixture_has_a_test() -> None:
    assert SubTaskQuery.__slots__
    names = {name.partition("/")[0] for name in CASES.ran | CASES.aside}
    assert FIXTURE.keys() <= names | {"version"}
