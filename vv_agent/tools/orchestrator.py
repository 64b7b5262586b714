"""What stands between a call the model asked for and its result: parsed, planned, validated, allowed, run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vv_agent.errors import ToolError
from vv_agent.messages import ToolCall
from vv_agent.results import ToolExecutionResult
from vv_agent.tools.arguments import parse_arguments
from vv_agent.tools.base import Arguments, Tool, ToolContext
from vv_agent.tools.border import bordered
from vv_agent.tools.output import error_result
from vv_agent.tools.policy import PlannedCall, ToolPolicy, refusal


@dataclass(frozen=True, slots=True)
class ReadyCall:
    """A call that may start."""

    tool: Tool
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """A call that must not start, with the result the model reads. `arguments` is None for what is no object: it never
    reaches planning and has no events."""

    result: ToolExecutionResult
    arguments: Arguments | None


@dataclass(frozen=True)
class ToolOrchestrator:
    """The way of one call, without a journal and events, which the runtime adds around `invoke`.

    `planned_tools` are the names the model was shown (None: whatever it names), `parameters` the schemas it was shown
    where they are not the tools' own. The checks are the list `vv_agent.tools.policy.CHECKS`, in this order; approval
    follows the last of them.
    """

    tools: Mapping[str, Tool]
    policy: ToolPolicy = field(default_factory=ToolPolicy)
    planned_tools: Collection[str] | None = None
    parameters: Mapping[str, dict[str, Any]] | None = None

    def check(self, call: ToolCall) -> ReadyCall | RefusedCall:
        """Whether a call may start."""
        try:
            arguments = parse_arguments(call.arguments)
        except ToolError as error:
            return RefusedCall(error_result(call.id, error.message, error.code), None)
        tool = self.tools.get(call.name)
        own = tool.params_json_schema if tool is not None else None
        planned = PlannedCall(
            tool_call_id=call.id, name=call.name, arguments=arguments, policy=self.policy, tool=tool,
            advertised={call.name} if self.planned_tools is None else self.planned_tools,
            parameters=own if self.parameters is None else self.parameters.get(call.name),
        )  # fmt: skip
        refused = refusal(planned)
        if refused is not None:
            return RefusedCall(refused, arguments)
        assert tool is not None  # one of the checks
        return ReadyCall(tool, arguments)

    def execute(self, call: ToolCall, context: ToolContext) -> ToolExecutionResult:
        """Check a call and run it; what is wrong with it is a result with status ERROR."""
        checked = self.check(call)
        if isinstance(checked, RefusedCall):
            return checked.result
        described = replace(context, tool_call_id=call.id, tool_name=call.name, raw_arguments=call.arguments)
        return invoke(checked.tool, described, checked.arguments)


def invoke(tool: Tool, context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
    """Run a tool, whoever wrote it: what it raises, or returns that is no result, is its failure."""
    return bordered(tool.name, context, lambda: tool.invoke(context, arguments))
