"""approval_tool_policy.json, approvals: what a refused call is told, what is shown, and a provider that fails."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from vv_agent import (
    Agent,
    ApprovalBroker,
    ApprovalDecision,
    ApprovalRequest,
    NoToolPolicy,
    RunConfig,
    Runner,
    ToolContext,
    function_tool,
)
from vv_agent.result import RunResult
from vv_agent.testing import ScriptedProvider, call

DATA = load("approval_tool_policy.json")
WANTED, CALL = DATA["approval"], DATA["tool_call"]
CASES = Cases("approval_tool_policy.json approvals")


class Asked:
    """Answers every request with one decision, and remembers them."""

    def __init__(self, decision: ApprovalDecision | Exception, broker: ApprovalBroker) -> None:
        self.requests: list[ApprovalRequest] = []
        self.held: list[str] = []
        self._decision, self._broker = decision, broker

    def decide(self, request: ApprovalRequest) -> ApprovalDecision:
        self.requests.append(request)
        self.held += [held.request_id for held in self._broker.pending()]
        if isinstance(self._decision, Exception):
            raise self._decision
        return self._decision


def run(decision: ApprovalDecision | Exception, folder: Path) -> tuple[RunResult, Asked, list[str], ApprovalBroker]:
    ran: list[str] = []

    @function_tool(name=CALL["name"], needs_approval=True)
    def dangerous(path: str, context: ToolContext) -> str:
        """Do something dangerous."""
        ran.append(path)
        return "done"

    broker = ApprovalBroker()
    provider = Asked(decision, broker)
    model = ScriptedProvider([call(CALL["name"], CALL["arguments"], CALL["id"]), "I see."])
    agent = Agent(name="a", instructions="Work.", tools=[dangerous], no_tool_policy=NoToolPolicy.FINISH)
    config = RunConfig(approval_provider=provider, approval_broker=broker)
    return (
        Runner(model_provider=model, workspace=folder).run_sync(agent, "Go.", run_config=config),
        provider,
        ran,
        broker,
    )


def approval_events(result: RunResult) -> list[dict[str, Any]]:
    return [event.to_wire() for event in result.events if event.type.startswith("approval")]


@pytest.mark.parametrize("case", WANTED["decisions"], ids=lambda case: case["action"])
def test_a_call_that_is_not_allowed_is_told_so(case: dict[str, Any], tmp_path: Path) -> None:
    decision = ApprovalDecision(action=case["action"], reason=case["reason"], metadata=case["metadata"])
    result, provider, ran, broker = run(decision, tmp_path)
    with CASES.run(f"decisions/{case['action']}"):
        assert ran == []
        requested, resolved = approval_events(result)
        assert [requested["type"], resolved["type"]] == WANTED["events"]
        assert sorted(requested["metadata"]) == sorted(WANTED["requested_event_metadata_keys"])
        assert sorted(resolved["metadata"]) == sorted(WANTED["resolved_event_metadata_keys"])
        assert requested["message"] == WANTED["required_message"]
        assert resolved["metadata"] == {"reason": case["reason"], "decision_metadata": case["metadata"]}
        (refused,) = result.cycles[0].tool_results
        shape, content = WANTED["result_shape"], json.loads(refused.content)
        assert (refused.status_code, refused.directive) == (shape["status_code"], shape["directive"])
        assert list(content) == shape["content_keys"]
        assert refused.metadata is not None
        assert list(refused.metadata) == shape["metadata_keys"]
        assert (refused.metadata["mode"], refused.metadata["message"]) == (shape["mode"], case["message"])
        assert (content["error"], content["error_code"], refused.error_code) == (
            case["message"], case["error_code"], case["error_code"],
        )  # fmt: skip
    with CASES.run("request_id"):
        (request,) = provider.requests
        ids = {request.request_id, *provider.held, requested["request_id"], resolved["request_id"]}
        assert ids == {refused.metadata["request_id"]}
        assert re.fullmatch(DATA["request_id"]["regex"], request.request_id)
        assert len(provider.held) == 1
        assert len(DATA["request_id"]["same_value_at"]) == 5
        assert broker.pending() == ()


def test_a_provider_that_fails_fails_the_run(tmp_path: Path) -> None:
    wanted = WANTED["provider_failure"]
    result, _, ran, broker = run(RuntimeError(wanted["message"]), tmp_path)
    with CASES.run("provider_failure"):
        assert (result.status, result.raw_result.error) == (wanted["status"], wanted["message"])
        assert bool(ran) is wanted["tool_executes"]
        assert bool(broker.pending()) is wanted["broker_retains_request"]
        tail = [e.type for e in result.events if e.type.startswith(("approval", "run_failed"))]
        assert tail == wanted["events"]
