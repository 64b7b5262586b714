"""The command line. `main` is the entry point of `vv-agent`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit; every error is a line on stderr, never a traceback."""
    from vv_agent.cli.app import app
    from vv_agent.errors import VVAgentError

    try:
        app()
    except VVAgentError as error:
        sys.stderr.write(f"vv-agent: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


__all__ = ["main"]
