"""Several agents: what differs is their definition; metadata stays with the host and comes back with the result."""

from support import by_agent, runner, show

from vv_agent import Agent, ModelSettings, NoToolPolicy

PROFILES = [
    Agent(
        name="brief",
        instructions="Answer in one sentence.",
        no_tool_policy=NoToolPolicy.FINISH,
        model_settings=ModelSettings(max_tokens=200),
        metadata={"team": "support"},
    ),
    Agent(
        name="thorough",
        instructions="Answer with reasons.",
        no_tool_policy=NoToolPolicy.FINISH,
        max_cycles=3,
        metadata={"team": "research"},
    ),
]


def main() -> None:
    sea = "Because it scatters blue light"
    run = runner(*by_agent({"Answer in one": [f"{sea}."], "Answer with": [f"{sea}, and absorbs red light first."]}))
    for agent in PROFILES:
        result = run.run_sync(agent, "Why is the sea blue?")
        print(f"{agent.name} of team {result.metadata['team']}")
        show(result)


if __name__ == "__main__":
    main()
