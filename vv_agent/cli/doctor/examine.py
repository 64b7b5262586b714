"""The checks in their order, and what is printed of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from vv_agent.cli import render
from vv_agent.cli.doctor.finding import Finding, note, ok, problem
from vv_agent.errors import SettingsError, VVAgentError
from vv_agent.settings import Settings, read_settings


def diagnose(*, live: bool, as_json: bool) -> int:
    """Print every finding; 1 if one is a problem."""
    findings = list(examine(live=live))
    if as_json:
        render.as_json([asdict(finding) for finding in findings])
    else:
        render.table({"level": "Level", "check": "Check", "text": "Found"}, [asdict(finding) for finding in findings])
        for finding in findings:
            if finding.level == "problem":
                render.say(f"\n{finding.check}: {finding.text}\n  {finding.remedy}")
    return 1 if any(finding.level == "problem" for finding in findings) else 0


def examine(*, live: bool) -> Iterator[Finding]:
    """Every check of this process's settings; one that breaks is a problem of its own."""
    try:
        settings = read_settings()
    except SettingsError as error:
        yield problem("environment", error.message, "correct the variable (docs/settings.md lists all)")
        return
    yield ok("environment", f"queue {settings.queue}, lease {settings.lease_seconds:g} s, {settings.pool}")
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("store", lambda: _store(settings)),
        ("broker", lambda: _broker(settings)),
        ("imports", lambda: imports(settings.imports)),
        ("models", lambda: _models(settings, live=live)),
    ]
    for name, check in checks:
        yield from _guarded(name, check)


def _guarded(name: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except VVAgentError as error:
        yield problem(name, error.message, f"docs/errors.md has {error.code}")
    except Exception as error:
        yield problem(name, f"the check failed: {type(error).__name__}: {error}", "report this")


def _store(settings: Settings) -> Iterator[Finding]:
    from vv_agent.cli.doctor import store

    yield from store.check(settings)


def _broker(settings: Settings) -> Iterator[Finding]:
    if settings.broker is None:
        yield note("broker", "none (VV_AGENT_BROKER): workers take runs from the store itself")
        return
    from vv_agent.cli.doctor import broker

    yield from broker.check(settings)


def _models(settings: Settings, *, live: bool) -> Iterator[Finding]:
    from vv_agent.cli.doctor import models

    yield from models.check(settings, live=live)


def imports(modules: Iterable[str]) -> Iterator[Finding]:
    """Whether the modules a worker may load code from can be loaded where the worker is started."""
    import importlib

    if not modules:
        yield note("imports", "none (VV_AGENT_IMPORTS): a worker runs built-in tools only")
    sys.path.insert(0, os.getcwd())  # as a worker does
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:  # whatever foreign code does when it is loaded
            yield problem(
                "imports", f"{name} cannot be loaded: {type(error).__name__}: {error}",
                f"install it, or start in the folder that has it (this is {Path.cwd()}); else take it out of "
                "VV_AGENT_IMPORTS",
            )  # fmt: skip
        else:
            yield ok("imports", f"{name} can be loaded")
