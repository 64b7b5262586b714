"""How a run is checkpointed: its key, its store, and what may be repeated when an outcome is unknown."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from vv_agent._json import MAX_WIRE, utf16_order
from vv_agent.checkpoint.extensions import check_namespace, namespace_repeated
from vv_agent.definition import CapabilityRef, check_slots
from vv_agent.errors import CheckpointError

MAX_KEY_BYTES = 512
DEFAULT_EXTENSION_BYTES = 262_144

_SLOT = re.compile(r"[a-z][a-z0-9_.:-]*\Z")


class ResumePolicy(StrEnum):
    """What a start does with a key that is there, or is not."""

    NEW = "new"
    RESUME_IF_PRESENT = "resume_if_present"
    REQUIRE_EXISTING = "require_existing"


class AmbiguousModelPolicy(StrEnum):
    """What follows when a model call may have been made and its answer is lost."""

    REQUIRE_RECONCILIATION = "require_reconciliation"
    RETRY_WITH_DUPLICATE_RISK = "retry_with_duplicate_risk"


class AmbiguousToolPolicy(StrEnum):
    """What follows when a tool call may have had its effect and its result is lost."""

    REQUIRE_RECONCILIATION = "require_reconciliation"
    RETRY_IDEMPOTENT_ONLY = "retry_idempotent_only"


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """The configuration of one checkpointed run; a run's own object replaces the runner's default as a whole.

    `key` names the run (1 to 512 UTF-8 bytes; None only with `new`, which then makes one). Exactly one of `store`, a
    live store, and `store_ref`, its name for workers, is given. By default a run goes on by itself: a lost model call
    is made again, a lost tool call only when the tool declares that repeating is safe. Policies may be given as text.

    Raises `CheckpointError`, checked in this order: policies (`checkpoint_policy_invalid`), store
    (`checkpoint_store_selection_invalid`), key (`checkpoint_key_invalid`, `checkpoint_key_required`), limit
    (`checkpoint_extension_limit_invalid`), slots (`checkpoint_credential_slots_invalid`), namespaces
    (`checkpoint_extension_namespace_invalid`, `..._duplicate`), references (`checkpoint_capability_ref_invalid`).
    """

    key: str | None = None
    resume_policy: ResumePolicy = ResumePolicy.NEW
    ambiguous_model_policy: AmbiguousModelPolicy = AmbiguousModelPolicy.RETRY_WITH_DUPLICATE_RISK
    ambiguous_tool_policy: AmbiguousToolPolicy = AmbiguousToolPolicy.RETRY_IDEMPOTENT_ONLY
    store: Any = None
    store_ref: CapabilityRef | None = None
    required_extension_namespaces: Sequence[str] = ()
    max_extension_state_bytes: int = DEFAULT_EXTENSION_BYTES
    credential_slots: Sequence[str] = ()
    capability_refs: Mapping[str, CapabilityRef] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in _POLICIES.items():
            object.__setattr__(self, name, _policy(kind, name, getattr(self, name)))
        _check_store(self.store, self.store_ref)
        if self.key is not None:
            validate_key(self.key)
        elif self.resume_policy is not ResumePolicy.NEW:
            raise CheckpointError(
                "checkpoint_key_required",
                f"resume_policy {self.resume_policy.value!r} needs a key; give CheckpointConfig(key=...)",
            )
        limit = self.max_extension_state_bytes
        if not isinstance(limit, int) or isinstance(limit, bool) or not 0 <= limit <= MAX_WIRE:
            raise CheckpointError(
                "checkpoint_extension_limit_invalid",
                f"max_extension_state_bytes is {limit!r}; it must be an integer from 0 to 2^53-1",
            )
        object.__setattr__(self, "credential_slots", _names(self.credential_slots, "credential_slots"))
        check_slots(self.credential_slots)
        namespaces = _names(self.required_extension_namespaces, "required_extension_namespaces")
        object.__setattr__(self, "required_extension_namespaces", _sorted_namespaces(namespaces))
        object.__setattr__(self, "capability_refs", _checked_refs(self.capability_refs))

    @classmethod
    def parse(cls, value: Any) -> CheckpointConfig:
        """A configuration as it is, or made from a mapping of its fields; anything else, and unknown fields, are
        `checkpoint_config_invalid`."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise _invalid(f"it is {type(value).__name__}; give a CheckpointConfig")
        if unknown := [str(name) for name in value if name not in {field.name for field in fields(cls)}]:
            raise _invalid(f"unknown fields {', '.join(sorted(unknown))}")
        return cls(**value)


# The contract reads every field off the class; a default_factory leaves none there.
setattr(CheckpointConfig, "capability_refs", MappingProxyType({}))  # noqa: B010

_POLICIES: dict[str, type[StrEnum]] = {
    "resume_policy": ResumePolicy,
    "ambiguous_model_policy": AmbiguousModelPolicy,
    "ambiguous_tool_policy": AmbiguousToolPolicy,
}


def validate_key(key: Any) -> str:
    """The key, or `checkpoint_key_invalid`: 1 to 512 UTF-8 bytes, not blank, no control characters or line ends.

    The last rule is ours: a key stands in listings, logs and shell commands.
    """
    problem = _key_problem(key)
    if problem is not None:
        raise CheckpointError(
            "checkpoint_key_invalid",
            f"checkpoint key {problem}; use 1 to {MAX_KEY_BYTES} bytes of printable text such as 'tenant-7/run-42'",
        )
    return str(key)


def _key_problem(key: Any) -> str | None:
    if not isinstance(key, str):
        return f"is {type(key).__name__}, not text"
    if all(letter.isspace() or unicodedata.category(letter) == "Cf" for letter in key):
        return "is blank"
    if bad := next((letter for letter in key if unicodedata.category(letter) in _UNPRINTABLE), None):
        return f"holds the control character {bad!r}"
    if (size := len(key.encode())) > MAX_KEY_BYTES:
        return f"has {size} bytes"
    return None


_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Controls, lone surrogates, line and paragraph separators."""


def _policy(kind: type[StrEnum], name: str, value: Any) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(repr(member.value) for member in kind)
        raise CheckpointError(
            "checkpoint_policy_invalid", f"{name} is {value!r}; it must be one of {choices}"
        ) from None


def _check_store(store: Any, ref: Any) -> None:
    if (store is None) == (ref is None):
        which = "neither" if store is None else "both"
        raise CheckpointError(
            "checkpoint_store_selection_invalid",
            f"{which} of store and store_ref given; give a live store here, or its CapabilityRef for workers",
        )
    if ref is not None and not isinstance(ref, CapabilityRef):
        raise CheckpointError(
            "checkpoint_store_selection_invalid", f"store_ref is {ref!r}; give CapabilityRef(id, version)"
        )


def _names(value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _invalid(f"{name} is {value!r}; it must be a list of strings")
    return tuple(value)


def _sorted_namespaces(namespaces: Sequence[str]) -> tuple[str, ...]:
    result = sorted(map(check_namespace, namespaces), key=utf16_order)
    for left, right in pairwise(result):
        if left == right:
            raise namespace_repeated(left)
    return tuple(result)


def _checked_refs(refs: Any) -> dict[str, CapabilityRef]:
    if not isinstance(refs, Mapping):
        raise _invalid(f"capability_refs is {type(refs).__name__}; it must map slots to CapabilityRef")
    for slot, ref in refs.items():
        if not isinstance(slot, str) or not _SLOT.match(slot) or not isinstance(ref, CapabilityRef):
            raise CheckpointError(
                "checkpoint_capability_ref_invalid",
                f"capability_refs[{slot!r}] is {ref!r}; a slot is like 'output_guardrail:0', its value a CapabilityRef",
            )
    return dict(refs)


def _invalid(problem: str) -> CheckpointError:
    return CheckpointError("checkpoint_config_invalid", f"checkpoint_config: {problem}")
