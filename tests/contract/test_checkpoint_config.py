"""checkpoint_config.json: configuration, admission and the facts around them that need no Runner.

What needs one is in test_checkpoint_config_runs.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from vv_agent._json import MAX_WIRE
from vv_agent.checkpoint import config, extensions
from vv_agent.checkpoint.admission import Admission, admit, next_resume_attempt
from vv_agent.checkpoint.config import CheckpointConfig, ResumePolicy
from vv_agent.config import RunConfig
from vv_agent.definition import CapabilityRef
from vv_agent.definition_rules import stable_ref
from vv_agent.errors import CheckpointError

FIXTURE = load("checkpoint_config.json")

BY_ITSELF = "a run resumes by itself (DESIGN 10): the default repeats what may be repeated"
PARKED = "hand-offs and approvals work with checkpoints, under one key (DESIGN 10)"
CHILDREN = ("agent_as_tool", "background_agent")
TREE = "sub-agents work with checkpoints (DESIGN 10): a child is a record of its parent's tree, under a key of its own"
RUN_SCOPE_ASIDE = (
    "handoff_with_checkpoint",
    "handoff_error_code",
    "approval_resume_reuses_source_checkpoint_key",
    "approval_resume_requires_distinct_key_when_checkpoint_enabled",
)
CASES = Cases(
    "checkpoint_config.json",
    differs={
        "defaults/ambiguous_model_policy": BY_ITSELF,
        "defaults/ambiguous_tool_policy": BY_ITSELF,
        "runner_cases/per_run_object_replaces_runner_default/default_policies": BY_ITSELF,
    }
    | {f"run_scope/{name}": PARKED for name in RUN_SCOPE_ASIDE}
    | {f"run_scope/{kind}_child_inherits_parent_checkpoint_config": TREE for kind in CHILDREN}
    | {f"runner_cases/{case['name']}": TREE for case in FIXTURE["runner_cases"] if "child_invocation" in case},
)
STRICT = {
    "ambiguous_model_policy": "require_reconciliation",
    "ambiguous_tool_policy": "require_reconciliation",
}


def build(wire: Any) -> CheckpointConfig | None:
    """The adapter: a live store for `{"kind": "in_memory"}`, the strict policies where the fixture leaves them out."""
    if wire is None:
        return None
    if isinstance(wire, dict):
        wire = STRICT | wire
        if "store" in wire:
            wire["store"] = object()
        if "store_ref" in wire:
            wire["store_ref"] = CapabilityRef(**wire["store_ref"])
    return CheckpointConfig.parse(wire)


@pytest.mark.parametrize("name", list(FIXTURE["defaults"]))
def test_default(name: str) -> None:
    with CASES.run(f"defaults/{name}"):
        owner = RunConfig if name == "checkpoint_config" else CheckpointConfig
        value = getattr(RunConfig() if owner is RunConfig else CheckpointConfig(store=object()), name)
        assert (list(value) if isinstance(value, tuple) else value) == FIXTURE["defaults"][name]
        assert hasattr(owner, name)


@pytest.mark.parametrize("name", list(FIXTURE["limits"]))
def test_limit(name: str) -> None:
    ours = {
        "checkpoint_key_max_utf8_bytes": config.MAX_KEY_BYTES,
        "extension_namespace_max_ascii_bytes": extensions.MAX_NAMESPACE_BYTES,
        "extension_entry_max_utf8_bytes": extensions.MAX_ENTRY_BYTES,
        "extension_total_default_max_utf8_bytes": config.DEFAULT_EXTENSION_BYTES,
        "wire_integer_max": MAX_WIRE,
    }
    with CASES.run(f"limits/{name}"):
        assert ours[name] == FIXTURE["limits"][name]


@pytest.mark.parametrize("case", FIXTURE["valid_cases"], ids=lambda case: case["name"])
def test_a_valid_configuration_is_built(case: dict[str, Any]) -> None:
    with CASES.run(f"valid_cases/{case['name']}"):
        built = build(case["config"])
        assert (built is None) == (case["config"] is None)
        if built is not None:
            assert built.key == case["config"]["key"]
            assert built.resume_policy == case["config"]["resume_policy"]


@pytest.mark.parametrize("case", FIXTURE["invalid_cases"], ids=lambda case: case["name"])
def test_an_invalid_configuration_is_refused_with_its_code(case: dict[str, Any]) -> None:
    with CASES.run(f"invalid_cases/{case['name']}"):
        with pytest.raises(CheckpointError) as caught:
            build(case["config"])
        assert caught.value.code == case["error_code"]


def test_a_slot_has_the_contracts_pattern() -> None:
    with CASES.run("behavior_capability_references"):
        rules = FIXTURE["behavior_capability_references"]
        assert rules["slot_pattern"] == f"^{config._SLOT.pattern.removesuffix(chr(92) + 'Z')}$"
        with pytest.raises(CheckpointError) as caught:
            stable_ref("runtime_hook:0", lambda: None, {})
        assert caught.value.code == rules["missing_error"]


@pytest.mark.parametrize("name", list(FIXTURE["resume_attempt_rules"]))
def test_resume_attempt(name: str) -> None:
    with CASES.run(f"resume_attempt_rules/{name}"):
        expected = {"unchanged": 4, "previous_plus_one": 5}.get(FIXTURE["resume_attempt_rules"][name], 1)
        assert attempt_after(name) == expected


def attempt_after(name: str) -> int:
    """The attempt number of a record that had 4, after what the rule's name says. A refusal writes nothing."""
    facts: dict[str, dict[str, bool]] = {
        "created_record": {"present": False},
        "resume_if_present_created_record": {"present": False},
        "successful_recovery_claim": {"present": True},
        "failed_claim": {"present": True, "live_lease": True},
        "live_claim_rejection": {"present": True, "live_lease": True},
        "definition_mismatch": {"present": True, "same_definition": False},
        "terminal_replay": {"present": True, "terminal": True},
    }
    policy = ResumePolicy.NEW if name == "created_record" else ResumePolicy.RESUME_IF_PRESENT
    try:
        return next_resume_attempt(4, admit(policy, "k", **facts[name]))
    except CheckpointError:
        return 4


@pytest.mark.parametrize(
    ("policy", "facts", "outcome"),
    [
        ("new", {"present": False}, Admission.CREATE),
        ("new", {"present": True}, "checkpoint_already_exists"),
        ("new", {"present": True, "terminal": True}, "checkpoint_already_exists"),
        ("resume_if_present", {"present": False}, Admission.CREATE),
        ("resume_if_present", {"present": True}, Admission.RECOVER),
        ("resume_if_present", {"present": True, "terminal": True}, Admission.REPLAY),
        ("require_existing", {"present": False}, "checkpoint_not_found"),
        ("require_existing", {"present": True}, Admission.RECOVER),
        ("require_existing", {"present": True, "terminal": True}, Admission.REPLAY),
        ("require_existing", {"present": True, "same_definition": False}, "checkpoint_definition_mismatch"),
        ("require_existing", {"present": True, "live_lease": True}, "checkpoint_claim_active"),
        (
            "resume_if_present",
            {"present": True, "live_lease": True, "same_definition": False},
            "checkpoint_definition_mismatch",
        ),
    ],
)
def test_admission_follows_the_table(policy: str, facts: dict[str, bool], outcome: Any) -> None:
    try:
        result: Any = admit(ResumePolicy(policy), "k", **facts)
    except CheckpointError as error:
        result = error.code
    assert result == outcome
