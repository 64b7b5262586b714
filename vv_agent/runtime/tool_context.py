"""What a tool sees of the run that calls it."""

from __future__ import annotations

from typing import Any

from vv_agent.cancellation import CancellationToken
from vv_agent.errors import ToolError
from vv_agent.messages import ToolCall
from vv_agent.runtime.run import Run
from vv_agent.tools.arguments import parse_arguments
from vv_agent.tools.base import ToolContext


def tool_context(
    run: Run, call: ToolCall, *, attempt: int, key: str, token: CancellationToken | None = None
) -> ToolContext:
    """The context of one call; `shared_state` and `file_baselines` are the run's own, saved with the result."""
    return ToolContext(
        run_id=run.body.run_id,
        run_key=run.key,
        agent_name=run.body.agent,
        cycle_index=run.index,
        tool_call_id=call.id,
        tool_name=call.name,
        raw_arguments=call.arguments,
        idempotency_key=key,
        attempt=attempt,
        workspace=run.program.workspace,
        shared_state=run.shared_state,
        file_baselines=run.baselines,
        metadata=run.program.definition.run_metadata,
        context=run.program.context,
        cancellation=token or CancellationToken(),
        check_claim=run.hold.check,
    )


def parsed(call: ToolCall) -> dict[str, Any]:
    """The arguments of a call, {} where the text is none."""
    try:
        return parse_arguments(call.arguments)
    except ToolError:
        return {}
