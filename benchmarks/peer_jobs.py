"""The job of `benchmarks.peers`, once for each library: n steps, each with a 200-byte result, kept on SQLite.

Each function runs in an environment that has only its own library, and prints the seconds and bytes of one run:
`python peer_jobs.py NAME STEPS FOLDER`.
"""

from __future__ import annotations

import json
import operator
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

RESULT = "r" * 200


def ours(steps: int, folder: Path) -> float:
    """A model turn and a tool call each step, through the runner, claims kept."""
    from vv_agent import Agent, CheckpointConfig, NoToolPolicy, RunConfig, Runner, function_tool
    from vv_agent.checkpoint.store import open_store
    from vv_agent.testing import ScriptedProvider, call, say

    @function_tool(idempotency="supported")
    def look(n: int) -> str:
        """Look."""
        return RESULT

    agent = Agent(name="peer", instructions="Look.", tools=[look], no_tool_policy=NoToolPolicy.FINISH)
    store = open_store(f"sqlite:///{folder}/ours.db")

    def once(count: int, key: str) -> None:
        provider = ScriptedProvider([*(call("look", {"n": n}) for n in range(count)), say("done")])
        config = RunConfig(max_cycles=count + 1, checkpoint_config=CheckpointConfig(store=store, key=key))
        result = Runner(model_provider=provider).run_sync(agent, "go", run_config=config)
        assert result.final_output == "done"

    return _timed(once, steps)


def langgraph(steps: int, folder: Path) -> float:
    """A graph of one model node and one tool node, its state of messages saved after each by the SQLite saver."""
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, StateGraph

    class State(TypedDict):
        messages: Annotated[list[dict[str, Any]], operator.add]

    wanted = 0

    def model(state: State) -> dict[str, Any]:
        turn = sum(message["role"] == "assistant" for message in state["messages"])
        calls = [{"id": f"call_{turn}", "name": "look", "arguments": {"n": turn}}] if turn < wanted else []
        return {"messages": [{"role": "assistant", "content": "" if calls else "done", "tool_calls": calls}]}

    def tool(state: State) -> dict[str, Any]:
        (call,) = state["messages"][-1]["tool_calls"]
        return {"messages": [{"role": "tool", "content": RESULT, "tool_call_id": call["id"]}]}

    graph: Any = StateGraph(State)
    graph.add_node("model", model)
    graph.add_node("tool", tool)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tool" if state["messages"][-1]["tool_calls"] else END)
    graph.add_edge("tool", "model")
    with SqliteSaver.from_conn_string(str(folder / "langgraph.db")) as saver:
        app = graph.compile(checkpointer=saver)

        def once(count: int, key: str) -> None:
            nonlocal wanted
            wanted = count
            config = {"configurable": {"thread_id": key}, "recursion_limit": 2 * count + 5}
            state = app.invoke({"messages": [{"role": "user", "content": "go"}]}, config)
            assert state["messages"][-1]["content"] == "done"

        return _timed(once, steps)


def dbos(steps: int, folder: Path) -> float:
    """A workflow of two recorded steps a turn: the model's and the tool's."""
    from dbos import DBOS

    DBOS(config={"name": "peer", "system_database_url": f"sqlite:///{folder}/dbos.db", "run_admin_server": False})

    @DBOS.step()
    def model(turn: int, count: int) -> dict[str, Any]:
        calls = [{"id": f"call_{turn}", "name": "look", "arguments": {"n": turn}}] if turn < count else []
        return {"role": "assistant", "content": "" if calls else "done", "tool_calls": calls}

    @DBOS.step()
    def tool(call: dict[str, Any]) -> str:
        return RESULT

    @DBOS.workflow()
    def job(count: int) -> str:
        for turn in range(count + 1):
            answer = model(turn, count)
            for call in answer["tool_calls"]:
                tool(call)
        return str(answer["content"])

    def once(count: int, key: str) -> None:
        assert job(count) == "done"

    DBOS.launch()
    spent = _timed(once, steps)
    DBOS.destroy()
    return spent


def _timed(once: Callable[[int, str], None], steps: int) -> float:
    """Seconds of one run, after a short one that loads what is loaded at first use."""
    once(2, "warm-up")
    began = time.perf_counter()
    once(steps, "peer")
    return time.perf_counter() - began


def _stored(folder: Path) -> int:
    for file in folder.glob("*.db"):
        with closing(sqlite3.connect(file)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


if __name__ == "__main__":
    name, count, place = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    seconds = {"ours": ours, "langgraph": langgraph, "dbos": dbos}[name](count, place)
    print(json.dumps({"seconds": seconds, "bytes": _stored(place)}))
