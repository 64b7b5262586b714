"""handoff_contract.json: the tool of a hand-off, its result, the denials it passes on, and the order of events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.scenarios.agents import by_agent
from vv_agent import Agent, NoToolPolicy, RunConfig, Runner, ToolPolicy, function_tool, handoff
from vv_agent.config import DEFAULT_MAX_HANDOFFS
from vv_agent.testing import ScriptedProvider, call
from vv_agent.tool_metadata import ToolMetadata, ToolSideEffect

FIXTURE = load("handoff_contract.json")
CASES = Cases("handoff_contract.json")
WRITE = call("transfer_to_writer", {"input": "write this"})


def writer(**more: Any) -> Agent:
    return Agent(name="writer", instructions="Write.", no_tool_policy=NoToolPolicy.FINISH, **more)


def triage(target: Agent, **more: Any) -> Agent:
    given = handoff(target, "Use for writing.", metadata={"routing_group": "writing"})
    return Agent(name="triage", instructions="Route.", handoffs=[given], **more)


def run(agent: Agent, route: Any, write: Any = "done") -> Any:
    provider = ScriptedProvider(by_agent({"Route.": [route], "Write.": [write, "done"]}))
    return Runner(model_provider=provider).run_sync(agent, "Go.", run_config=RunConfig())


def test_the_schema_the_model_is_shown() -> None:
    shown: list[Any] = []

    def route(request: Any) -> Any:
        shown.extend(tool for tool in request.tools if tool["function"]["name"] == "transfer_to_writer")
        return WRITE

    with CASES.run("tool_schema"):
        run(triage(writer()), route)
        assert shown == [FIXTURE["tool_schema"]]


def test_what_the_call_gives() -> None:
    result = run(triage(writer()), WRITE)
    with CASES.run("tool_result"):
        started = next(event for event in result.events if event.type == "handoff_started")
        assert started.metadata == FIXTURE["tool_result"]["metadata"]
        tool = triage(writer()).transfers[0]
        from vv_agent.tools.agents import HandoffTool

        given = HandoffTool.of(tool)._transfer(_Context(), {"input": "write this"})  # type: ignore[arg-type]
        assert json.loads(given.content) == FIXTURE["tool_result"]["content"]
        assert given.metadata == FIXTURE["tool_result"]["metadata"]
        assert (given.status_code, given.directive) == ("SUCCESS", "finish")


class _Context:
    agent_name = "triage"
    tool_call_id = "call"


def test_the_order_of_a_hand_off() -> None:
    names = {
        ("run_completed", "triage"): "source_run_terminal", ("run_started", "writer"): "target_run_started",
        ("run_completed", "writer"): "target_run_terminal",
    }  # fmt: skip
    result = run(triage(writer()), WRITE)
    with CASES.run("lifecycle_order"):
        told = [
            names.get((event.type, event.agent_name), event.type)
            for event in result.events
            if event.type.startswith(("run_", "handoff_"))
        ]
        assert told[1:] == FIXTURE["lifecycle_order"]


def test_how_often_a_run_is_handed_over() -> None:
    with CASES.run("default_max_handoffs"):
        assert FIXTURE["default_max_handoffs"] == DEFAULT_MAX_HANDOFFS


@pytest.mark.parametrize("rule", [name for name in FIXTURE["tool_policy_projection"] if name != "example"])
def test_a_rule_of_what_the_target_may_do(rule: str) -> None:
    example = FIXTURE["tool_policy_projection"]["example"]
    with CASES.run(f"tool_policy_projection/{rule}"):
        if rule in ("list_merge", "boolean_merge"):
            from vv_agent.tools.policy import merge_policies

            source, target = ToolPolicy(**example["source_effective"]), ToolPolicy(**example["target_declared"])
            merged = merge_policies(source, None, target)
            effective = {name: getattr(merged, name) for name in example["target_effective"]}
            lists = {name: list(map(str, v)) if not isinstance(v, bool) else v for name, v in effective.items()}
            assert lists == example["target_effective"]
            return
        shown, events = denied(ToolPolicy(**example["source_effective"]), ToolPolicy(**example["target_declared"]))
        assert shown == ["harmless"]  # neither what the source denies nor what the target does
        assert "tool_not_allowed" in [event.error_code for event in events if event.type == "tool_call_completed"]


def denied(source: ToolPolicy, target: ToolPolicy) -> tuple[list[str], list[Any]]:
    """The tools of its own that the target is shown, and the events of a run in which it calls one that the source
    denies."""
    shown: list[str] = []

    def write(request: Any) -> Any:
        shown.extend(tool["function"]["name"] for tool in request.tools if tool["function"]["name"] in TOOLS)
        return call("launch", {})

    agent = triage(writer(tools=list(TOOLS.values()), tool_policy=target), tool_policy=source)
    result = run(agent, WRITE, write)
    return shown, list(result.events)


@function_tool(tool_metadata=ToolMetadata(ToolSideEffect.EXECUTE))
def launch() -> str:
    """Launch."""
    return "launched"


@function_tool(tool_metadata=ToolMetadata(ToolSideEffect.NETWORK))
def fetch() -> str:
    """Fetch."""
    return "fetched"


@function_tool(tool_metadata=ToolMetadata(ToolSideEffect.READ))
def harmless() -> str:
    """Look."""
    return "seen"


TOOLS = {"launch": launch, "fetch": fetch, "harmless": harmless}
