"""Several hooks: those of the agent come first, then those of the run; each sees what the one before it made."""

import dataclasses

from support import fail, runner, show

from vv_agent import Agent, NoToolPolicy, RunConfig, RuntimeHook


class Replace(RuntimeHook):
    """Replaces a word of the model's answer."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def after_llm(self, event):
        print(f"{self.old} -> {self.new}: {event.response.content}")
        return dataclasses.replace(event.response, content=event.response.content.replace(self.old, self.new))


agent = Agent(
    name="writer",
    instructions="Write one sentence about rain.",
    no_tool_policy=NoToolPolicy.FINISH,
    hooks=[Replace("rain", "snow")],
)


def main() -> None:
    run = runner("The rain falls.", config=RunConfig(hooks=[Replace("snow", "hail")]))
    result = run.run_sync(agent, "Write.", run_config=RunConfig(hooks=[Replace("hail", "sunshine")]))
    if any(word in str(result.final_output) for word in ("rain", "snow", "hail")):
        fail("a hook was passed over")
    show(result)


if __name__ == "__main__":
    main()
