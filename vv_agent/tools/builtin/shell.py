"""`bash` and `check_background_command`: commands of a shell in the workspace, waited for or left running."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from vv_agent.errors import ToolError
from vv_agent.results import ToolExecutionResult, ToolStatus
from vv_agent.tool_metadata import ToolIdempotency, ToolMetadata, ToolSideEffect
from vv_agent.tools.base import Arguments, ToolContext
from vv_agent.tools.builtin.base import BuiltinTool, workspace_of
from vv_agent.tools.builtin.processes import Command, background
from vv_agent.tools.output import error_result, json_text
from vv_agent.workspace import DiscoveryFilteredWorkspaceBackend, LocalWorkspaceBackend

DEFAULT_TIMEOUT, MAX_TIMEOUT = 300, 600
"""Seconds."""
_FORBIDDEN = ("rm -rf /", "shutdown", "reboot", "mkfs", "dd if=/dev/zero of=/dev/")
"""A seat belt against accidents, not a wall: a command can be written in other ways."""
_RECORDS = "_background_commands"
"""Key of the shared state: session id -> where the command was started, for who looks for it elsewhere."""
_MAX_RECORDS = 32


@dataclass(frozen=True, slots=True)
class Shell:
    """What commands are given to. `named` is the configured name, None for the default."""

    program: str
    prefix: tuple[str, ...]
    named: str | None

    @property
    def shown(self) -> dict[str, str]:
        return {} if self.named is None else {"shell": self.named}

    @property
    def is_posix(self) -> bool:
        return self.prefix == ("-lc",)


def shell_of(metadata: Mapping[str, Any]) -> Shell:
    """The shell that the run's metadata asks for (`bash_shell`, on Windows the first there is of
    `windows_shell_priority`), else bash; `ToolError` `invalid_shell_config`."""
    named, priority = metadata.get("bash_shell"), metadata.get("windows_shell_priority", [])
    if named is not None and (not isinstance(named, str) or not named.strip()):
        raise _misconfigured("`bash_shell` must be a string shell name.")
    if not isinstance(priority, list) or not all(isinstance(name, str) for name in priority):
        raise _misconfigured("`windows_shell_priority` must be a list of shell names.")
    if named is None and os.name == "nt" and (there := [name for name in priority if shutil.which(name)]):
        named = there[0]
    candidates = [named.strip()] if named else ["bash", "sh"]
    program = next((name for name in candidates if shutil.which(name)), None)
    if program is None:
        raise _misconfigured(f"there is no shell {candidates[0]!r} on this machine.")
    kind = PurePath(program).stem.lower()
    prefix = {"powershell": _POWERSHELL, "pwsh": _POWERSHELL, "cmd": ("/C",)}.get(kind, ("-lc",))
    return Shell(program, prefix, named.strip() if named else None)


_POWERSHELL = ("-NoLogo", "-NoProfile", "-Command")


@dataclass(eq=False, kw_only=True)
class Bash(BuiltinTool):
    """The tool; its description names the shell of the run."""

    def for_run(self, metadata: Mapping[str, Any]) -> Bash:
        """The tool as a run with this metadata shows it to the model."""
        try:
            shell = shell_of(metadata)
            hint = f"commands run as `{' '.join((shell.program, *shell.prefix))} <command>`."
        except ToolError as error:
            hint = f"invalid shell config. {error.details['hint']}"
        return replace(self, description=f"{self.description}\nRuntime shell hint: {hint}")


def _bash(context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
    command = arguments["command"].strip()
    if not command:
        raise ToolError("`command` is required", "command_required")
    if found := next((word for word in _FORBIDDEN if word in command.lower()), None):
        raise ToolError(f"The command is refused: it holds `{found}`", "dangerous_command")
    folder, cwd = _folder(context, arguments.get("exec_dir", "."))
    timeout = _timeout(arguments.get("timeout", DEFAULT_TIMEOUT))
    shell = shell_of(context.metadata)
    environment = _environment(context.metadata)
    line, stdin = _fed(command, arguments, shell)
    in_background = arguments.get("run_in_background", False)
    context.check_claim()
    try:
        started = Command(
            [shell.program, *shell.prefix, line], folder, env=environment, stdin=stdin,
            limit=timeout if in_background else None,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise ToolError(f"The command could not be started: {error}", "command_failed") from error
    if in_background:
        session = _leave(context, started, command, cwd, shell)
        return _running(context, {"session_id": session, **shell.shown})
    detach = context.cancellation.on_cancel(started.stop)
    try:
        ended = started.done.wait(timeout)
    except BaseException:  # Ctrl-C
        started.stop()
        raise
    finally:
        detach()
    if context.cancellation.cancelled:
        started.stop()
        started.done.wait()
        raise ToolError(f"The command was stopped: {context.cancellation.reason}", "tool_cancelled")
    if not ended:
        started.limit(MAX_TIMEOUT)
        session = _leave(context, started, command, cwd, shell)
        report = {
            "session_id": session,
            "cwd": cwd,
            "message": f"The command still runs after {timeout} seconds. It goes on in the background, for "
            f"{MAX_TIMEOUT} more seconds at most; look at it with check_background_command.",
            "output": started.output,
            "transitioned_to_background": True,
            **shell.shown,
        }
        return _running(context, report)
    return _ended(context, started, {"cwd": cwd, "exit_code": started.exit_code, **shell.shown})


def _folder(context: ToolContext, exec_dir: str) -> tuple[str, str]:
    """The folder to run in, and its name for the result: relative to the workspace where it is inside."""
    workspace = workspace_of(context)
    while isinstance(workspace, DiscoveryFilteredWorkspaceBackend):
        workspace = workspace.inner
    if not isinstance(workspace, LocalWorkspaceBackend):
        raise ToolError("Commands need a workspace that is a folder of this machine", "invalid_exec_dir")
    os.makedirs(workspace.root, exist_ok=True)
    try:
        path = Path(os.path.realpath(workspace.root / os.path.expanduser(exec_dir.strip() or ".")))
        found = path.is_dir()
    except (OSError, ValueError) as error:  # too long, or a NUL byte in it
        raise ToolError(f"`exec_dir` cannot be a folder: {error}", "invalid_exec_dir") from None
    inside = path.is_relative_to(workspace.root)
    if not inside and not workspace.allow_outside_root:
        raise ToolError(f"`exec_dir` is outside of the workspace: {exec_dir}", "invalid_exec_dir")
    if not found:
        raise ToolError(f"`exec_dir` is no folder: {exec_dir}", "invalid_exec_dir")
    return str(path), path.relative_to(workspace.root).as_posix() if inside else str(path)


def _timeout(given: Any) -> int:
    if not 1 <= given <= MAX_TIMEOUT:
        raise ToolError(f"`timeout` must be from 1 to {MAX_TIMEOUT} seconds", "invalid_timeout")
    return int(given)


def _environment(metadata: Mapping[str, Any]) -> dict[str, str]:
    given = metadata.get("bash_env") or {}
    if not isinstance(given, Mapping) or not all(isinstance(value, str) for value in given.values()):
        raise _misconfigured("`bash_env` must be an object of strings.")
    if wrong := [name for name in given if not name or "=" in name or name.startswith("-")]:
        raise _misconfigured(f"`bash_env` has the name {wrong[0]!r}.")
    return {str(name): value for name, value in given.items()}


def _fed(command: str, arguments: Arguments, shell: Shell) -> tuple[str, str]:
    """The line for the shell and the text on its standard input, which with `auto_confirm` has no end of yes."""
    stdin = arguments.get("stdin", "")
    if not arguments.get("auto_confirm", False):
        return command, stdin
    if not shell.is_posix:
        return command, stdin + "y\n" * 512
    return f"{{ cat; yes; }} | (\n{command}\n)", stdin


def _leave(context: ToolContext, command: Command, text: str, cwd: str, shell: Shell) -> str:
    """Leave a command running; the id under which it can be looked at."""
    session = f"bg_{secrets.token_hex(6)}"
    background.add(context.run_key or "", session, command)
    records = context.shared_state.setdefault(_RECORDS, {})
    while len(records) >= _MAX_RECORDS:
        del records[next(iter(records))]
    records[session] = {"command": text[:1000], "cwd": cwd, **shell.shown, "where": _here()}
    return session


def _here() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _check(context: ToolContext, arguments: Arguments) -> ToolExecutionResult:
    session = arguments["session_id"].strip()
    if not session:
        raise ToolError("`session_id` is required", "session_id_required")
    command = background.get(context.run_key or "", session)
    records = context.shared_state.get(_RECORDS, {})
    record = records.get(session, {})
    if command is None:
        return _gone(context, session, record)
    known = {"session_id": session, **{name: record[name] for name in ("command", "cwd", "shell") if name in record}}
    elapsed = {"elapsed_seconds": round(command.elapsed, 3)}
    if not command.done.is_set():
        return _running(context, {**known, **elapsed})
    return _ended(context, command, {**known, **elapsed, "exit_code": command.exit_code}, session)


def _gone(context: ToolContext, session: str, record: Mapping[str, Any]) -> ToolExecutionResult:
    """A session that this process does not have: never started, or started by a worker that is not this one."""
    text, status = "Background session not found", "missing"
    if record and record["where"] != _here():
        status = "lost"
        text = (
            f"The background command was started in {record['where']}, this is {_here()}: it ended with that process, "
            "or ends there at its time limit, and its output cannot be read. Start it again if it is still needed."
        )
    fields = {"status": status, "session_id": session}
    code = "background_command_failed"
    return error_result(context.tool_call_id, text, code, fields, metadata={"error_code": code, **fields})


def _running(context: ToolContext, report: dict[str, Any]) -> ToolExecutionResult:
    return ToolExecutionResult(
        tool_call_id=context.tool_call_id,
        content=json_text({"status": "running", **report}),
        status_code=ToolStatus.RUNNING,
        metadata=_machine({"status": "running", **report}),
    )


def _ended(
    context: ToolContext, command: Command, report: dict[str, Any], session: str | None = None
) -> ToolExecutionResult:
    """The result of a command that is over; `session` for one in the background."""
    report = {**report, "output": command.output, **({"output_truncated": True} if command.cut else {})}
    if session is not None:
        report = {"status": command.status, **report}
    if command.status == "completed":
        return ToolExecutionResult(
            tool_call_id=context.tool_call_id, content=json_text(report), metadata=_machine(report)
        )
    code = "command_failed" if session is None else "background_command_failed"
    texts = {"timeout": "command ran out of time and was killed", "stopped": "command was stopped"}
    text = texts.get(command.status, f"command exited with code {command.exit_code}")
    return error_result(
        context.tool_call_id, text, code, report, metadata={"error_code": code, **_machine(report)}
    )  # fmt: skip


def _machine(report: Mapping[str, Any]) -> dict[str, Any]:
    """The bounded fields of a report."""
    return {name: report[name] for name in ("status", "session_id", "cwd", "exit_code", "shell") if name in report}


def _misconfigured(hint: str) -> ToolError:
    return ToolError(f"Invalid shell config: {hint}", "invalid_shell_config", hint=hint)


bash = Bash(
    name="bash",
    description=(
        "Run a shell command in the workspace and read what it prints: standard output and errors together, the "
        "first 50,000 characters, with the exit code. `exec_dir` is the folder to run in, relative to the "
        "workspace. `stdin` is text for the command to read; `auto_confirm` answers its questions with yes. Nobody "
        "can type anything else.\n"
        "A command that takes longer than `timeout` seconds (1 to 600, 300 if not given) is not lost: it goes on "
        "in the background, and the result has a `session_id` to look at it with check_background_command. For "
        "servers and other long work set `run_in_background`: the call returns at once, and the command is stopped "
        "after `timeout` seconds. What a command starts with `&` ends together with the command. Use the file "
        "tools rather than the shell to read, write and search files."
    ),
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "string"},
            "exec_dir": {"type": "string"},
            "timeout": {"type": "integer"},
            "stdin": {"type": "string"},
            "auto_confirm": {"type": "boolean"},
            "run_in_background": {"type": "boolean"},
        },
        "required": ["command"],
    },
    handler=_bash,
    tool_metadata=ToolMetadata(ToolSideEffect.EXECUTE, ToolIdempotency.UNSUPPORTED),
)

check_background_command = BuiltinTool(
    name="check_background_command",
    description=(
        "Look at a command that runs in the background, by the `session_id` that bash gave. The result says "
        "whether it is `running`, has `completed`, has `failed` or ran into its time limit (`timeout`), and once "
        "it is over what it printed. `lost` means that the worker it ran in is gone."
    ),
    parameters={"type": "object", "properties": {"session_id": {"type": "string"}}, "required": ["session_id"]},
    handler=_check,
    tool_metadata=ToolMetadata(ToolSideEffect.READ, ToolIdempotency.SUPPORTED),
)
