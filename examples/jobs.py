"""What another process loads by import path: the models of examples 21 and 23, and the agent and tool of 23."""

from support import provider

from vv_agent import Agent, NoToolPolicy, ToolContext, function_tool
from vv_agent.testing import call


@function_tool(idempotency="supported")
def refund(order: str, cents: int, context: ToolContext) -> str:
    """Refund an order. The payment service gets the key: a repeated call brings the same one."""
    return f"refunded {cents} cents of {order} under {context.idempotency_key}"


agent = Agent(
    name="shop", instructions="Refund broken orders at once.", tools=[refund], no_tool_policy=NoToolPolicy.FINISH
)
models = provider(call("refund", {"order": "A-17", "cents": 500}), "You get 5.00 back.")
shirts = provider(
    call("ask_user", {"question": "Which size?"}), call("task_finish", {"message": "One shirt of size M."})
)
