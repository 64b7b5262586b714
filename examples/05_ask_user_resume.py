"""The model asks its user; the run waits, and the answer lets it go on."""

from support import runner, show

from vv_agent import Agent
from vv_agent.testing import call

agent = Agent(name="barista", instructions="Take an order. Use ask_user for what is missing, then task_finish.")


def main() -> None:
    run = runner(
        call("ask_user", {"question": "Milk or no milk?", "options": ["milk", "no milk"]}),
        call("task_finish", {"message": "One coffee with milk."}),
    )
    waiting = run.run_sync(agent, "A coffee, please.")
    show(waiting, "wait_user")
    show(run.resume(waiting.into_state(), input="milk"))


if __name__ == "__main__":
    main()
