"""An agent whose prompt is made at the start and who has skills, as a user's module: workers load it by name."""

from __future__ import annotations

from collections.abc import Sequence

from vv_agent import Agent, ContextFragment, ContextRequest, NoToolPolicy, RunContext
from vv_agent.llm.base import ModelRequest
from vv_agent.testing import ScriptedProvider, call


class Style:
    """A context provider; says how often it was asked."""

    asked = 0

    def fragments(self, request: ContextRequest) -> Sequence[ContextFragment]:
        type(self).asked += 1
        text = f"Asked {self.asked} times, by {request.agent_name}, for {request.input!r}."
        return [ContextFragment("style", text, source="editor.style")]


class Audience:
    """An asynchronous one."""

    async def fragments(self, request: ContextRequest) -> Sequence[ContextFragment]:
        return [ContextFragment("audience", "Write for children.", stable=True, priority=10)]


def instructions(context: RunContext, agent: Agent) -> str:
    return f"You are {agent.name} at desk {context.metadata.get('desk', 'none')}, asked {Style.asked} times so far."


def what_it_saw(request: ModelRequest) -> str:
    """The answer is the system prompt the model was sent."""
    return request.messages[0].content


style, audience = Style(), Audience()
editor = Agent(name="editor", instructions="Edit texts.", no_tool_policy=NoToolPolicy.FINISH)
counter = Agent(
    name="counter", instructions="Count.", no_tool_policy=NoToolPolicy.FINISH, metadata={"available_skills": ["skills"]}
)
models = ScriptedProvider([call("activate_skill", {"skill_name": "count-words"}), what_it_saw])
