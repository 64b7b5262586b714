"""`python -m vv_agent.workers.health`: exit code 0 while the store answers and a worker of this host is at work.

For probes of an orchestrator. "This host" is the pid namespace of the caller, in a container the container itself. A
worker shows itself every three seconds; one that was told to stop counts no more.
"""

from __future__ import annotations

import sys

from vv_agent.checkpoint.store import open_store
from vv_agent.errors import VVAgentError
from vv_agent.runtime.owner import process_host
from vv_agent.settings import Settings, read_settings

_FRESH_MS = 15_000


def check(settings: Settings) -> str | None:
    """What is wrong, None if nothing is. Raises what opening the store raises."""
    store = open_store(settings.store, create=False)
    try:
        here = f"@{process_host()}"
        workers = [p for p in store.presences(_FRESH_MS) if p.id.endswith(here) and p.queues]
        return None if workers else f"no worker of this host showed itself in the last {_FRESH_MS // 1000} seconds"
    finally:
        store.close()


def main() -> int:
    try:
        wrong = check(read_settings())
    except VVAgentError as error:
        wrong = str(error)
    if wrong is not None:
        sys.stderr.write(f"vv-agent: unhealthy: {wrong}\n")
    return 0 if wrong is None else 1


if __name__ == "__main__":
    sys.exit(main())
