"""Hand-offs: another agent goes on with the run, in every place, as a segment of the same record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.agents import by_agent, heard
from tests.scenarios.conftest import Bench
from vv_agent import Agent, GuardrailResult, NoToolPolicy, RunConfig, Runner, ToolPolicy, function_tool, handoff
from vv_agent.agent import Handoff
from vv_agent.errors import ConfigError
from vv_agent.hooks import AfterToolCallEvent, RuntimeHook
from vv_agent.results import ToolExecutionResult
from vv_agent.sessions import SqliteSession
from vv_agent.testing import ScriptedProvider, call
from vv_agent.tool_metadata import ToolMetadata, ToolSideEffect

FINISH = NoToolPolicy.FINISH


@function_tool(tool_metadata=ToolMetadata(ToolSideEffect.NETWORK))
def fetch(url: str) -> str:
    """Fetch a page."""
    return f"<{url}>"


def team(**more: Any) -> Agent:
    writer = Agent(name="writer", instructions="Write.", no_tool_policy=FINISH, tools=[fetch])
    editor = Agent(name="chief editor", instructions="Edit.", no_tool_policy=FINISH, handoffs=[writer])
    return Agent(name="triage", instructions="Route.", handoffs=[handoff(editor, metadata={"desk": 7})], **more)


SCRIPT = by_agent({
    "Route.": [call("transfer_to_chief_editor", {"input": "an essay"})],
    "Edit.": [call("transfer_to_writer", {"input": "write this"})],
    "Write.": [heard(lambda said: f"wrote: {said}")],
})  # fmt: skip


@pytest.mark.feature("hand-offs")
def test_the_last_agent_of_a_chain_answers(bench: Bench) -> None:
    seen: list[Any] = []
    result = bench.run(team(), SCRIPT, key="k", stream=seen.append)
    assert (result.status, result.final_output, result.agent_name) == ("completed", "wrote: write this", "writer")
    told = [(e.type, e.agent_name) for e in result.events if e.type in ("run_started", "run_completed")]
    assert told == [
        ("run_started", "triage"), ("run_completed", "triage"), ("run_started", "chief editor"),
        ("run_completed", "chief editor"), ("run_started", "writer"), ("run_completed", "writer"),
    ]  # fmt: skip
    moves = [e for e in result.events if e.type.startswith("handoff")]
    assert [(e.type, e.source_agent, e.target_agent, e.status) for e in moves] == [
        ("handoff_started", "triage", "chief editor", "started"),
        ("handoff_completed", "triage", "chief editor", "completed"),
        ("handoff_started", "chief editor", "writer", "started"),
        ("handoff_completed", "chief editor", "writer", "completed"),
    ]
    assert moves[1].metadata["desk"] == 7
    assert (moves[1].metadata["chain_continues"], moves[3].metadata["chain_continues"]) == (True, False)
    assert len({e.run_id for e in result.events}) == 3
    assert {e.trace_id for e in result.events} == {result.trace_id}
    assert moves[3].child_run_id == result.run_id
    again = bench.runner(SCRIPT).resume("k", store=bench.store)
    assert (again.final_output, again.agent_name) == ("wrote: write this", "writer")


@pytest.mark.feature("hand-offs")
def test_the_target_is_shown_its_own_prompt_and_the_input_and_the_session(bench: Bench, tmp_path: Path) -> None:
    session = SqliteSession(tmp_path / "s.db", "t")
    shown: list[list[tuple[str, str]]] = []

    def write(request: Any) -> str:
        shown.append([(message.role, message.content) for message in request.messages])
        return "done"

    script = by_agent({
        "Route.": [call("transfer_to_chief_editor", {"input": "an essay"})], "Edit.": [write, write],
    })  # fmt: skip
    assert bench.run(team(), script, "Go.", session=session).final_output == "done"
    assert shown[0][0] == ("system", "Edit.")
    assert shown[0][-1] == ("user", "an essay")
    assert ("user", "Go.") in shown[0]
    assert [item.role for item in session.get_items()] == ["user", "assistant", "tool", "user", "assistant"]


@pytest.mark.feature("hand-offs")
def test_the_target_may_not_do_what_the_source_may_not(bench: Bench) -> None:
    denied = ToolPolicy(denied_side_effects=["network"])
    script = by_agent({
        "Route.": [call("transfer_to_chief_editor", {"input": "an essay"})],
        "Edit.": [call("transfer_to_writer", {"input": "write this"})],
        "Write.": [call("fetch", {"url": "u"}), heard(lambda said: said)],
    })  # fmt: skip
    result = bench.run(team(tool_policy=denied), script)
    assert "not allowed" in str(result.final_output)


def run_inline(agent: Agent, script: Any, **config: Any) -> Any:
    return Runner(model_provider=ScriptedProvider(script)).run_sync(agent, "Go.", run_config=RunConfig(**config))


def test_a_run_is_handed_over_a_limited_number_of_times() -> None:
    ping = Agent(name="ping", instructions="Ping.")
    pong = Agent(name="pong", instructions="Pong.", handoffs=[ping])
    ping.handoffs = [pong]
    script = by_agent({
        "Ping.": [call("transfer_to_pong", {"input": "x"})], "Pong.": [call("transfer_to_ping", {"input": "x"})],
    })  # fmt: skip
    result = run_inline(ping, script)
    assert (result.status, result.raw_result.error) == ("failed", "maximum handoff depth exceeded")
    assert sum(event.type == "handoff_started" for event in result.events) == 10
    none = run_inline(ping, script, max_handoffs=0)
    assert (none.status, none.agent_name) == ("failed", "ping")


def test_a_blank_input_is_refused_and_the_agent_goes_on() -> None:
    script = by_agent({"Route.": [call("transfer_to_chief_editor", {"input": "  "}), heard(lambda said: said)]})
    result = run_inline(team(), script, no_tool_policy=FINISH)
    assert (result.status, result.agent_name) == ("completed", "triage")
    assert "invalid_handoff_arguments" in str(result.final_output)


def test_names_of_tools_and_agents() -> None:
    someone = Agent(name="Größe & Co (2)", instructions="x")
    assert Handoff(someone).tool_name == "transfer_to_gr_e_co_2"
    assert Handoff(Agent(name="???", instructions="x")).tool_name == "transfer_to_agent"
    assert Handoff(someone).shown_description == "Transfer the conversation to Größe & Co (2)."
    twin = Agent(name="triage", instructions="Other.")
    with pytest.raises(ConfigError, match="two agents that hand over to each other are named 'triage'"):
        run_inline(Agent(name="triage", instructions="Route.", handoffs=[twin]), ["x"])
    with pytest.raises(ConfigError, match="a hand-off goes to an Agent"):
        Handoff("writer")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_handoffs must be between 0 and 4294967295"):
        RunConfig(max_handoffs=-1)


class Rewriting(RuntimeHook):
    """Puts a result of its own in the place of each."""

    def after_tool_call(self, event: AfterToolCallEvent) -> ToolExecutionResult:
        return ToolExecutionResult(tool_call_id=event.call.id, content="passed on", directive=event.result.directive)


def test_a_hook_that_gives_another_result_changes_nothing_about_who_takes_over() -> None:
    result = run_inline(team(), SCRIPT, hooks=[Rewriting()])
    assert (result.status, result.final_output, result.agent_name) == ("completed", "wrote: write this", "writer")
    moves = [e for e in result.events if e.type == "handoff_started"]
    assert [(e.source_agent, e.target_agent) for e in moves] == [("triage", "chief editor"), ("chief editor", "writer")]


class Strict:
    """Lets no input pass that names a secret, and shouts the others."""

    def check(self, context: Any, text: str) -> GuardrailResult:
        return GuardrailResult.block("no secrets") if "secret" in text else GuardrailResult.allow(text.upper())


@pytest.mark.parametrize(
    ("said", "status", "answer"), [("a secret", "failed", None), ("a poem", "completed", "A POEM")]
)
def test_the_guardrails_of_the_target_judge_its_input(said: str, status: str, answer: str | None) -> None:
    writer = Agent(name="writer", instructions="Write.", no_tool_policy=FINISH, input_guardrails=[Strict()])
    first = Agent(name="triage", instructions="Route.", handoffs=[writer])
    script = by_agent({
        "Route.": [call("transfer_to_writer", {"input": said})], "Write.": [heard(lambda heard_: heard_)],
    })  # fmt: skip
    result = run_inline(first, script)
    assert (result.status, result.agent_name) == (status, "writer")
    assert result.raw_result.final_answer == answer
    if answer is None:
        assert result.raw_result.error == "no secrets"
    closed = [event for event in result.events if event.type == "handoff_completed"]
    assert [event.status for event in closed] == [status]
