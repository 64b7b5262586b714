"""What a user's module looks like to workers: an agent, its tool and its model at the top level."""

from __future__ import annotations

from vv_agent import Agent, NoToolPolicy, function_tool
from vv_agent.testing import ScriptedProvider, call


@function_tool
def price(item: str) -> int:
    """The price of an item, in cents."""
    return 250 if item == "pear" else 0


agent = Agent(name="shop", instructions="Help.", tools=[price], no_tool_policy=NoToolPolicy.FINISH)
models = ScriptedProvider([call("price", {"item": "pear"}), "A pear costs 2.50."])
