"""Several runs at once on a pool of threads of this process."""

from support import fail, heard, runner

from vv_agent import Agent, ExecutionMode, NoToolPolicy, RunConfig

agent = Agent(name="translator", instructions="Translate into French.", no_tool_policy=NoToolPolicy.FINISH)


def main() -> None:
    run = runner(heard(lambda text: f"(in French) {text}"), config=RunConfig(execution_mode=ExecutionMode.THREADED))
    handles = [run.start(agent, word) for word in ("bread", "cheese", "wine")]
    for handle in handles:
        result = handle.result(timeout=120)
        print(f"{result.status.value}: {result.final_output}")
        if result.status != "completed":
            fail("a run did not complete")


if __name__ == "__main__":
    main()
