"""The commands, as typer reads them: their words and nothing else."""

from __future__ import annotations

from typing import Annotated

import typer

from vv_agent.cli.arguments import OPTIONS, usage

_DIRECT = "\n".join([
    "\b", "One task, without a command: vv-agent --prompt WORDS [OPTIONS]; its result is JSON on stdout.",
    *(f"  {f'{option.name} {option.takes or str()}'.ljust(22)}  {option.help}" for option in OPTIONS),
])  # fmt: skip

app = typer.Typer(
    name="vv-agent", pretty_exceptions_enable=False, rich_markup_mode=None, epilog=_DIRECT,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)  # fmt: skip
runs = typer.Typer(help="Look at runs, watch them, and tell them what they wait for.", no_args_is_help=True)
app.add_typer(runs, name="runs")
server = typer.Typer(help="Serve a program that drives agents over JSON-RPC, or write the schema of its messages.")
app.add_typer(server, name="app-server")
debug = typer.Typer(help="Look at what goes over a wire.", no_args_is_help=True)
app.add_typer(debug, name="debug")
debug_server = typer.Typer(help="Try the App Server.", no_args_is_help=True)
debug.add_typer(debug_server, name="app-server")


def _keys(incomplete: str) -> list[tuple[str, str]]:
    from vv_agent.cli.runs import complete_key

    return complete_key(incomplete)


Key = Annotated[str, typer.Argument(metavar="KEY", help="The run's key.", autocompletion=_keys)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"vv-agent {version('vv-agent')}")
        except PackageNotFoundError:  # run from its folder
            typer.echo("vv-agent, not installed")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Durable agent runs: every cycle is a checkpointed job that any worker can finish."""
    del version
    if context.invoked_subcommand is None:
        raise usage('there is nothing to do; give --prompt "WORDS", or a command')


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
def resume(key: Key, json: Json = False) -> None:
    """Go on with a run, here or by its workers, and print what came of it."""
    from vv_agent.cli.resume import resume_run

    raise typer.Exit(resume_run(key, as_json=json))


@app.command()
def doctor(
    json: Json = False,
    live: Annotated[bool, typer.Option("--live", help="Also call a model of each endpoint (one token).")] = False,
) -> None:
    """Check what is configured, reachable and unsafe; exit code 1 if there is a problem."""
    from vv_agent.cli.doctor import diagnose

    raise typer.Exit(diagnose(live=live, as_json=json))


@runs.command("list")
def list_(
    status: Annotated[str | None, typer.Option(help="Only runs of this status.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only runs of this queue.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 20,
    below: Annotated[bool, typer.Option("--all", help="Also the runs below others, such as sub-agents.")] = False,
    json: Json = False,
) -> None:
    """List the newest runs."""
    from vv_agent.cli.runs import list_runs

    raise typer.Exit(list_runs(status=status, queue=queue, limit=limit, below=below, as_json=json))


@runs.command()
def show(
    key: Key,
    json: Json = False,
    full: Annotated[bool, typer.Option("--full", help="All messages too, also what memory has compacted.")] = False,
) -> None:
    """Show a run: where it stands, what happened, and the command that goes on with it."""
    from vv_agent.cli import runs as commands

    raise typer.Exit(commands.show(key, full=full, as_json=json))


@runs.command()
def watch(key: Key, json: Json = False) -> None:
    """Watch a run until it ends or waits (--json: one event a line)."""
    from vv_agent.cli import runs as commands

    raise typer.Exit(commands.watch(key, as_json=json))


@runs.command()
def events(
    key: Key,
    after: Annotated[int, typer.Option(min=0, help="Only those after this number (column N).")] = 0,
    below: Annotated[bool, typer.Option("--all", help="Also those of the runs below it.")] = False,
    json: Json = False,
) -> None:
    """List a run's saved events (--json: one event a line)."""
    from vv_agent.cli import runs as commands

    raise typer.Exit(commands.events(key, after=after, below=below, as_json=json))


@runs.command()
def cancel(
    key: Key, reason: Annotated[str | None, typer.Option(help="Why; the run keeps it.")] = None, json: Json = False
) -> None:
    """Ask a run to stop."""
    from vv_agent.cli import runs as commands

    raise typer.Exit(commands.cancel(key, reason=reason, as_json=json))


@runs.command()
def answer(
    key: Key, text: Annotated[str, typer.Argument(metavar="TEXT", help="The answer.")], json: Json = False
) -> None:
    """Answer a run that waits for its user."""
    from vv_agent.cli import runs as commands

    raise typer.Exit(commands.answer(key, text, as_json=json))


@runs.command()
def steer(
    key: Key, text: Annotated[str, typer.Argument(metavar="TEXT", help="What the model is told.")], json: Json = False
) -> None:
    """Say something before the next model call of a run; tool calls that were not begun are skipped."""
    from vv_agent.cli import runs as commands

    raise typer.Exit(commands.say(key, text, follow_up=False, as_json=json))


@runs.command("follow-up")
def follow_up(
    key: Key, text: Annotated[str, typer.Argument(metavar="TEXT", help="The next input.")], json: Json = False
) -> None:
    """Give a run another input for when it completes."""
    from vv_agent.cli import runs as commands

    raise typer.Exit(commands.say(key, text, follow_up=True, as_json=json))


@runs.command()
def approve(
    key: Key,
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="The request, as `runs show` names it.")],
    *,
    allow: Annotated[bool, typer.Option("--allow", help="Let the call run.")] = False,
    allow_session: Annotated[
        bool, typer.Option("--allow-session", help="Let it run, and later calls of that tool in this run.")
    ] = False,
    deny: Annotated[str | None, typer.Option(metavar="REASON", help="Do not let it run, for this reason.")] = None,
    json: Json = False,
) -> None:
    """Decide on a tool call that waits for a yes."""
    from vv_agent.cli import runs as commands

    raise typer.Exit(commands.approve(key, request, allow=allow, allow_session=allow_session, deny=deny, as_json=json))


@runs.command("raise-budget")
def raise_budget(
    key: Key,
    *,
    total_tokens: Annotated[int | None, typer.Option(min=0, help="Tokens at most, in all.")] = None,
    uncached_tokens: Annotated[int | None, typer.Option(min=0, help="Uncached input tokens at most.")] = None,
    tool_calls: Annotated[int | None, typer.Option(min=0, help="Tool calls at most.")] = None,
    calls: Annotated[
        list[str] | None, typer.Option(metavar="TOOL=N", help="Calls of one tool at most; may be given more than once.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0, max=1e9, help="Active seconds at most.")] = None,
    host_cost: Annotated[int | None, typer.Option(min=0, help="The host's cost at most, in microunits.")] = None,
    json: Json = False,
) -> None:
    """Give a run other limits; what it has used counts on. Limits that are not named stay."""
    from vv_agent.cli import runs as commands

    limits = {
        "max_total_tokens": total_tokens, "max_uncached_input_tokens": uncached_tokens, "max_tool_calls": tool_calls,
        "max_wall_time_ms": None if seconds is None else round(seconds * 1000),
    }  # fmt: skip
    raise typer.Exit(commands.raise_budget(key, limits, calls or [], host_cost, as_json=json))


@runs.command()
def reconcile(
    key: Key,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="The operation, as `runs show` names it.")],
    *,
    retry: Annotated[bool, typer.Option("--retry", help="Make the call again.")] = False,
    done: Annotated[str | None, typer.Option(metavar="TEXT", help="It was carried out; this is its outcome.")] = None,
    failed: Annotated[str | None, typer.Option(metavar="TEXT", help="It certainly failed; this is the error.")] = None,
    abort: Annotated[str | None, typer.Option(metavar="TEXT", help="End the run as failed, for this reason.")] = None,
    json: Json = False,
) -> None:
    """Decide what became of an operation whose outcome was lost."""
    from vv_agent.cli.runs import Verdict
    from vv_agent.cli.runs import reconcile as decide

    verdict = Verdict.of(retry=retry, done=done, failed=failed, abort=abort)
    raise typer.Exit(decide(key, operation, verdict, as_json=json))


@runs.command()
def prune(
    *,
    older_than: Annotated[str | None, typer.Option(metavar="AGE", help="Ended so long ago: 30d, 12h, 90m.")] = None,
    keep: Annotated[int | None, typer.Option(min=0, help="But keep so many of the newest that are over.")] = None,
    status: Annotated[list[str] | None, typer.Option(help="Only of this status; may be given more than once.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only runs of this queue.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing; say what would be.")] = False,
    json: Json = False,
) -> None:
    """Remove runs that are over, with the runs below them; never one that works or waits."""
    from vv_agent.cli.keep import prune as carry_out

    code = carry_out(
        older_than=older_than, keep=keep, statuses=status or [], queue=queue, dry_run=dry_run, as_json=json
    )
    raise typer.Exit(code)


@runs.command()
def export(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Keys of runs.", autocompletion=_keys)],
    out: Annotated[str | None, typer.Option(metavar="FILE", help="A new file (without: stdout).")] = None,
    move: Annotated[bool, typer.Option("--move", help="Then remove them here.")] = False,
) -> None:
    """Write runs, each with the runs below it, as JSON that `runs import` reads."""
    from vv_agent.cli.keep import export as write

    raise typer.Exit(write(keys, out=out, move=move))


@runs.command("import")
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `runs export` wrote; - for stdin.")],
    json: Json = False,
) -> None:
    """Put exported runs into the store; a key that is taken is refused, and then nothing is done."""
    from vv_agent.cli.keep import import_ as read

    raise typer.Exit(read(file, as_json=json))


Out = Annotated[str, typer.Option("--out", metavar="FOLDER", help="Where to write.")]


@server.callback(invoke_without_command=True)
def serve(
    context: typer.Context,
    *,
    listen: Annotated[str | None, typer.Option(metavar="stdio", help="How the client is connected.")] = None,
    settings: Annotated[str | None, typer.Option(metavar="PATH", help="Settings file with the models.")] = None,
    backend: Annotated[str | None, typer.Option(help="Backend of the settings file.")] = None,
    model: Annotated[str | None, typer.Option(help="Model of that backend.")] = None,
    timeout_seconds: Annotated[float, typer.Option(min=0.001, help="How long a model may be silent.")] = 90.0,
    store: Annotated[
        str | None,
        typer.Option(metavar="PATH|URL", help="Keep threads there (without: in memory); turns outlive the server."),
    ] = None,
) -> None:
    """Serve a client on standard input and output."""
    if context.invoked_subcommand is None:
        from vv_agent.cli.app_server import serve as run

        options = {"--listen": listen, "--settings": settings, "--backend": backend, "--model": model}
        raise typer.Exit(run(options, timeout=timeout_seconds, store=store))


@server.command()
def schema(out: Out) -> None:
    """Write the JSON Schema of every message, below FOLDER/json."""
    from vv_agent.cli.app_server import write_schema

    raise typer.Exit(write_schema(out))


@server.command("generate-ts")
def generate_ts(out: Out) -> None:
    """Write the types of every message as TypeScript."""
    from vv_agent.cli.app_server import write_typescript

    raise typer.Exit(write_typescript(out))


@debug_server.command("send-message")
def send_message(text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say.")]) -> None:
    """Run one turn without a network, with a model that repeats TEXT, and print every message."""
    from vv_agent.cli.app_server import send_message as run

    raise typer.Exit(run(text))
