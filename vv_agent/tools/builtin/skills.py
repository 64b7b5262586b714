"""`activate_skill`: the model asks for the instructions of a skill."""

from __future__ import annotations

from vv_agent.results import ToolExecutionResult
from vv_agent.skills.activation import activate
from vv_agent.tool_metadata import ToolIdempotency, ToolMetadata, ToolSideEffect
from vv_agent.tools.base import Arguments, ToolContext
from vv_agent.tools.builtin.base import BuiltinTool
from vv_agent.tools.output import json_text


def _activate(context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
    content = activate(
        context.shared_state, arguments["skill_name"], arguments.get("reason", ""), cycle_index=context.cycle_index,
        workspace=context.workspace,
    )  # fmt: skip
    return ToolExecutionResult(
        tool_call_id=context.tool_call_id,
        content=json_text(content),
        metadata={"skill_name": content["skill_name"]},
    )


activate_skill = BuiltinTool(
    name="activate_skill",
    description=(
        "Get the instructions of one of the available skills and follow them. Activate a skill before you start work "
        "that its description fits."
    ),
    parameters={
        "type": "object",
        "properties": {"skill_name": {"type": "string"}, "reason": {"type": "string"}},
        "required": ["skill_name"],
    },
    handler=_activate,
    tool_metadata=ToolMetadata(ToolSideEffect.READ, ToolIdempotency.SUPPORTED),
)
