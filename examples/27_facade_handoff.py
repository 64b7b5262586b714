"""A hand-off: another agent takes the conversation over, and the run goes on under the same key."""

from support import by_agent, fail, heard, runner, show

from vv_agent import Agent, NoToolPolicy, RunConfig, handoff
from vv_agent.testing import call

billing = Agent(name="billing", instructions="Explain bills.", no_tool_policy=NoToolPolicy.FINISH)
repairs = Agent(name="repairs", instructions="Arrange repairs.", no_tool_policy=NoToolPolicy.FINISH)
desk = Agent(
    name="desk",
    instructions="Transfer people to billing or to repairs.",
    handoffs=[handoff(billing, "For questions about money.", metadata={"floor": 2}), repairs],
)


def main() -> None:
    result = runner(
        *by_agent(
            {
                "Transfer": [call("transfer_to_billing", {"input": "Bill 7 seems too high."})],
                "Explain": [heard(lambda said: f"I looked at it: {said}")],
                "Arrange": ["Somebody comes tomorrow."],
            }
        )
    ).run_sync(desk, "My bill is too high.", run_config=RunConfig(max_handoffs=3))
    for event in result.events:
        if event.type == "handoff_completed":
            print(f"{event.source_agent} -> {event.target_agent}: {event.status}")
    if result.agent_name == "desk":
        fail("nobody took over")
    show(result)


if __name__ == "__main__":
    main()
