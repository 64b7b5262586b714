"""`vv-agent doctor`: what is configured, reachable and unsafe, each with what to do about it."""

from __future__ import annotations

from vv_agent.cli.doctor.examine import diagnose

__all__ = ["diagnose"]
