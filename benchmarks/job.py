"""The job of every measure: n cycles, each one model turn with one repeatable tool whose result is 200 bytes.

Workers load it by import path, so everything a run needs stands at the top level.
"""

from __future__ import annotations

import random
import string
from collections.abc import Sequence

from vv_agent import Agent, ModelRef, NoToolPolicy, function_tool
from vv_agent.dispatch.base import Backend
from vv_agent.runtime.advance import advance
from vv_agent.runtime.context import Engine
from vv_agent.runtime.recipe import CycleRecipe
from vv_agent.testing import ScriptedProvider, call, say

RESULT = "".join(random.Random(1).choices(string.ascii_letters + string.digits, k=200))


@function_tool(idempotency="supported")
def look(n: int) -> str:
    """Look at something."""
    return RESULT


AGENT = Agent(name="bench", instructions="Look.", tools=[look], no_tool_policy=NoToolPolicy.FINISH)

SLOW_AGENT = Agent(
    name="bench", instructions="Say.", no_tool_policy=NoToolPolicy.FINISH, model=ModelRef.backend("local", "slow")
)


def provider(cycles: int, *, delay: float = 0.0) -> ScriptedProvider:
    """A model that calls `look` in all cycles but the last."""
    return ScriptedProvider([*(call("look", {"n": n}) for n in range(cycles - 1)), say("done")], delay=delay)


# For worker processes.
ten = provider(10)
long = provider(300)
ten_slow = provider(10, delay=0.05)
talker = ScriptedProvider([say("0123456 " * 100)])


class Released(Backend):
    """Advances a run as a worker does: each commit releases the claim, and the next cycle claims again."""

    local = True

    def drive(self, engine: Engine, recipe: CycleRecipe, *, resume: bool = False) -> None:
        steps: Sequence[CycleRecipe] = (recipe,)
        while steps:
            steps = advance(engine, steps[0], resume=resume).next
