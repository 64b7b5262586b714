"""A longer flow: search papers, give each to a reader, and write a report into the workspace.

The search looks into a list in this file; a tool that asks export.arxiv.org takes its place in earnest.
"""

import json

from support import BACKEND, MODEL, WORKSPACE, by_agent, fail, runner, show

from vv_agent import Agent, RunConfig, SubAgentConfig, function_tool
from vv_agent.testing import call

PAPERS = {
    "2001.00001": ("Leases in stores", "A lease by the store's clock needs no agreement between clients."),
    "2001.00002": ("Workers that die", "A worker is dead when its process is, not when it is slow."),
}


@function_tool(idempotency="supported")
def search_papers(query: str) -> list[dict[str, str]]:
    """Search papers; gives ids and titles."""
    return [{"id": number, "title": title} for number, (title, _) in PAPERS.items()]


@function_tool(idempotency="supported")
def read_paper(number: str) -> str:
    """The abstract of a paper."""
    return PAPERS[number][1] if number in PAPERS else f"there is no paper {number}"


lead = Agent(
    name="lead",
    instructions="Lead: search_papers, give each paper to the reader, write report.md, then task_finish.",
    tools=[search_papers, read_paper],
    sub_agents={
        "reader": SubAgentConfig(
            MODEL, backend=BACKEND, system_prompt="Read the paper with read_paper, then task_finish with one sentence."
        )
    },
)


def read(request):
    """The reader's turn: the id stands in the task it was given."""
    task = next(message.content for message in request.messages if message.role == "user")
    return call("read_paper", {"number": next(number for number in PAPERS if number in task)})


def report(request):
    """The lead's turn after the readers: their sentences become the report."""
    rows = json.loads(request.messages[-1].content)["results"]
    lines = "".join(f"- {row['final_answer']}\n" for row in rows)
    return call("write_file", {"path": "report.md", "content": f"# Leases\n\n{lines}"})


def main() -> None:
    (WORKSPACE / "report.md").unlink(missing_ok=True)
    tasks = [{"task_description": f"Read {number} and say what it shows."} for number in PAPERS]
    result = runner(
        *by_agent(
            {
                "Lead": [
                    call("search_papers", {"query": "leases"}),
                    call("create_sub_task", {"agent_id": "reader", "tasks": tasks}),
                    report,
                    call("task_finish", {"message": "The report is in report.md.", "exposed_files": ["report.md"]}),
                ],
                "Read": [read, lambda request: call("task_finish", {"message": request.messages[-1].content})],
            }
        )
    ).run_sync(lead, "What is known about leases?", run_config=RunConfig(max_cycles=20))
    if not (WORKSPACE / "report.md").is_file():
        fail("there is no report")
    print((WORKSPACE / "report.md").read_text(encoding="utf-8"))
    show(result)


if __name__ == "__main__":
    main()
