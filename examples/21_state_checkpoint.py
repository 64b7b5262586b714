"""Where a run is kept: in memory, or in a SQLite file, from which another program goes on with it."""

import os
import tempfile
from pathlib import Path

from jobs import shirts
from support import show

from vv_agent import Agent, CheckpointConfig, RunConfig, Runner
from vv_agent.checkpoint import CheckpointStore, MemoryStore, open_store

agent = Agent(name="clerk", instructions="Ask for the size with ask_user, then task_finish.")


def order(store: CheckpointStore) -> None:
    """A run that waits, and goes on by its key alone."""
    config = CheckpointConfig(key="order-1", store=store)
    waiting = Runner(model_provider=shirts).run_sync(
        agent, "A shirt, please.", run_config=RunConfig(checkpoint_config=config)
    )
    print(f"the record {waiting.checkpoint_key} is {store.look('order-1').head.state}")
    show(waiting, "wait_user")
    show(Runner().resume("order-1", input="M", store=store))


def main() -> None:
    os.environ.setdefault("VV_AGENT_IMPORTS", "jobs")  # what this process may load for a run that it finds
    order(MemoryStore())
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{Path(folder) / 'runs.db'}")
        order(store)
        store.close()


if __name__ == "__main__":
    main()
