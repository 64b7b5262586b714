"""contract: result_public.json, and the members of results in public_api.json"""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any

import pytest

import vv_agent
from tests.contract.fixtures import load
from vv_agent.result import ResolvedModel, RunResult
from vv_agent.results import AgentResult, AgentStatus

DATA = load("result_public.json")
WIRE, RULES = DATA["agent_result"], DATA["agent_result_wire"]
SURFACES = {surface["id"]: surface for surface in load("public_api.json")["surfaces"]}


def run_result(wire: dict[str, Any] = WIRE) -> RunResult:
    return RunResult.of(
        AgentResult.from_wire(wire),
        input="hello",
        run_id="run",
        trace_id="trace",
        agent_name="agent",
        resolved_model=ResolvedModel(**DATA["resolved_model_projection"]),
    )


def test_the_result_survives_a_round_trip() -> None:
    result = AgentResult.from_wire(WIRE)
    assert result.to_wire() == WIRE
    assert json.loads(json.dumps(result.to_wire())) == WIRE
    assert result.normalized() == result


def test_the_fields_are_those_of_the_contract() -> None:
    fields = AgentResult.model_fields
    assert [name for name, info in fields.items() if info.is_required()] == RULES["required_fields"]
    assert [name for name, info in fields.items() if not info.is_required()] == RULES["optional_fields"]
    assert [str(item) for item in AgentStatus] == RULES["statuses"]


@pytest.mark.parametrize("name", RULES["required_fields"])
def test_a_required_field_is_required(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        AgentResult.from_wire({key: value for key, value in WIRE.items() if key != name})


@pytest.mark.parametrize("name", RULES["optional_fields"])
def test_an_optional_field_is_never_null(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        AgentResult.from_wire({**WIRE, name: None})


@pytest.mark.parametrize("change", [{"legacy": 1}, {"status": "cancelled"}, {"status": None}])
def test_what_the_contract_does_not_know_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        AgentResult.from_wire({**WIRE, **change})


def test_approvals_are_projected_once_each() -> None:
    result = run_result()
    assert [item.to_wire() for item in result.approval_snapshot()] == DATA["expected_approvals"]
    state = result.into_state()
    ids = [item["interruption_id"] for item in DATA["expected_approvals"]]
    for interruption_id in ids:
        state.approve(interruption_id)
    assert state.pending_approval_ids() == state.approved_interruption_ids() == ids
    assert [item.to_wire() for item in state.approval_snapshot()] == [
        {**item, "approved": True} for item in DATA["expected_approvals"]
    ]


def test_the_projection_has_exactly_its_keys() -> None:
    projection = run_result().to_dict()
    assert sorted(projection) == sorted(DATA["projection_keys"])
    assert projection["resolved_model"] == DATA["resolved_model_projection"]
    assert projection["token_usage"] == WIRE["token_usage"]
    json.dumps(projection)
    assert run_result({**WIRE, "error_code": "x"}).to_dict()["error_code"] == "x"


def test_a_reconciliation_result_shows_the_open_operation() -> None:
    partial = DATA["reconciliation_result"]
    raw = AgentResult.from_wire({**WIRE, **partial, "completion_tool_name": None})
    assert raw.normalized() == raw
    assert {name: raw.to_wire()[name] for name in partial} == partial
    projection = run_result(raw.to_wire()).to_dict()
    assert projection["resume_observation"] == partial["resume_observation"]
    assert projection["final_output"] is None


@pytest.mark.parametrize("surface", ["run_result", "run_state", "tool_metadata", "host_cost_meter"])
def test_the_public_members_exist(surface: str) -> None:
    target = SURFACES[surface]["python_target"]
    kind = getattr(vv_agent, target.removeprefix("vv_agent."))
    fields = {item.name for item in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    for member in (item["python"] for item in SURFACES[surface]["members"]):
        name = member["name"]
        if member.get("declaration") == "dataclass_field":
            assert name in fields
        elif member["kind"] == "property":
            assert isinstance(inspect.getattr_static(kind, name), property)
        else:
            wanted = [item["name"] for item in member["signature"]["parameters"]]
            assert list(inspect.signature(getattr(kind, name)).parameters) == wanted
