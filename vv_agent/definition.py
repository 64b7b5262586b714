"""The run definition `vv-agent.run-definition.v1`: what a run is, closed, immutable and compared by digest.

Two definitions describe the same run when their digests are equal. Compare `digest`, never the objects: to Python
`True == 1 == 1.0`. The shape and its codes are those of spec 10, section 4; `definition_rules` builds definitions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from vv_agent import _pointer
from vv_agent._json import MAX_WIRE, digest, plain
from vv_agent.errors import CheckpointError
from vv_agent.messages import Message

SCHEMA = "vv-agent.run-definition.v1"
NOT_I_JSON = "checkpoint_definition_not_i_json"
REDACTED = "<credential-redacted>"
LINK = "definition:"
"""How the id of a capability reference begins that names another definition, by its digest."""
SENSITIVE_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "api-key"})

_T = TypeVar("_T")
Many = Annotated[tuple[_T, ...], Field(strict=False)]
"""A list on the wire, a tuple inside; its items stay strict."""


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def _message(wire: dict[str, Any]) -> dict[str, Any]:
    Message.from_wire(wire)
    return wire


Text = Annotated[str, AfterValidator(_not_blank)]
Count = Annotated[int, Field(ge=0, le=MAX_WIRE)]
Positive = Annotated[int, Field(ge=1, le=MAX_WIRE)]
Seconds = Annotated[float, Field(gt=0)]
OpenMap = dict[str, Any]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class CapabilityRef(_Closed):
    """The stable name of something that lives in a process only: an `id` and the `version` of its behaviour."""

    id: Text
    version: Text


class AgentIdentity(_Closed):
    """Which agent runs first."""

    name: Text
    type: str | None


class Retry(_Closed):
    """How often a model call is tried and how long to wait between, in seconds."""

    max_attempts: Positive
    backoff_seconds: Annotated[float, Field(ge=0)]


class NamedFunction(_Closed):
    """The function a tool choice insists on."""

    name: Text


class NamedChoice(_Closed):
    """A tool choice that insists on one function."""

    type: Literal["function"]
    function: NamedFunction


class PlainFormat(_Closed):
    """A response format without a schema."""

    type: Literal["text", "json_object"]


class SchemaFormat(_Closed):
    """A response format with the provider's schema object."""

    type: Literal["json_schema"]
    json_schema: OpenMap


class EffectiveSettings(_Closed):
    """Model settings after all overrides; None is unset and absent on the wire. The timeout lives beside them."""

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**32 - 1)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: OpenMap | None = None
    response_format: Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")] | None = None
    retry: Retry | None = None
    extra_headers: OpenMap | None = None
    extra_body: OpenMap | None = None
    extra_args: OpenMap | None = None

    @model_validator(mode="after")
    def _no_nulls(self) -> EffectiveSettings:
        if nulls := sorted(name for name in self.model_fields_set if getattr(self, name) is None):
            raise ValueError(f"{', '.join(nulls)} must be left out, not null")
        return self


class ModelIdentity(_Closed):
    """Which model, and how it is asked."""

    backend: Text
    model_id: Text
    transport_timeout_seconds: Seconds | None
    settings: EffectiveSettings


class RuntimeControls(_Closed):
    """Limits and switches of the loop. The compaction threshold is in tokens."""

    max_cycles: Positive
    max_handoffs: Count
    no_tool_policy: Literal["continue", "wait_user", "finish"]
    memory_compact_threshold: Count
    memory_threshold_percentage: Annotated[int, Field(ge=0, le=100)]
    allow_interruption: bool
    native_multimodal: bool
    tool_use_behavior: Literal["run_llm_again", "stop_on_first_tool", "stop_at_tool_names"]
    stop_at_tool_names: Many[str]


class FunctionSchema(_Closed):
    """What the model sees of one tool."""

    name: Text
    description: str
    parameters: OpenMap


class ToolSchema(_Closed):
    """The envelope of a function schema."""

    type: Literal["function"]
    function: FunctionSchema


class DeclaredMetadata(_Closed):
    """What the host declared about a tool; the model never sees it."""

    side_effect: Literal["unknown", "none", "read", "write", "execute", "network", "external"]
    idempotency: Literal["unknown", "supported", "unsupported"]
    terminal: bool
    capability_tags: Many[str]
    cost_dimensions: Many[str]


class StaticApproval(_Closed):
    """An approval rule that is a plain yes or no."""

    mode: Literal["static"]
    required: bool


class ReferencedApproval(_Closed):
    """An approval rule that is code, by its stable name."""

    mode: Literal["referenced"]
    ref: CapabilityRef


class DefinedTool(_Closed):
    """One tool, in the order the model sees them."""

    model_config = ConfigDict(serialize_by_alias=True)

    tool_schema: ToolSchema = Field(alias="schema")
    tool_metadata: DeclaredMetadata | None
    timeout_seconds: Seconds | None
    approval: Annotated[StaticApproval | ReferencedApproval, Field(discriminator="mode")]


class EffectivePolicy(_Closed):
    """The tool policy after agent, runner and run were merged."""

    allowed_tools: Many[str] | None
    disallowed_tools: Many[str]
    approval: Literal["default", "always", "never", "on_request"]
    predicate_ref: CapabilityRef | None
    approval_timeout_seconds: Seconds | None
    denied_side_effects: Many[str]
    denied_capability_tags: Many[str]
    deny_terminal_tools: bool
    denied_cost_dimensions: Many[str]


class AmbiguityPolicy(_Closed):
    """What may be repeated when an outcome is unknown, and how large extension state may grow (bytes)."""

    ambiguous_model_policy: Literal["require_reconciliation", "retry_with_duplicate_risk"]
    ambiguous_tool_policy: Literal["require_reconciliation", "retry_idempotent_only"]
    max_extension_state_bytes: Count


class DefinedHostCost(_Closed):
    """A cost limit in millionths of the host's unit."""

    unit: Text
    currency: Text | None
    amount_microunits: Count


class DefinedBudget(_Closed):
    """Limits of the run; all seven fields, null where nothing is limited."""

    max_total_tokens: Count | None
    max_uncached_input_tokens: Count | None
    max_tool_calls: Count | None
    max_tool_calls_by_name: dict[Text, Count]
    max_wall_time_ms: Count | None
    max_host_cost: DefinedHostCost | None
    unavailable_metric_policy: Literal["continue_and_mark", "stop"]


class DefinedExtension(_Closed):
    """One extension whose state the checkpoint carries."""

    namespace: Text
    version: Text
    required: bool


class RunDefinition(_Closed):
    """All that decides how a run behaves, and nothing that differs between two runs of it.

    Secrets are replaced by `<credential-redacted>`; store, key, ids, claims and cursors are not part of it. A
    definition that was read keeps exactly the fields it was read with, so that its digest stays the same. Objects
    are frozen, their open maps (`initial_shared_state`, `extra_body`, ...) must not be changed.
    """

    schema_version: Literal["vv-agent.run-definition.v1"]
    agent: AgentIdentity
    root_input: str
    compiled_prompt: str
    initial_messages: Many[Annotated[dict[str, Any], AfterValidator(_message)]]
    initial_shared_state: OpenMap
    run_metadata: OpenMap
    context_ref: CapabilityRef | None
    model: ModelIdentity
    credential_slots: Many[str]
    runtime_controls: RuntimeControls
    tools: Many[DefinedTool]
    tool_policy: EffectivePolicy
    checkpoint_policy: AmbiguityPolicy
    budget_limits: DefinedBudget | None
    output_schema: OpenMap | None
    workspace_ref: CapabilityRef | None
    session_ref: CapabilityRef | None
    extensions: Many[DefinedExtension]
    capability_refs: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.:-]*\z")], CapabilityRef]

    @classmethod
    def parse(cls, value: Any) -> RunDefinition:
        """Read a definition from JSON values; the caller's object is copied.

        Integers outside 64 bits are read as floating-point literals, as JSON text means them. Raises
        `CheckpointError` with `checkpoint_definition_schema_unsupported`, `checkpoint_definition_not_i_json`,
        `checkpoint_definition_invalid`, `checkpoint_credential_slots_invalid`, `checkpoint_credential_slot_unresolved`,
        `checkpoint_credential_value_not_redacted` or `checkpoint_definition_sensitive_value_unclassified`, in this
        order.
        """
        if not isinstance(value, Mapping):
            raise _invalid("", f"a definition is an object, not {type(value).__name__}")
        if value.get("schema_version") != SCHEMA:
            raise CheckpointError(
                "checkpoint_definition_schema_unsupported",
                f"schema_version is {value.get('schema_version')!r}, this program reads {SCHEMA!r}; "
                "use a version of vv-agent that knows it",
            )
        wire = plain(value, code=NOT_I_JSON, wide_as_float=True)
        try:
            definition = cls.model_validate(wire)
        except ValidationError as error:
            raise _deepest(error) from None
        _check_credentials(wire)
        return definition

    @classmethod
    def decode(cls, data: bytes) -> RunDefinition:
        """Read what `encode` wrote; the codes of `parse`."""
        import msgpack

        try:
            value = msgpack.unpackb(data)
        except Exception as error:  # msgpack raises ValueError, UnicodeDecodeError and its own types
            raise _invalid("", f"the stored bytes are damaged ({error})") from error
        return cls.parse(value)

    def to_wire(self) -> dict[str, Any]:
        """The definition as JSON values: the fields it was read with."""
        return self.model_dump(mode="json", exclude_unset=True)

    def encode(self) -> bytes:
        """The stored form: msgpack, which keeps integers and floating-point numbers apart (RFC 8785 text does not)."""
        import msgpack

        data: bytes = msgpack.packb(self.to_wire())
        return data

    def linked(self, slot: str) -> str | None:
        """The digest of another agent's definition that this one names."""
        ref = self.capability_refs.get(slot)
        return ref.id.removeprefix(LINK) if ref is not None and ref.id.startswith(LINK) else None

    @cached_property
    def digest(self) -> str:
        """Lowercase hex SHA-256 of the RFC 8785 form; computed once per object."""
        return digest(self.to_wire())

    def check_digest(self, expected: str) -> None:
        """Refuse a digest that is none (`checkpoint_definition_digest_invalid`) or another definition's
        (`checkpoint_definition_mismatch`)."""
        if re.fullmatch(r"[0-9a-f]{64}", expected) is None:
            raise CheckpointError(
                "checkpoint_definition_digest_invalid",
                f"definition digest {expected!r} must be 64 lower-case hexadecimal digits of a SHA-256",
            )
        if expected != self.digest:
            raise CheckpointError(
                "checkpoint_definition_mismatch",
                f"the definition has digest {self.digest}, {expected} was recorded; "
                "go on with the definition the run was started with, or start a new run under another key",
            )

    def messages(self) -> list[Message]:
        """The initial messages as values."""
        return [Message.from_wire(wire) for wire in self.initial_messages]


def check_slots(slots: Sequence[str]) -> None:
    """Refuse credential slots that are not RFC 6901 pointers in strictly ascending UTF-16 order."""
    for slot in slots:
        if not _pointer.is_pointer(slot):
            raise CheckpointError(
                _SLOTS_INVALID,
                f"credential slot {slot!r} is not a JSON Pointer; write /a/b, with ~0 for ~ and ~1 for /",
            )
    if not _pointer.is_ascending(slots):
        raise CheckpointError(
            _SLOTS_INVALID,
            f"credential slots {list(slots)} must be sorted by UTF-16 code units, without repeats",
        )


def refuse_unclassified(headers: Any, slots: Sequence[str]) -> None:
    """Fail closed when a header that carries credentials by its name has no slot. Never shows its value."""
    for name in headers if isinstance(headers, dict) else ():
        slot = _pointer.join(["model", "settings", "extra_headers", name])
        if name.lower() in SENSITIVE_HEADERS and slot not in slots:
            raise CheckpointError(
                "checkpoint_definition_sensitive_value_unclassified",
                f"header {name!r} looks like a credential; declare {slot!r} in CheckpointConfig(credential_slots=...) "
                "or let the model provider add the header itself",
            )


def _check_credentials(wire: dict[str, Any]) -> None:
    slots: list[str] = wire["credential_slots"]
    for slot in slots:
        if not _pointer.is_pointer(slot):
            break
        if credential(wire, slot) != REDACTED:
            raise CheckpointError(
                "checkpoint_credential_value_not_redacted",
                f"the value at credential slot {slot!r} is not {REDACTED!r}; store definitions in their redacted form",
            )
    check_slots(slots)
    refuse_unclassified(wire["model"]["settings"].get("extra_headers"), slots)


def credential(wire: Mapping[str, Any], slot: str) -> Any:
    """The value at a credential slot, or `checkpoint_credential_slot_unresolved`."""
    try:
        return _pointer.resolve(wire, slot)
    except LookupError:
        raise CheckpointError(
            "checkpoint_credential_slot_unresolved",
            f"credential slot {slot!r} names no value of this definition; remove the slot or set the value",
        ) from None


_SLOTS_INVALID = "checkpoint_credential_slots_invalid"
_CODES = {"credential_slots": _SLOTS_INVALID}
"""Top-level field -> code of a fault in it; every other fault of the shape is `checkpoint_definition_invalid`."""


def _deepest(error: ValidationError) -> CheckpointError:
    """The contract's error for the deepest fault (in a union the most telling); places and rules, never values."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    first = max(faults, key=lambda fault: len(fault["loc"]))
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    code = _CODES.get(str(first["loc"][0]) if first["loc"] else "", "checkpoint_definition_invalid")
    return _invalid(_pointer.join([str(step) for step in first["loc"]]), first["msg"] + more, code)


def _invalid(at: str, problem: str, code: str = "checkpoint_definition_invalid") -> CheckpointError:
    return CheckpointError(code, f"run definition {at or '/'}: {problem}; it must be exactly a {SCHEMA} object")
