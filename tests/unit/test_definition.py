"""The rules of a run definition that no contract case covers."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from vv_agent.definition import REDACTED, CapabilityRef, RunDefinition
from vv_agent.definition_rules import normalised, stable_ref
from vv_agent.errors import CheckpointError


def description(**changes: Any) -> dict[str, Any]:
    """The smallest definition, with top-level fields replaced."""
    return {
        "schema_version": "vv-agent.run-definition.v1",
        "agent": {"name": "a", "type": None},
        "root_input": "hello",
        "compiled_prompt": "",
        "initial_messages": [],
        "initial_shared_state": {},
        "run_metadata": {},
        "context_ref": None,
        "model": {"backend": "b", "model_id": "m", "transport_timeout_seconds": None, "settings": {}},
        "credential_slots": [],
        "runtime_controls": {
            "max_cycles": 10,
            "max_handoffs": 10,
            "no_tool_policy": "continue",
            "memory_compact_threshold": 250000,
            "memory_threshold_percentage": 90,
            "allow_interruption": True,
            "native_multimodal": False,
            "tool_use_behavior": "run_llm_again",
            "stop_at_tool_names": [],
        },
        "tools": [],
        "tool_policy": {
            "allowed_tools": None,
            "disallowed_tools": [],
            "approval": "default",
            "predicate_ref": None,
            "approval_timeout_seconds": None,
            "denied_side_effects": [],
            "denied_capability_tags": [],
            "deny_terminal_tools": False,
            "denied_cost_dimensions": [],
        },
        "checkpoint_policy": {
            "ambiguous_model_policy": "retry_with_duplicate_risk",
            "ambiguous_tool_policy": "retry_idempotent_only",
            "max_extension_state_bytes": 262144,
        },
        "budget_limits": None,
        "output_schema": None,
        "workspace_ref": None,
        "session_ref": None,
        "extensions": [],
        "capability_refs": {},
    } | changes


def with_settings(slots: list[str] | None = None, **settings: Any) -> dict[str, Any]:
    model = {"backend": "b", "model_id": "m", "transport_timeout_seconds": None, "settings": settings}
    return description(model=model, credential_slots=slots or [])


def code_of(action: Any, *arguments: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        action(*arguments)
    return caught.value.code


def test_headers_are_lowered_and_a_secret_is_replaced_wherever_its_slot_points() -> None:
    raw = with_settings(["/model/settings/extra_headers/Authorization"], extra_headers={"Authorization": "s3cret"})
    definition = normalised(raw)
    assert definition.credential_slots == ("/model/settings/extra_headers/authorization",)
    assert definition.model.settings.extra_headers == {"authorization": REDACTED}
    assert b"s3cret" not in definition.encode()
    assert raw["model"]["settings"]["extra_headers"] == {"Authorization": "s3cret"}


def test_two_spellings_of_a_header_collide() -> None:
    raw = with_settings(extra_headers={"X-A": "1", "x-a": "2"})
    assert code_of(normalised, raw) == "checkpoint_definition_header_collision"


@pytest.mark.parametrize("action", [normalised, RunDefinition.parse])
@pytest.mark.parametrize("name", ["authorization", "proxy-authorization", "x-api-key", "api-key"])
def test_a_credential_header_without_a_slot_fails_closed_and_is_not_shown(action: Any, name: str) -> None:
    raw = with_settings(extra_headers={name: "s3cret"})
    with pytest.raises(CheckpointError) as caught:
        action(raw)
    assert caught.value.code == "checkpoint_definition_sensitive_value_unclassified"
    assert "s3cret" not in str(caught.value)


def test_a_stored_definition_with_a_secret_in_a_slot_is_refused() -> None:
    raw = with_settings(["/model/settings/extra_body/key"], extra_body={"key": "s3cret"})
    assert code_of(RunDefinition.parse, raw) == "checkpoint_credential_value_not_redacted"


def test_unset_settings_are_dropped_and_the_timeout_moves_out() -> None:
    definition = normalised(with_settings(temperature=None, top_p=1, timeout_seconds=30))
    assert definition.model.transport_timeout_seconds == 30
    assert definition.to_wire()["model"]["settings"] == {"top_p": 1.0}


def test_a_null_setting_in_a_stored_definition_is_refused() -> None:
    assert code_of(RunDefinition.parse, with_settings(top_p=None)) == "checkpoint_definition_invalid"


def test_sets_are_trimmed_where_the_metadata_rule_says_so_and_sorted_by_utf16() -> None:
    policy = description()["tool_policy"] | {
        "allowed_tools": ["b", "a", "b"],
        "denied_capability_tags": [" \ue000 ", "😀", "😀\n", "\u00a0x"],
    }
    definition = normalised(description(tool_policy=policy))
    assert definition.tool_policy.allowed_tools == ("a", "b")
    assert definition.tool_policy.denied_capability_tags == ("\u00a0x", "😀", "\ue000")


def test_extensions_are_sorted_and_a_budget_without_a_limit_is_null() -> None:
    budget = {
        "max_total_tokens": None,
        "max_uncached_input_tokens": None,
        "max_tool_calls": None,
        "max_tool_calls_by_name": {},
        "max_wall_time_ms": None,
        "max_host_cost": None,
        "unavailable_metric_policy": "stop",
    }
    extensions = [{"namespace": name, "version": "1", "required": False} for name in ("z.a", "a.a")]
    definition = normalised(description(budget_limits=budget, extensions=extensions))
    assert definition.budget_limits is None
    assert [extension.namespace for extension in definition.extensions] == ["a.a", "z.a"]
    assert normalised(description(budget_limits=budget | {"max_tool_calls": 0})).budget_limits is not None


def test_integers_beyond_64_bits_are_refused_at_creation_and_read_as_floats() -> None:
    raw = description(run_metadata={"n": 10**20})
    assert code_of(normalised, raw) == "checkpoint_definition_not_i_json"
    assert RunDefinition.parse(raw).run_metadata == {"n": 1e20}


@pytest.mark.parametrize("value", [2**53, -(2**53), float("inf"), "\ud800", {1: 2}, object(), 10**400])
def test_what_json_cannot_carry_is_refused_with_its_place(value: Any) -> None:
    with pytest.raises(CheckpointError, match="/run_metadata/n") as caught:
        RunDefinition.parse(description(run_metadata={"n": value}))
    assert caught.value.code == "checkpoint_definition_not_i_json"


def test_large_whole_floats_keep_their_digest_through_the_stored_form() -> None:
    definition = RunDefinition.parse(description(run_metadata={"n": 1e17, "zero": -0.0}))
    assert RunDefinition.decode(definition.encode()).digest == definition.digest


def test_a_definition_does_not_follow_later_changes_of_the_callers_object() -> None:
    raw = description(run_metadata={"a": [1]})
    definition = RunDefinition.parse(raw)
    raw["run_metadata"]["a"].append(2)
    assert definition.run_metadata == {"a": [1]}


@pytest.mark.parametrize("data", [b"", b"\xc1", msgpack.packb([1]), msgpack.packb({1: 2})])
def test_damaged_bytes_are_refused_with_a_code(data: bytes) -> None:
    assert code_of(RunDefinition.decode, data).startswith("checkpoint_definition_")


def test_a_boolean_is_no_number() -> None:
    controls = description()["runtime_controls"] | {"max_cycles": True}
    assert code_of(RunDefinition.parse, description(runtime_controls=controls)) == "checkpoint_definition_invalid"


def test_the_message_shows_where_and_not_what() -> None:
    with pytest.raises(CheckpointError) as caught:
        RunDefinition.parse(description(agent={"name": "s3cret", "type": 5}))
    assert "/agent/type" in caught.value.message
    assert "s3cret" not in caught.value.message


def test_code_of_a_module_is_named_by_its_path_and_a_local_function_is_unstable() -> None:
    assert stable_ref("host_cost_meter", description, {}) == CapabilityRef(id=f"{__name__}:description", version="1")
    assert stable_ref("host_cost_meter", None, {}) is None
    assert code_of(stable_ref, "host_cost_meter", lambda: 1, {}) == "checkpoint_definition_unstable"
