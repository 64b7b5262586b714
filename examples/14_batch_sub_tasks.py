"""Work given to a sub-agent: several tasks at once, and one in the background that is asked about."""

import json

from support import BACKEND, MODEL, by_agent, fail, runner, show

from vv_agent import Agent, NoToolPolicy, SubAgentConfig
from vv_agent.testing import call

boss = Agent(
    name="boss",
    instructions="Lead: give the three cities to the clerk as one batch, then the rivers in the background; "
    "wait for them with sub_task_status and say what you got.",
    no_tool_policy=NoToolPolicy.FINISH,
    sub_agents={
        "clerk": SubAgentConfig(MODEL, backend=BACKEND, system_prompt="Look it up, then task_finish with the answer.")
    },
)


def ask_about_it(request):
    """The task id stands in the answer of the call that began the work."""
    begun = json.loads(request.messages[-1].content)
    return call("sub_task_status", {"task_ids": [begun["task_id"]], "wait_for_completion": True})


def main() -> None:
    cities = [{"task_description": f"How many people live in {city}?"} for city in ("Ulm", "Bonn", "Jena")]
    rivers = {"agent_id": "clerk", "task_description": "Name their rivers.", "wait_for_completion": False}
    result = runner(
        *by_agent(
            {
                "Lead": [
                    call("create_sub_task", {"agent_id": "clerk", "tasks": cities}),
                    call("create_sub_task", rivers),
                    ask_about_it,
                    "I have the numbers and the rivers.",
                ],
                "Look it up": [
                    lambda request: call("task_finish", {"message": f"({request.messages[-1].content[:30]})"})
                ],
            }
        )
    ).run_sync(boss, "Cities and rivers, please.")
    ended = [event for event in result.events if event.type == "sub_run_completed"]
    print(f"{len(ended)} tasks: {', '.join(event.status for event in ended)}")
    if not ended:
        fail("nothing was given to the clerk")
    show(result)


if __name__ == "__main__":
    main()
