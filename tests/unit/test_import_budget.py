"""Importing stays cheap: a worker starts often, and a command line waits for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.alone
HEAVY = ("pydantic", "httpx", "sqlalchemy", "celery", "redis")

_PROGRAM = """
import json, sys, time
exec(sys.argv[1])
start = time.process_time()
__import__(sys.argv[2])
spent = time.process_time() - start
print(json.dumps([spent, sorted(name for name in sys.modules if "." not in name)]))
"""

_ONE_MODEL = "import pydantic; type('Model', (pydantic.BaseModel,), {})"


def importing(module: str, before: str = "") -> tuple[float, list[str]]:
    """CPU seconds of an import in a fresh process (the best of three), and the modules loaded after it."""
    runs = []
    for _ in range(3):
        command = [sys.executable, "-c", _PROGRAM, before, module]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        runs.append(json.loads(done.stdout))
    spent, loaded = min(runs)
    return spent, loaded


def test_the_front_door_is_cheap_and_loads_nothing_heavy() -> None:
    spent, loaded = importing("vv_agent")
    assert spent < 0.15
    assert not set(HEAVY) & set(loaded)


@pytest.mark.parametrize(
    "module",
    [
        "vv_agent.usage",
        "vv_agent.budget",
        "vv_agent.types",
        "vv_agent.events",
        "vv_agent.event_store",
        "vv_agent.result",
    ],
)
def test_wire_types_cost_little_beside_pydantic(module: str) -> None:
    """Pydantic with a first model takes about 100 ms, all wire types together 45 more, half of it the 34 events."""
    spent, loaded = importing(module, before=_ONE_MODEL)
    assert spent < 0.15
    assert not (set(HEAVY) - {"pydantic"}) & set(loaded)


@pytest.mark.parametrize("module", ["vv_agent.app_server", "vv_agent.cli.app"])
def test_commands_and_programs_that_serve_nobody_do_not_load_the_server(module: str) -> None:
    _, loaded = importing(module)
    assert not set(HEAVY) & set(loaded)


def test_importing_the_events_builds_no_validator() -> None:
    """Building them all at import would double its price; each class is built at its first use instead."""
    check = "import vv_agent.events as e; assert not any(k.__pydantic_complete__ for k in e.EVENT_CLASSES.values())"
    importing("vv_agent.events", before=check)
