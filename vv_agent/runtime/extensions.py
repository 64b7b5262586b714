"""State that the host keeps with a run: restored before the first model call of a claim, taken before each end of a
cycle."""

from __future__ import annotations

from typing import Any

from vv_agent.checkpoint.extensions import check_available, check_sizes
from vv_agent.runtime.program import Program
from vv_agent.runtime.run import Run
from vv_agent.runtime.transcript import storable


def restore(run: Run) -> None:
    """Give each registered extension its stored state, once a claim. `CheckpointError` when a required one is missing
    or has another version: nothing external has happened then."""
    registered = run.program.extensions
    if run.extensions or registered:
        check_available(run.extensions, registered, run.program.required_namespaces)
    for extension in registered:
        entry = run.extensions.get(extension.namespace)
        if entry is not None and not run.restored:
            extension.restore(entry["state"])
    run.restored = True


def snapshot(run: Run) -> None:
    """Take each extension's state into the record; `CheckpointError` when it is too large. One that has not got its
    state under this claim has nothing to tell."""
    if run.program.extensions and run.restored:
        run.extensions |= taken(run.program)
        check_sizes(run.extensions, run.program.max_extension_bytes)


def taken(program: Program) -> dict[str, Any]:
    """What the program's extensions have now, by namespace."""
    entries = {
        extension.namespace: {
            "version": extension.version, "required": extension.required, "state": storable(extension.snapshot()),
        }
        for extension in program.extensions
    }  # fmt: skip
    check_sizes(entries, program.max_extension_bytes)
    return entries
