"""A client for one question, and a question that the first agent hands to another one."""

from support import by_agent, runner, show

from vv_agent import Agent, InteractiveAgentClient, NoToolPolicy
from vv_agent.testing import call

lawyer = Agent(name="lawyer", instructions="Know the law; answer briefly.", no_tool_policy=NoToolPolicy.FINISH)
desk = Agent(
    name="desk",
    instructions="Greet people. Transfer questions of law to the lawyer.",
    no_tool_policy=NoToolPolicy.FINISH,
    handoffs=[lawyer],
)


def main() -> None:
    greeting = runner("Good morning.")
    with InteractiveAgentClient(greeting).create_session(agent=desk) as session:
        print(session.query("Hello"))

    law = runner(
        *by_agent(
            {
                "Greet": [call("transfer_to_lawyer", {"input": "May I return opened goods?"})],
                "Know the law": ["Within fourteen days, yes."],
            }
        )
    )
    result = law.run_sync(desk, "May I return opened goods?")
    print(f"answered by {result.agent_name}")
    show(result)


if __name__ == "__main__":
    main()
