"""Two configured sub-agents, one after the other: the answer of the first is the work of the second."""

from support import BACKEND, MODEL, by_agent, heard, runner, show

from vv_agent import Agent, NoToolPolicy, SubAgentConfig
from vv_agent.testing import call

editor = Agent(
    name="editor",
    instructions="Lead: have the researcher collect facts, give them to the writer, and answer with the text.",
    no_tool_policy=NoToolPolicy.FINISH,
    sub_agents={
        "researcher": SubAgentConfig(
            MODEL, backend=BACKEND, description="Collects facts.", system_prompt="Collect facts, then task_finish."
        ),
        "writer": SubAgentConfig(
            MODEL, backend=BACKEND, description="Writes.", system_prompt="Write one sentence, then task_finish."
        ),
    },
)


def main() -> None:
    result = runner(
        *by_agent(
            {
                "Lead": [
                    call("create_sub_task", {"agent_id": "researcher", "task_description": "Facts about storks."}),
                    call(
                        "create_sub_task", {"agent_id": "writer", "task_description": "Write: storks clap their bills."}
                    ),
                    heard(lambda said: "Storks talk by clapping." if "clapping" in said else f"no text in {said}"),
                ],
                "Collect": [call("task_finish", {"message": "Storks clap their bills."})],
                "Write": [call("task_finish", {"message": "Storks talk by clapping."})],
            }
        )
    ).run_sync(editor, "A sentence about storks, please.")
    for event in result.events:
        if event.type == "sub_run_completed":
            print(f"{event.agent_name}: {event.status}")
    show(result)


if __name__ == "__main__":
    main()
