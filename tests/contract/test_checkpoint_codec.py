"""checkpoint_codec.json: the rules inside a record. The record's own shape is ours (DESIGN 10) and set aside by name."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.contract.mutate import mutated
from vv_agent._json import canonical
from vv_agent.checkpoint.config import AmbiguousModelPolicy, AmbiguousToolPolicy, validate_key
from vv_agent.checkpoint.extensions import (
    MAX_ENTRY_BYTES,
    MAX_NAMESPACE_BYTES,
    RESERVED_PREFIX,
    CheckpointExtension,
    check_available,
    check_namespace,
    check_sizes,
    extension_entry_size,
)
from vv_agent.checkpoint.journal import check_journal, decode_entry
from vv_agent.checkpoint.reconciliation import ABORT_CODE, ReconciliationDecision, RecoveryAction, recover
from vv_agent.definition import SCHEMA, RunDefinition
from vv_agent.errors import CheckpointError

FIXTURE = load("checkpoint_codec.json")
VALID = {case["name"]: case["payload"] for case in FIXTURE["valid_cases"]}
VALID["claimed_active_cycle"].pop("vendor_future", None)  # a stray key that the fixture's own policy refuses
LIMITS = FIXTURE["extension_limits"]

SHAPE = "the record is stored as head, log, blobs, events and journal; no whole-record object is decoded"
CLAIM = "a claim is one value of the head (token, owner, lease) and its cycle is the open cycle: it cannot be stored so"
CASES = Cases(
    "checkpoint_codec.json",
    differs={
        "discriminator": "a record's blobs carry schema numbers of our own",
        "invalid_cases/unknown_schema": "a record's blobs carry schema numbers of our own",
        "invalid_cases/partial_claim": CLAIM,
        "invalid_cases/claimed_cycle_not_next": CLAIM,
        "invalid_cases/zero_resume_attempt": "the head counts attempts itself; nothing decodes a number that it was given",
        "unknown_field_policy/top_level_whole_object_store": SHAPE,
        "status_rules/event_outbox_event_ids_are_unique": "events are written in the record's transaction, no outbox",
        "status_rules/duplicate_event_id_error": "events are written in the record's transaction, no outbox",
    }
    | {f"required_fields/{name}": SHAPE for name in FIXTURE["required_fields"]},
)
CODES = {
    "checkpoint_key must be non-empty": "checkpoint_key_invalid",
    "run_definition_digest must be a lowercase SHA-256": "checkpoint_definition_digest_invalid",
    "resume_attempt must be positive": "checkpoint_resume_attempt_invalid",
    "checkpoint claim fields must be all present or all null": "checkpoint_claim_invalid",
    "claimed_cycle must equal cycle_index + 1": "checkpoint_claim_invalid",
    "journal cycle_index must equal active claimed cycle": "checkpoint_journal_cycle_invalid",
}
"""Some invalid cases state a sentence where others state a code (spec 10, section 7)."""


def check(record: dict[str, Any], registered: Sequence[CheckpointExtension] | None = None) -> None:
    """The adapter: give the parts of a fixture record to the rules that hold for our own."""
    definition = record.get("run_definition")
    if isinstance(definition, dict):
        # the record's copy of the schema name stands for the one inside our stored definition
        definition = definition | {"schema_version": record.get("run_definition_schema")}
    RunDefinition.parse(definition).check_digest(record["run_definition_digest"])
    validate_key(record["checkpoint_key"])
    entries = [decode_entry(entry) for name in ("model_call_journal", "tool_journal") for entry in record[name]]
    assert [entry.to_wire() for entry in entries] == record["model_call_journal"] + record["tool_journal"]
    check_journal(
        entries,
        open_cycle=record["cycle_index"] + 1,
        claimed=record["claim_token"] is not None,
        reconciling=record["status"] == "reconciliation_required",
    )
    check_sizes(record["extension_state"], LIMITS["default_total_max_utf8_bytes"])
    if registered is not None:
        check_available(record["extension_state"], registered)


def code_of(record: dict[str, Any], registered: Any = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        check(record, registered)
    return caught.value.code


def named(section: Any) -> Any:
    return pytest.mark.parametrize("case", section, ids=lambda case: case["name"])


@pytest.mark.parametrize("name", ["canonical_checkpoint", *VALID])
def test_the_parts_of_a_valid_record_pass(name: str) -> None:
    with CASES.run(f"valid_cases/{name}"):
        record = VALID.get(name, FIXTURE["canonical_checkpoint"])
        check(record, registered=[] if name == "unknown_optional_extension_is_preserved" else None)


@named(FIXTURE["invalid_cases"])
def test_an_invalid_record_is_refused_with_its_code(case: dict[str, Any]) -> None:
    with CASES.run(f"invalid_cases/{case['name']}"):
        code = code_of(case["payload"], case.get("registered_extensions"))
        assert code == CODES.get(case["error"], case["error"])


@named(FIXTURE["status_cases"])
def test_status_and_journal_agree(case: dict[str, Any]) -> None:
    with CASES.run(f"status_cases/{case['name']}"):
        if case.get("decision") == "abort":
            (wire,) = VALID[case["source_valid_case"]]["tool_journal"]
            after = recover(
                decode_entry(wire),
                model_policy=AmbiguousModelPolicy.REQUIRE_RECONCILIATION,
                tool_policy=AmbiguousToolPolicy.REQUIRE_RECONCILIATION,
                decision=ReconciliationDecision.abort("operator_abort", "reviewed"),
            )
            assert after.action is RecoveryAction.ABORT
            assert after.entry.to_wire() == wire
            assert after.observation is not None
            assert case["expected"]["terminal_error_code"] == ABORT_CODE
        elif case.get("valid"):
            check(VALID[case["valid_case"]])
        else:
            assert code_of(mutated(VALID[case["base_valid_case"]], case["mutation"])) == case["error_code"]


@named(FIXTURE["run_definition_schema_cases"] + FIXTURE["run_definition_cases"])
def test_the_embedded_definition_is_checked(case: dict[str, Any]) -> None:
    with CASES.run(f"run_definition/{case['name']}"):
        if case.get("valid"):
            definition = RunDefinition.parse(VALID[case["valid_case"]]["run_definition"])
            assert definition.digest == case["expected_digest"]
        else:
            code = code_of(mutated(VALID[case["base_valid_case"]], case["mutation"]))
            assert code == case.get("error_code", case.get("expected_error_code"))


def test_running_with_an_ambiguous_entry_needs_a_claim() -> None:
    with CASES.run("status_rules/running_with_ambiguous_journal_requires_active_recovery_claim"):
        suspended = VALID["reconciliation_required_retains_ambiguous_journal"]
        running = suspended | {"status": "running"}
        assert code_of(running) == FIXTURE["status_rules"]["invalid_error_code"]
        check(running | {"claim_token": "owner", "claimed_cycle": 2, "lease_expires_at_ms": 600})


def test_extension_limits_are_the_contracts() -> None:
    with CASES.run("extension_limits"):
        assert LIMITS["entry_max_utf8_bytes"] == MAX_ENTRY_BYTES
        assert LIMITS["namespace_max_ascii_bytes"] == MAX_NAMESPACE_BYTES
        assert LIMITS["reserved_prefix"] == RESERVED_PREFIX
        assert check_namespace("a." + "b" * (MAX_NAMESPACE_BYTES - 2))
        for wrong in ("a." + "b" * (MAX_NAMESPACE_BYTES - 1), "Example", "nodots", "a.é", "a.b\n", 5):
            with pytest.raises(CheckpointError) as caught:
                check_namespace(wrong)
            assert caught.value.code == "checkpoint_extension_namespace_invalid"


@named(LIMITS["canonicalization_vectors"])
def test_an_entry_is_measured_in_its_canonical_form(case: dict[str, Any]) -> None:
    with CASES.run(f"extension_limits/{case['name']}"):
        data = canonical(case["entry"])
        assert data == base64.b64decode(case["canonical_json_base64"])
        assert extension_entry_size(case["entry"]) == len(data) == case["canonical_json_utf8_bytes"]
        assert hashlib.sha256(data).hexdigest() == case["sha256"]


@named(LIMITS["generated_boundary_cases"])
def test_an_entry_or_a_sum_at_the_limit_fits_and_one_byte_more_does_not(case: dict[str, Any]) -> None:
    with CASES.run(f"extension_limits/{case['name']}"):
        entries = generated(case)
        sizes = case["canonical_entry_utf8_bytes"]
        assert [extension_entry_size(entry) for entry in entries.values()] == (
            sizes if "entries_generation" in case else [sizes]
        )
        if case["valid"]:
            check_sizes(entries, LIMITS["default_total_max_utf8_bytes"])
        else:
            with pytest.raises(CheckpointError) as caught:
                check_sizes(entries, LIMITS["default_total_max_utf8_bytes"])
            assert caught.value.code == case["error_code"]


def generated(case: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries a boundary case describes, under namespaces of any name."""
    rule = case.get("entries_generation") or case["entry_generation"]
    if "state_segments" in rule:
        states = ["".join(part["character"] * part["repetitions"] for part in rule["state_segments"])]
    else:
        counts = rule["state_utf8_repetitions"]
        states = [rule["state_character"] * n for n in (counts if isinstance(counts, list) else [counts])]
    entry = {"version": rule["version"], "required": rule["required"]}
    return {f"com.example.n{n}": entry | {"state": state} for n, state in enumerate(states)}


def test_what_is_not_run_here_is_shown_with_its_reason() -> None:
    shown = [
        *(f"required_fields/{name}" for name in FIXTURE["required_fields"]),
    ]
    shown += [name for name in CASES.differs if name.split("/")[0] not in ("invalid_cases", "required_fields")]
    for name in shown:
        CASES.show(name)
    assert FIXTURE["run_definition_schema_rules"]["required_value"] == SCHEMA
