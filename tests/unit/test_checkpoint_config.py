"""The rules of a checkpoint configuration that no contract case covers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from vv_agent.checkpoint.config import AmbiguousModelPolicy, CheckpointConfig, ResumePolicy, validate_key
from vv_agent.checkpoint.extensions import check_available, check_registered
from vv_agent.definition import CapabilityRef
from vv_agent.errors import CheckpointError

REF = CapabilityRef(id="a", version="1")


class Extension:
    """A host extension as the protocol asks for it."""

    def __init__(self, namespace: str, version: str = "1", required: bool = False) -> None:
        self.namespace, self.version, self.required = namespace, version, required

    def snapshot(self) -> Any: ...

    def restore(self, state: Any) -> None: ...


def code_of(**fields: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        CheckpointConfig(**({"store": object()} | fields))
    return caught.value.code


@pytest.mark.parametrize("key", ["x", "tenant-7/run-42", "订单 42", "é" * 256])
def test_a_printable_key_is_taken_as_it_is(key: str) -> None:
    assert validate_key(key) == key


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("", "blank"),
        (" \t", "blank"),
        ("\u200b \u2060", "blank"),
        ("é" * 257, "514 bytes"),
        ("a\nb", r"control character '\\n'"),
        ("a\x00", "control character"),
        ("a\u2028b", "control character"),
        ("\ud800", "control character"),
        (5, "int, not text"),
    ],
)
def test_a_key_that_cannot_stand_in_a_listing_is_refused(key: Any, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem) as caught:
        validate_key(key)
    assert caught.value.code == "checkpoint_key_invalid"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"resume_policy": "sometimes"}, "checkpoint_policy_invalid"),
        ({"resume_policy": None}, "checkpoint_policy_invalid"),
        ({"store": None}, "checkpoint_store_selection_invalid"),
        ({"store": None, "store_ref": "redis"}, "checkpoint_store_selection_invalid"),
        ({"max_extension_state_bytes": True}, "checkpoint_extension_limit_invalid"),
        ({"max_extension_state_bytes": -1}, "checkpoint_extension_limit_invalid"),
        ({"credential_slots": ["model"]}, "checkpoint_credential_slots_invalid"),
        ({"credential_slots": [""]}, "checkpoint_credential_slots_invalid"),
        ({"credential_slots": ["/a~2"]}, "checkpoint_credential_slots_invalid"),
        ({"credential_slots": "/a"}, "checkpoint_config_invalid"),
        ({"required_extension_namespaces": ["Example"]}, "checkpoint_extension_namespace_invalid"),
        ({"capability_refs": {"Bad slot": REF}}, "checkpoint_capability_ref_invalid"),
        ({"capability_refs": {"context": "v1"}}, "checkpoint_capability_ref_invalid"),
        ({"capability_refs": [REF]}, "checkpoint_config_invalid"),
    ],
)
def test_a_wrong_field_has_its_code(fields: dict[str, Any], code: str) -> None:
    assert code_of(**fields) == code


def test_checks_come_in_the_order_of_the_contract() -> None:
    wrong: dict[str, Any] = {
        "store": None,
        "key": "",
        "max_extension_state_bytes": -1,
        "credential_slots": ["x"],
        "required_extension_namespaces": ["X"],
        "capability_refs": {"X": REF},
    }
    right = {
        "store": object(),
        "key": "k",
        "max_extension_state_bytes": 1,
        "credential_slots": [],
        "required_extension_namespaces": [],
    }
    seen = []
    for name, value in right.items():
        seen.append(code_of(**wrong))
        wrong[name] = value
    assert [*seen, code_of(**wrong)] == [
        "checkpoint_store_selection_invalid",
        "checkpoint_key_invalid",
        "checkpoint_extension_limit_invalid",
        "checkpoint_credential_slots_invalid",
        "checkpoint_extension_namespace_invalid",
        "checkpoint_capability_ref_invalid",
    ]


def test_text_becomes_policies_lists_are_frozen_and_namespaces_sorted() -> None:
    refs = {"context": REF}
    config = CheckpointConfig(
        key="k",
        store=object(),
        resume_policy="resume_if_present",  # type: ignore[arg-type]
        required_extension_namespaces=["b.b", "a.a"],
        capability_refs=refs,
    )
    refs.clear()
    assert config.resume_policy is ResumePolicy.RESUME_IF_PRESENT
    assert config.ambiguous_model_policy is AmbiguousModelPolicy.RETRY_WITH_DUPLICATE_RISK
    assert config.required_extension_namespaces == ("a.a", "b.b")
    assert config.capability_refs == {"context": REF}
    with pytest.raises(FrozenInstanceError):
        config.key = "other"  # type: ignore[misc]


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(CheckpointError, match="sotre") as caught:
        CheckpointConfig.parse({"sotre": 1})
    assert caught.value.code == "checkpoint_config_invalid"


def test_host_extensions_have_namespaces_of_their_own() -> None:
    check_registered([Extension("com.example.a"), Extension("com.example.b")])
    for extensions, code in (
        ([Extension("ai.vectorvein.vv-agent.x")], "checkpoint_extension_namespace_invalid"),
        ([Extension("com.example.a")] * 2, "checkpoint_extension_namespace_duplicate"),
    ):
        with pytest.raises(CheckpointError) as caught:
            check_registered(extensions)
        assert caught.value.code == code


def test_stored_extension_state_needs_the_same_extension_when_it_is_required() -> None:
    entries = {"com.example.a": {"version": "1", "required": False, "state": 1}}
    check_available(entries, [])
    for registered, required, code in (
        ([Extension("com.example.a", "2")], (), "checkpoint_extension_version_mismatch"),
        ([], ("com.example.b",), "checkpoint_required_extension_unavailable"),
    ):
        with pytest.raises(CheckpointError) as caught:
            check_available(entries, registered, required)
        assert caught.value.code == code


def test_importing_the_package_loads_no_heavy_module() -> None:
    code = "import vv_agent, sys; print([m for m in ('pydantic', 'msgpack', 'rfc8785') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
