"""Settings from the environment: the only reader of it (DESIGN section 8)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vv_agent.errors import SettingsError

DEFAULT_STORE = "sqlite:///.vv-agent/runs.db"
DEFAULT_QUEUE = "vv-agent"


@dataclass(frozen=True)
class Settings:
    """What the operator set. `lease_seconds` may be fractional; `imports` are the modules a worker may load code
    from."""

    store: str = DEFAULT_STORE
    broker: str | None = None
    sessions: str | None = None
    """URL of the store of sessions, for the password that a run's record leaves out."""
    queue: str = DEFAULT_QUEUE
    imports: tuple[str, ...] = ()
    pool: str = "threads"
    concurrency: int = 50
    lease_seconds: float = 30.0
    visibility_seconds: float = 900.0
    """After how long a Redis broker delivers a message again that nobody acknowledged."""
    local_settings: str | None = None
    crash: str | None = None
    """A named crash point of `vv_agent.testing`; only tests set it."""
    crash_file: str | None = None

    @property
    def lease_ms(self) -> int:
        return int(self.lease_seconds * 1000)


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process. `SettingsError` names the variable, what is wrong and what it may be."""
    env = os.environ if environment is None else environment

    def text(name: str) -> str | None:
        return env.get(f"VV_AGENT_{name}", "").strip() or None

    def number(name: str, default: float, low: float, high: float) -> float:
        raw = text(name)
        if raw is None:
            return default
        try:
            value = float(raw)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise SettingsError(
                "settings_invalid", f"VV_AGENT_{name}={raw!r} must be a number from {low:g} to {high:g}"
            )
        return value

    pool = text("POOL") or "threads"
    if pool not in ("threads", "prefork", "solo"):
        raise SettingsError("settings_invalid", f"VV_AGENT_POOL={pool!r} must be threads, prefork or solo")
    return Settings(
        store=text("STORE") or DEFAULT_STORE,
        broker=text("BROKER"),
        sessions=text("SESSIONS"),
        queue=text("QUEUE") or DEFAULT_QUEUE,
        imports=tuple(part.strip() for part in (text("IMPORTS") or "").split(",") if part.strip()),
        pool=pool,
        concurrency=int(number("CONCURRENCY", _concurrency(pool), 1, 10_000)),
        lease_seconds=number("LEASE_SECONDS", 30.0, 0.5, 3600.0),
        visibility_seconds=number("VISIBILITY_SECONDS", 900.0, 1.0, 86_400.0),
        local_settings=text("LOCAL_SETTINGS"),
        crash=text("CRASH"),
        crash_file=text("CRASH_FILE"),
    )


def _concurrency(pool: str) -> int:
    """Cycles at once in a worker, if nothing is set: threads wait for models, processes cost memory each."""
    return {"threads": 50, "solo": 1}.get(pool, os.cpu_count() or 2)


_PRIVATE = ("VV_AGENT_STORE", "VV_AGENT_BROKER", "VV_AGENT_SESSIONS")
"""Variables of the worker with addresses, perhaps passwords, that a model must not read."""


def environment_of_commands() -> dict[str, str]:
    """The variables of this process that a command of a model's may read."""
    return {name: value for name, value in os.environ.items() if name not in _PRIVATE}


def vocabulary_folder() -> Path:
    """Where `tiktoken` keeps the vocabularies it has."""
    named = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    return Path(named) if named else Path(tempfile.gettempdir()) / "data-gym-cache"
