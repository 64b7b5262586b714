"""Which tools may be called: the policy, and the checks of one call in their fixed order."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from vv_agent._facade import only_known
from vv_agent._json import utf16_order
from vv_agent._loop import run_async
from vv_agent.errors import ConfigError
from vv_agent.results import ToolExecutionResult
from vv_agent.tool_metadata import ToolMetadata, ToolSideEffect, normalize_labels
from vv_agent.tools.arguments import mismatch, validate
from vv_agent.tools.base import Arguments, Tool, ToolExposure
from vv_agent.tools.output import error_result

CanUseTool = Callable[[str, Arguments], bool | Awaitable[bool]]


class ApprovalPolicy(StrEnum):
    """Who must say yes before a call runs. `default` inherits; `on_request` follows the tool's own declaration."""

    DEFAULT = "default"
    ALWAYS = "always"
    NEVER = "never"
    ON_REQUEST = "on_request"


@only_known("tool_policy_invalid")
@dataclass(frozen=True)
class ToolPolicy:
    """Rules about tools of one layer (agent, runner or run).

    `allowed_tools` None allows every name, an empty one none. The `denied_*` fields and `deny_terminal_tools` match
    what a tool declares in its `ToolMetadata`; a tool that declares nothing matches none of them. The methods return
    a policy with one rule more: `ToolPolicy().deny_side_effect("write").denying_terminal_tools()`.
    """

    allowed_tools: Collection[str] | None = None
    disallowed_tools: Collection[str] = ()
    approval: ApprovalPolicy = ApprovalPolicy.DEFAULT
    can_use_tool: CanUseTool | None = None
    denied_side_effects: Collection[ToolSideEffect | str] = ()
    denied_capability_tags: Collection[str] = ()
    deny_terminal_tools: bool = False
    denied_cost_dimensions: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.can_use_tool is not None and not callable(self.can_use_tool):
            raise ConfigError("tool_policy_invalid", f"can_use_tool is {self.can_use_tool!r}; it must be a function")
        normal: dict[str, Any] = {
            "allowed_tools": None if self.allowed_tools is None else _names(self.allowed_tools, "allowed_tools"),
            "disallowed_tools": _names(self.disallowed_tools, "disallowed_tools"),
            "approval": _approval(self.approval),
            "denied_side_effects": _side_effects(self.denied_side_effects),
            "denied_capability_tags": normalize_labels(_list(self.denied_capability_tags), "denied_capability_tags"),
            "denied_cost_dimensions": normalize_labels(_list(self.denied_cost_dimensions), "denied_cost_dimensions"),
        }
        for name, value in normal.items():
            object.__setattr__(self, name, value)

    def deny_side_effect(self, side_effect: ToolSideEffect | str) -> ToolPolicy:
        """Also deny tools that declare this side effect."""
        return replace(self, denied_side_effects=(*self.denied_side_effects, side_effect))

    def deny_capability_tag(self, tag: str) -> ToolPolicy:
        """Also deny tools that declare this tag."""
        return replace(self, denied_capability_tags=(*self.denied_capability_tags, tag))

    def deny_cost_dimension(self, dimension: str) -> ToolPolicy:
        """Also deny tools that declare this cost dimension."""
        return replace(self, denied_cost_dimensions=(*self.denied_cost_dimensions, dimension))

    def denying_terminal_tools(self) -> ToolPolicy:
        """Also deny tools that may finish or pause the run. (`deny_terminal_tools` is the field.)"""
        return replace(self, deny_terminal_tools=True)

    def advertises(self, tool: Tool) -> bool:
        """Whether the model is shown this tool: no rule denies it whatever its arguments are."""
        return tool.exposure is not ToolExposure.HIDDEN and not self.denies(tool.name, tool)

    def denies(self, name: str, tool: Tool | None) -> bool:
        """Whether a rule denies the tool of this name whatever its arguments are."""
        call = PlannedCall("", name, {}, self, frozenset({name}), tool, None)
        return any(check(call) is not None for check in _WITHOUT_ARGUMENTS)


def merge_policies(agent: ToolPolicy | None, runner: ToolPolicy | None, run: ToolPolicy | None) -> ToolPolicy:
    """One policy of three layers: the last `allowed_tools` that is set, every denial of each, all predicates, and the
    first approval mode that is not the default of run, agent, runner."""
    layers = [layer for layer in (agent, runner, run) if layer is not None]
    allowed = [layer.allowed_tools for layer in layers if layer.allowed_tools is not None]
    modes = [layer.approval for layer in (run, agent, runner) if layer and layer.approval is not ApprovalPolicy.DEFAULT]
    predicates = tuple(layer.can_use_tool for layer in layers if layer.can_use_tool is not None)
    return ToolPolicy(
        allowed_tools=allowed[-1] if allowed else None,
        disallowed_tools=[name for layer in layers for name in layer.disallowed_tools],
        approval=modes[0] if modes else ApprovalPolicy.DEFAULT,
        can_use_tool=AllOf(predicates) if len(predicates) > 1 else next(iter(predicates), None),
        denied_side_effects=[effect for layer in layers for effect in layer.denied_side_effects],
        denied_capability_tags=[tag for layer in layers for tag in layer.denied_capability_tags],
        deny_terminal_tools=any(layer.deny_terminal_tools for layer in layers),
        denied_cost_dimensions=[dimension for layer in layers for dimension in layer.denied_cost_dimensions],
    )


@dataclass(frozen=True, slots=True)
class AllOf:
    """Several predicates, all of which must agree; a definition names each of them."""

    predicates: tuple[CanUseTool, ...]

    def __call__(self, name: str, arguments: Arguments) -> bool:
        return all(_says(predicate, name, arguments) for predicate in self.predicates)


def _says(predicate: CanUseTool, name: str, arguments: Arguments) -> bool:
    """What a predicate says, asynchronous or not."""
    given: Any = predicate(name, arguments)
    return bool(run_async(given) if inspect.isawaitable(given) else given)


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A parsed call with all that decides whether it may run.

    `advertised` are the names the model was shown in this cycle; `parameters` the stored schema it was shown (None
    for a tool it was not shown); `tool` the handler this process has, if any.
    """

    tool_call_id: str
    name: str
    arguments: Arguments
    policy: ToolPolicy
    advertised: Collection[str]
    tool: Tool | None
    parameters: dict[str, Any] | None


Check = Callable[[PlannedCall], ToolExecutionResult | None]


def refusal(call: PlannedCall) -> ToolExecutionResult | None:
    """Why a call may not run, as the result the model reads; None when it may (approval comes next).

    The first of `CHECKS` that objects decides.
    """
    return next((result for check in CHECKS if (result := check(call)) is not None), None)


def _schema(call: PlannedCall) -> ToolExecutionResult | None:
    issues = validate(call.arguments, call.parameters) if call.parameters is not None else ()
    return mismatch(call.tool_call_id, issues) if issues else None


def _allowed_tools(call: PlannedCall) -> ToolExecutionResult | None:
    allowed = call.policy.allowed_tools
    return None if allowed is None or call.name in allowed else _denied(call, "allowed_tools")


def _disallowed_tools(call: PlannedCall) -> ToolExecutionResult | None:
    return _denied(call, "disallowed_tools") if call.name in call.policy.disallowed_tools else None


def _can_use_tool(call: PlannedCall) -> ToolExecutionResult | None:
    predicate = call.policy.can_use_tool
    if predicate is None:
        return None
    try:
        return None if _says(predicate, call.name, call.arguments) else _denied(call, "can_use_tool")
    except (Exception, SystemExit) as error:
        text = f"The policy of tool {call.name} failed, so it was not run: {error}"
        return error_result(call.tool_call_id, text, "tool_orchestrator_error")


def _planned_name(call: PlannedCall) -> ToolExecutionResult | None:
    return None if call.name in call.advertised else _denied(call, "planned_name")


def _exists(call: PlannedCall) -> ToolExecutionResult | None:
    if call.tool is not None:
        return None
    return error_result(call.tool_call_id, f"Tool not found: {call.name}", "tool_not_found")


def _side_effect(call: PlannedCall) -> ToolExecutionResult | None:
    denied = _declared(call).side_effect in call.policy.denied_side_effects
    return _denied(call, "metadata.side_effect") if denied and _declares(call) else None


def _terminal(call: PlannedCall) -> ToolExecutionResult | None:
    denied = call.policy.deny_terminal_tools and _declared(call).terminal
    return _denied(call, "metadata.terminal") if denied else None


def _capability_tag(call: PlannedCall) -> ToolExecutionResult | None:
    denied = not set(_declared(call).capability_tags).isdisjoint(call.policy.denied_capability_tags)
    return _denied(call, "metadata.capability_tag") if denied else None


def _cost_dimension(call: PlannedCall) -> ToolExecutionResult | None:
    denied = not set(_declared(call).cost_dimensions).isdisjoint(call.policy.denied_cost_dimensions)
    return _denied(call, "metadata.cost_dimension") if denied else None


_METADATA: tuple[Check, ...] = (_side_effect, _terminal, _capability_tag, _cost_dimension)
_WITHOUT_ARGUMENTS: tuple[Check, ...] = (_allowed_tools, _disallowed_tools, *_METADATA)

CHECKS: tuple[Check, ...] = (
    _schema,
    _allowed_tools,
    _disallowed_tools,
    _can_use_tool,
    _planned_name,
    _exists,
    *_METADATA,
)
"""The order of the wire (spec/24): it decides what an unwanted call is told. Approval comes after the last one."""


def _declares(call: PlannedCall) -> bool:
    return call.tool is not None and call.tool.tool_metadata is not None


def _declared(call: PlannedCall) -> ToolMetadata:
    declared = call.tool.tool_metadata if call.tool is not None else None
    return declared or ToolMetadata()


def _denied(call: PlannedCall, source: str) -> ToolExecutionResult:
    message = f"Tool {call.name} is not allowed for these arguments."
    metadata = {
        "mode": "permission_denied",
        "policy_source": source,
        "tool_name": call.name,
        "arguments": call.arguments,
        "message": message,
    }
    return error_result(call.tool_call_id, message, "tool_not_allowed", {"tool_name": call.name}, metadata=metadata)


def _list(values: Iterable[str]) -> list[str]:
    if isinstance(values, str):
        raise ConfigError("tool_policy_invalid", f"a tool policy takes lists of names, not the text {values!r}")
    return list(values)


def _names(values: Iterable[str], what: str) -> tuple[str, ...]:
    given = _list(values)
    names = tuple(dict.fromkeys(sorted(given) if isinstance(values, set | frozenset) else given))
    if not all(isinstance(name, str) for name in names):
        raise ConfigError("tool_policy_invalid", f"{what} must hold tool names")
    return names


def _side_effects(values: Iterable[ToolSideEffect | str]) -> tuple[ToolSideEffect, ...]:
    try:
        return tuple(sorted({ToolSideEffect(value) for value in _list(values)}, key=utf16_order))
    except ValueError as error:
        raise ConfigError("tool_metadata_invalid", f"denied_side_effects: {error}") from None


def _approval(value: ApprovalPolicy | str) -> ApprovalPolicy:
    try:
        return ApprovalPolicy(value)
    except ValueError:
        raise ConfigError(
            "tool_policy_invalid", f"approval {value!r} is not one of {', '.join(ApprovalPolicy)}"
        ) from None
