"""A limit of tokens: the run ends as failed when it is used up, and says by what."""

from support import runner, show

from vv_agent import Agent, RunBudgetLimits, RunConfig
from vv_agent.testing import call

USAGE = {"prompt_tokens": 40, "completion_tokens": 10, "total_tokens": 50}
agent = Agent(name="planner", instructions="Plan with todo_write, one step at a time, and never stop.")


def main() -> None:
    plan = call("todo_write", {"todos": [{"title": "think", "status": "pending", "priority": "low"}]})
    limits = RunBudgetLimits(max_total_tokens=120)
    run = runner(*[plan] * 9, usage=USAGE)
    result = run.run_sync(agent, "Plan a journey.", run_config=RunConfig(budget_limits=limits))
    print(
        f"{result.completion_reason}: {result.budget_usage.total_tokens} tokens in {result.budget_usage.cycles} cycles"
    )
    print(f"limit of {result.budget_exhaustion.dimension}: {result.budget_exhaustion.limit}")
    show(result, "failed")


if __name__ == "__main__":
    main()
