"""The commands."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    name="vv-agent", help="Durable agent runs: every cycle is a checkpointed job that any worker can finish.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
)  # fmt: skip


@app.callback()
def root() -> None:
    """Durable agent runs: every cycle is a checkpointed job that any worker can finish."""


@app.command()
def worker(
    queue: Annotated[list[str] | None, typer.Option(help="Queue to serve; may be given more than once.")] = None,
    processes: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Cycles at once in each process.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say what happens, on stderr.")] = False,
) -> None:
    """Advance the runs of VV_AGENT_STORE until stopped (Ctrl-C or SIGTERM)."""
    from vv_agent.cli.worker import work

    work(queues=tuple(queue or ()), processes=processes, threads=threads, verbose=verbose)


@app.command()
def resume(key: Annotated[str, typer.Argument(help="The run's key.")]) -> None:
    """Go on with a run, here or by its workers, and print its result."""
    from vv_agent.cli.resume import resume_run

    resume_run(key)
