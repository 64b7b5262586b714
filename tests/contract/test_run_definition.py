"""run_definition.json: digests, normalisation and every refusal of the run definition."""

from __future__ import annotations

import base64
import copy
import hashlib
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.contract.mutate import mutated
from vv_agent import _pointer
from vv_agent._json import canonical, utf16_order
from vv_agent.definition import REDACTED, CapabilityRef, RunDefinition
from vv_agent.definition_rules import normalised, stable_ref
from vv_agent.errors import CheckpointError

FIXTURE = load("run_definition.json")
GOLDEN = {case["name"]: case for case in FIXTURE["golden_cases"]}
CASES = Cases("run_definition.json")


def by_name(section: str) -> Any:
    return pytest.mark.parametrize("case", FIXTURE[section], ids=lambda case: case["name"])


@by_name("golden_cases")
def test_a_golden_definition_has_the_golden_bytes_and_survives_the_stored_form(case: dict[str, Any]) -> None:
    with CASES.run(f"golden_cases/{case['name']}"):
        expected = base64.b64decode(case["canonical_json_base64"])
        definition = RunDefinition.parse(case["definition"])
        assert canonical(definition.to_wire()) == expected
        assert len(expected) == case["canonical_json_utf8_bytes"]
        assert definition.digest == case["sha256"] == hashlib.sha256(expected).hexdigest()
        assert RunDefinition.decode(definition.encode()).digest == case["sha256"]
        assert set(definition.to_wire()) == set(FIXTURE["required_fields"])


def test_normalising_a_canonical_definition_changes_nothing() -> None:
    for name in ("minimal", "full_unicode_float_and_capabilities"):
        assert normalised(GOLDEN[name]["definition"]).digest == GOLDEN[name]["sha256"]


@by_name("producer_cases")
def test_producer(case: dict[str, Any]) -> None:
    with CASES.run(f"producer_cases/{case['name']}"):
        if "mutation" in case:
            base = GOLDEN[case["base_golden_case"]]
            definition = normalised(mutated(base["definition"], case["mutation"]))
            assert (definition.digest == base["sha256"]) == (case["expected_digest_relation"] == "equal")
            return
        given = case["generated_input"]
        if "unsorted" in given:
            description = copy.deepcopy(GOLDEN["minimal"]["definition"])
            names = {_pointer.split(slot)[-1]: "secret" for slot in given["unsorted"]}
            description["model"]["settings"]["extra_body"] = names
            description["credential_slots"] = given["unsorted"]
            definition = normalised(description)
            assert list(definition.credential_slots) == given["expected_sorted"]
            assert sorted(given["unsorted"], key=utf16_order) == given["expected_sorted"]
            assert set(definition.to_wire()["model"]["settings"]["extra_body"].values()) == {REDACTED}
        else:
            assert _pointer.resolve(given["object"], given["pointer"]) == given["expected_value"]


@by_name("invalid_cases")
def test_a_wrong_definition_is_refused_with_its_code(case: dict[str, Any]) -> None:
    with CASES.run(f"invalid_cases/{case['name']}"):
        with pytest.raises(CheckpointError) as caught:
            produce(case)
        assert caught.value.code == case["error_code"]


def produce(case: dict[str, Any]) -> None:
    """Parse the mutated definition, or do what the producer does: name a local object, or freeze a number."""
    if "mutation" in case:
        RunDefinition.parse(mutated(GOLDEN[case["base_golden_case"]]["definition"], case["mutation"]))
        return
    given = case["generated_input"]
    if given.get("process_local_callable"):
        stable_ref(given["behavior_field"], lambda name, arguments: True, {})
    elif "run_metadata" in given:
        stable_ref("behavior_affecting_run_metadata", given["run_metadata"], {})
    else:
        value = float(given["number_kind"]) if "number_kind" in given else given["value"]
        base = GOLDEN["full_unicode_float_and_capabilities"]["definition"]
        RunDefinition.parse(mutated(base, {"add_json_pointer": given["json_pointer"], "value": value}))


@pytest.mark.parametrize("path", FIXTURE["nested_field_policy"]["closed_objects"])
def test_a_closed_object_refuses_an_unknown_field(path: str) -> None:
    with CASES.run(f"closed_objects{path}"):
        wire = everything()
        holder = _pointer.resolve(wire, path.replace("*", "0") if "capability_refs" not in path else _ref_path(wire))
        holder["future_behavior"] = True
        with pytest.raises(CheckpointError) as caught:
            RunDefinition.parse(wire)
        assert caught.value.code == "checkpoint_definition_invalid"
        assert "future_behavior" in caught.value.message


@pytest.mark.parametrize("path", FIXTURE["nested_field_policy"]["open_maps"])
def test_an_open_map_takes_any_key(path: str) -> None:
    with CASES.run(f"open_maps{path}"):
        wire = everything()
        value: Any = {"id": "a", "version": "1"} if path == "/capability_refs" else 3
        _pointer.resolve(wire, path.replace("*", "0"))["anything"] = value
        assert RunDefinition.decode(RunDefinition.parse(wire).encode()).to_wire() == wire


def everything() -> dict[str, Any]:
    """A definition that has a value at every listed path."""
    wire = copy.deepcopy(GOLDEN["full_unicode_float_and_capabilities"]["definition"])
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"a": 1}}
    wire["initial_messages"] = [{"role": "assistant", "content": "", "tool_calls": [call], "metadata": {"a": 1}}]
    wire["model"]["settings"] |= {
        "tool_choice": {"type": "function", "function": {"name": "write_record"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x"}},
        "reasoning": {"effort": "low"},
        "extra_args": {"a": 1},
    }
    return wire


def _ref_path(wire: dict[str, Any]) -> str:
    return _pointer.join(["capability_refs", next(iter(wire["capability_refs"]))])


def test_a_given_reference_names_a_local_object() -> None:
    ref = CapabilityRef(id="policy.tenant-7", version="3")
    assert stable_ref("runtime_hook:0", lambda: None, {"runtime_hook:0": ref}) == ref
