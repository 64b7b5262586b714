"""A conversation of several turns: a session keeps the messages between the runs."""

from support import by_agent, fail, runner, show

from vv_agent import Agent, MemorySession, NoToolPolicy, RunConfig

agent = Agent(name="friend", instructions="Chat. Remember names.", no_tool_policy=NoToolPolicy.FINISH)


def main() -> None:
    session = MemorySession("thread-001")
    run = runner(*by_agent({"Chat": ["Hello, Ada.", "You are Ada."]}))
    for text in ("My name is Ada.", "Who am I?"):
        show(run.run_sync(agent, text, run_config=RunConfig(session=session)))
    for item in session.get_items():
        print(f"  {item.role}: {item.content}")
    if len(session.get_items()) != 4:
        fail("two turns are four messages")


if __name__ == "__main__":
    main()
